"""Edits: the ways in which one formula turns into another by mistake. A rule is an edit, a case, a counter-case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.formulas import Term, Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Inputs = Mapping[str, Any]

LOOK_AHEAD_NAMES = ("num_lookahead_tokens", "num_speculative_tokens", "look_ahead")
PARALLEL_NAMES = ("decode_context_parallel_size", "dcp_world_size", "dcp", "context_parallel_size")
LOOK_AHEAD_DOMAIN = range(1, 17)
MULTIPLES = (2, 4, 8, 16, 32, 64, 128, 256)
TOKEN_ALIGNMENT = 128
FACTORS = (2, 4, 8, 16, 32, 64, 128)


class Variant(NamedTuple):
    """A formula after an edit, and the words for what the edit did.

    Attributes:
        free: The unrecorded value that was tried; None if the edit had no choice.
        uses: Recorded inputs that the edit uses.
    """

    terms: Terms
    words: str
    free: int | None = None
    uses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """Two sizes with the inputs of each side."""

    sizes: tuple[int, int]
    inputs: tuple[dict[str, int], dict[str, int]]


@dataclass(frozen=True)
class Edit:
    """One way to go wrong.

    Attributes:
        cause: Its class among the priors.
        variants: ``variants(terms, inputs)``: all that the edit can make of a formula.
        advice: What to do.
        avoid: What not to do.
        records: Inputs that would decide, where the edit was free to choose a value.
        case: Sizes that it explains; ``counter``: sizes nearby that it does not.
    """

    id: str
    cause: str
    variants: Callable[[Terms, Inputs], Iterator[Variant]]
    advice: str
    avoid: str
    case: Case
    counter: Case
    records: tuple[str, ...] = ()


def _look_ahead(terms: Terms, inputs: Inputs) -> Iterator[Variant]:
    """Count the tokens that are drafted ahead, before anything is divided."""
    head, tail = terms[:1], terms[1:]
    recorded = [name for name in LOOK_AHEAD_NAMES if isinstance(inputs.get(name), int)]
    for name in recorded:
        yield Variant((*head, Term("add", name, "look-ahead"), *tail), f"look-ahead ({name}) is counted", uses=(name,))
    for value in () if recorded else LOOK_AHEAD_DOMAIN:
        words = f"look-ahead of {value} tokens is counted"
        yield Variant((*head, Term("add", value, "look-ahead"), *tail), words, free=value)


def _token_alignment(terms: Terms, _inputs: Inputs) -> Iterator[Variant]:
    """Round a number of blocks up, so that they hold a multiple of 128 tokens."""
    divisor = next((t.operand for t in terms if t.operation in ("ceil_div", "floor_div")), None)
    if isinstance(divisor, str) and not any(term.operation == "align_tokens" for term in terms):
        aligned = Term("align_tokens", TOKEN_ALIGNMENT, "alignment", unit=divisor)
        yield Variant((*terms, aligned), f"blocks are rounded up to a multiple of {TOKEN_ALIGNMENT} tokens")


def _padding(terms: Terms, _inputs: Inputs) -> Iterator[Variant]:
    for value in MULTIPLES:
        yield Variant((*terms, Term("round_up", value, "padding")), f"it is padded to a multiple of {value}", value)


def _off_by_one(terms: Terms, _inputs: Inputs) -> Iterator[Variant]:
    yield Variant((*terms, Term("add", 1, "boundary")), "one more is counted (n + 1 boundaries for n)", 1)
    yield Variant((*terms, Term("add", -1, "boundary")), "one less is counted", -1)


def _unit(terms: Terms, inputs: Inputs) -> Iterator[Variant]:
    """Count in another unit: by a recorded size, or by a power of two."""
    used = {term.operand for term in terms}
    for name, value in inputs.items():
        if isinstance(value, int) and value > 1 and name not in used:
            yield Variant((*terms, Term("multiply", name)), f"it is counted in units of 1 / {name}", uses=(name,))
            yield Variant((*terms, Term("ceil_div", name)), f"it is counted in units of {name}", uses=(name,))
    if len(terms) > 1 and terms[-1].operation in ("ceil_div", "floor_div"):
        yield Variant(terms[:-1], f"it is not divided by {terms[-1].operand}")
    for value in FACTORS:
        yield Variant((*terms, Term("multiply", value)), f"it is {value} times as much", value)


def _divisor(terms: Terms, inputs: Inputs) -> Iterator[Variant]:
    """Divide by the context-parallel size, on one side only."""
    recorded = [name for name in PARALLEL_NAMES if isinstance(inputs.get(name), int)]
    for name in recorded:
        words = f"it is divided among {name} ranks"
        yield Variant((*terms, Term("ceil_div", name, "divisor")), words, uses=(name,))
    for value in () if recorded else (2, 4, 8):
        yield Variant((*terms, Term("ceil_div", value, "divisor")), f"it is divided among {value} ranks", value)


_TABLE = {"max_model_len": 200_000, "block_size": 64}

EDITS = (
    Edit(
        "look-ahead",
        "look-ahead",
        _look_ahead,
        "Count the look-ahead tokens in one place, and take the size from there on both sides.",
        "Do not raise max_model_len to make room: the next draft length breaks it again.",
        Case((3125, 3126), (_TABLE, _TABLE)),
        Case((5469, 5470), ({"max_model_len": 350_000, "block_size": 64},) * 2),
        records=("num_lookahead_tokens",),
    ),
    Edit(
        "token alignment",
        "alignment",
        _token_alignment,
        "Give the narrower side the width that the other one computed, instead of computing it twice.",
        "Do not trim the wider table: that turned a clean error into an asynchronous illegal access.",
        Case((5469, 5470), ({"max_model_len": 350_000, "block_size": 64},) * 2),
        Case((1250, 1251), ({"max_model_len": 80_000, "block_size": 64},) * 2),
    ),
    Edit(
        "padding",
        "alignment",
        _padding,
        "Pad where the size is computed, and use the padded size on both sides.",
        "Do not cut the padded tensor to fit: its kernel was launched for the padded size.",
        Case((295, 296), ({"rows": 295}, {"rows": 295})),
        Case((295, 297), ({"rows": 295}, {"rows": 295})),
    ),
    Edit(
        "off by one",
        "off by one",
        _off_by_one,
        "Allocate for n + 1 where boundaries of n segments are stored.",
        "Do not drop the last element: it ends the last segment.",
        Case((240, 241), ({"max_num_seqs": 60, "tokens": 4}, {"max_num_seqs": 60, "tokens": 4})),
        Case((240, 242), ({"max_num_seqs": 60, "tokens": 4}, {"max_num_seqs": 60, "tokens": 4})),
    ),
    Edit(
        "unit",
        "unit confusion",
        _unit,
        "Name the unit in the variable and in the contract, and convert in one place.",
        "Do not scale one side by a constant: the factor is a setting.",
        Case((512, 8192), ({"max_model_len": 8192, "block_size": 16}, {"max_model_len": 8192, "block_size": 16})),
        Case((512, 8191), ({"max_model_len": 8192, "block_size": 16}, {"max_model_len": 8192, "block_size": 16})),
    ),
    Edit(
        "context-parallel divisor",
        "two formulas",
        _divisor,
        "Divide by the number of ranks on both sides, or on neither.",
        "Do not halve the limit: without context parallelism it then is too small.",
        Case(
            (16_384, 8192),
            ({"max_model_len": 1_048_576, "block_size": 64, "dcp": 2}, {"max_model_len": 1_048_576, "block_size": 64}),
        ),
        Case(
            (16_384, 8193),
            ({"max_model_len": 1_048_576, "block_size": 64, "dcp": 2}, {"max_model_len": 1_048_576, "block_size": 64}),
        ),
        records=("decode_context_parallel_size",),
    ),
)
