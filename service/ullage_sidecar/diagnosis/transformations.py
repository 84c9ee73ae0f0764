"""Transformations: the ways in which one formula turns into another by mistake, each with a case and a counter-case."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage_sidecar.diagnosis import vocabulary
from ullage_sidecar.formulas import Term, Terms, evaluate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ullage_sidecar.formulas import Operation

    Inputs = Mapping[str, Any]

LOOK_AHEAD_DOMAIN = range(1, 17)
MULTIPLES = (2, 4, 8, 16, 32, 64, 128, 256)
TOKEN_ALIGNMENT = 128
FACTORS = (2, 4, 8, 16, 32, 64, 128)


class Variant(NamedTuple):
    """A formula after a transformation, and the words for what the transformation did.

    Attributes:
        free: The unrecorded value that was tried; None if the transformation had no choice.
        uses: Recorded inputs that the transformation uses.
    """

    terms: Terms
    words: str
    free: int | None = None
    uses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """Two sizes with the inputs of each side."""

    sizes: tuple[int, int]
    inputs: tuple[dict[str, Any], dict[str, Any]]


@dataclass(frozen=True)
class Transformation:
    """One way to go wrong.

    Attributes:
        cause: Its class among the priors.
        variants: ``variants(terms, inputs)``: all that the transformation can make of a formula.
        advice: What to do.
        avoid: What not to do.
        records: Inputs that would decide, where the transformation was free to choose a value.
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
    """Count what is drafted ahead: before anything is divided, for each sequence, or after the division as blocks."""
    head, tail = terms[:1], terms[1:]
    recorded = [name for name in vocabulary.LOOK_AHEAD if isinstance(inputs.get(name), int) and not _in(terms, name)]
    for name in recorded:
        words = f"look-ahead ({name}) is counted"
        yield Variant((*head, Term("add", name, "look-ahead"), *tail), words, uses=(name,))
        if tail:
            yield Variant((*terms, Term("add", name, "look-ahead")), words, uses=(name,))
        for sequences in vocabulary.COUNTED_IN:
            if vocabulary.COUNTED_IN[sequences] == vocabulary.SEQUENCES and isinstance(inputs.get(sequences), int):
                yield from _look_ahead_of_each(terms, name, sequences)
    for value in LOOK_AHEAD_DOMAIN if not recorded and _counts(terms) else ():
        words = f"look-ahead of {value} tokens is counted"
        yield Variant((*head, Term("add", value, "look-ahead"), *tail), words, free=value)


def _look_ahead_of_each(terms: Terms, name: str, sequences: str) -> Iterator[Variant]:
    """Count ``name`` tokens more for each sequence, where so far everything was added up."""
    words = f"look-ahead ({name}) of each sequence is counted"
    each = (Term("start", name, "look-ahead"), Term("multiply", sequences, "fields"))
    if all(term.operation == "add" for term in terms[1:]):
        yield Variant((*each, replace(terms[0], operation="add"), *terms[1:]), words, uses=(name, sequences))


def _rounding(terms: Terms, _inputs: Inputs) -> Iterator[Variant]:
    """Divide by a recorded size, and treat what is left over the other way."""
    flipped: dict[str, tuple[Operation, str]] = {
        "ceil_div": ("floor_div", "is dropped"),
        "floor_div": ("ceil_div", "takes a place of its own"),
    }
    for place, term in enumerate(terms):
        if term.operation in flipped and isinstance(term.operand, str):
            operation, what = flipped[term.operation]
            other = (*terms[:place], replace(term, operation=operation), *terms[place + 1 :])
            yield Variant(other, f"what is left over by {term.operand} {what}")


def _token_alignment(terms: Terms, _inputs: Inputs) -> Iterator[Variant]:
    """Round a number of blocks up, so that they hold a multiple of 128 tokens."""
    divisor = next((t.operand for t in terms if t.operation in ("ceil_div", "floor_div")), None)
    if isinstance(divisor, str) and not any(term.operation == "align_tokens" for term in terms):
        aligned = Term("align_tokens", TOKEN_ALIGNMENT, "alignment", unit=divisor)
        yield Variant((*terms, aligned), f"blocks are rounded up to a multiple of {TOKEN_ALIGNMENT} tokens")


def _padding(terms: Terms, inputs: Inputs) -> Iterator[Variant]:
    value = evaluate(terms, inputs)
    for name in _others(terms, inputs):
        if value is not None and inputs[name] < value:
            words = f"it is padded to a multiple of {name}"
            yield Variant((*terms, Term("round_up", name, "padding")), words, uses=(name,))
    for multiple in MULTIPLES:
        words = f"it is padded to a multiple of {multiple}"
        yield Variant((*terms, Term("round_up", multiple, "padding")), words, multiple)


def _graph_padding(terms: Terms, inputs: Inputs) -> Iterator[Variant]:
    """Count up to the largest captured graph: a smaller batch is padded to one. A sequence's length is not."""
    for name in () if _counts(terms) == vocabulary.LENGTH else vocabulary.GRAPHS:
        if isinstance(inputs.get(name), int) and not _in(terms, name):
            words = f"a batch is padded to a captured graph ({name})"
            yield Variant((*terms[:1], Term("at_least", name, "graph padding"), *terms[1:]), words, uses=(name,))


def _off_by_one(terms: Terms, _inputs: Inputs) -> Iterator[Variant]:
    yield Variant((*terms, Term("add", 1, "boundary")), "one more is counted (n + 1 boundaries for n)", 1)
    yield Variant((*terms, Term("add", -1, "boundary")), "one less is counted", -1)


def _reserved(terms: Terms, inputs: Inputs) -> Iterator[Variant]:
    """Count only the places that are not reserved."""
    for name, value in inputs.items():
        if name.startswith("reserved") and isinstance(value, int) and not _in(terms, name):
            yield Variant((*terms, Term("add", -value, "reserved")), f"{value} ({name}) cannot be used", uses=(name,))


def _unit(terms: Terms, inputs: Inputs) -> Iterator[Variant]:
    """Count in another unit: by a recorded size, or by a power of two."""
    for name in _others(terms, inputs):
        yield Variant((*terms, Term("multiply", name)), f"it is counted in units of 1 / {name}", uses=(name,))
        yield Variant((*terms, Term("ceil_div", name)), f"it is counted in units of {name}", uses=(name,))
    if len(terms) > 1 and terms[-1].operation in ("ceil_div", "floor_div"):
        yield Variant(terms[:-1], f"it is not divided by {terms[-1].operand}")
    for value in FACTORS:
        yield Variant((*terms, Term("multiply", value)), f"it is {value} times as much", value)


def _other_count(terms: Terms, inputs: Inputs) -> Iterator[Variant]:
    """Take the limit of something else: tokens of a step for sequences, a sequence's length for a step's."""
    counted = vocabulary.COUNTED_IN
    base = terms[0].operand
    if base not in counted:
        return
    for name in _others(terms, inputs):
        if name in counted and counted[name] != counted[str(base)]:
            words = f"it counts {counted[name]} ({name}), the other side {counted[str(base)]} ({base})"
            yield Variant((Term("start", name, "base"), *terms[1:]), words, uses=(name,))


def _divisor(terms: Terms, inputs: Inputs) -> Iterator[Variant]:
    """Divide what is kept of a sequence by the context-parallel size, on one side only."""
    if _counts(terms) != vocabulary.LENGTH:
        return
    recorded = [name for name in vocabulary.PARALLEL if isinstance(inputs.get(name), int) and not _in(terms, name)]
    for name in recorded:
        words = f"it is divided among {name} ranks"
        yield Variant((*terms, Term("ceil_div", name, "divisor")), words, uses=(name,))
    in_blocks = any(term.operation == "ceil_div" for term in terms)
    for value in (2, 4, 8) if in_blocks and not recorded else ():
        yield Variant((*terms, Term("ceil_div", value, "divisor")), f"it is divided among {value} ranks", value)


def _foreign(terms: Terms, inputs: Inputs) -> Iterator[Variant]:
    """Take the same quantity from another component: the draft's for the target's."""
    base = terms[0].operand
    if not isinstance(base, str):
        return
    owner, what = vocabulary.whose(base)
    for name in _others(terms, inputs):
        other, same = vocabulary.whose(name)
        if same == what and other != owner:
            words = f"it is computed from {name}, not from {base}"
            yield Variant((Term("start", name, "base"), *terms[1:]), words, uses=(name,))


def _counts(terms: Terms) -> str:
    """Return what a formula starts from, as ``vocabulary`` has it; empty if that is not known."""
    return vocabulary.COUNTED_IN.get(str(terms[0].operand), "")


def _in(terms: Terms, name: str) -> bool:
    return any(name in (term.operand, term.unit) for term in terms)


def _others(terms: Terms, inputs: Inputs) -> list[str]:
    """Names of the recorded sizes that the formula does not use."""
    return [
        name
        for name, value in inputs.items()
        if isinstance(value, int) and not isinstance(value, bool) and value > 1 and not _in(terms, name)
    ]


_TABLE = {"max_model_len": 200_000, "block_size": 64}
_MILLION = {"max_model_len": 1_048_576, "block_size": 64}
_GRAPH = {"max_num_seqs": 16, "max_cudagraph_capture_size": 32}

TRANSFORMATIONS = (
    Transformation(
        "look-ahead",
        "look-ahead",
        _look_ahead,
        "Count the look-ahead tokens in one place, and take the size from there on both sides.",
        "Do not raise max_model_len to make room: the next draft length breaks it again.",
        Case((3125, 3126), (_TABLE, _TABLE)),
        Case((5469, 5470), ({"max_model_len": 350_000, "block_size": 64},) * 2),
        records=("num_lookahead_tokens",),
    ),
    Transformation(
        "rounding",
        "two formulas",
        _rounding,
        "Round up where something must hold what is left over, and round in one place.",
        "Do not add one to what is rounded down: that is one too many wherever nothing is left over.",
        Case((1562, 1563), ({"max_model_len": 100_000, "block_size": 64},) * 2),
        Case((1562, 1564), ({"max_model_len": 100_000, "block_size": 64},) * 2),
    ),
    Transformation(
        "token alignment",
        "alignment",
        _token_alignment,
        "Give the narrower side the width that the other one computed, instead of computing it twice.",
        "Do not trim the wider table: that turned a clean error into an asynchronous illegal access.",
        Case((5469, 5470), ({"max_model_len": 350_000, "block_size": 64},) * 2),
        Case((1250, 1251), ({"max_model_len": 80_000, "block_size": 64},) * 2),
    ),
    Transformation(
        "padding",
        "alignment",
        _padding,
        "Pad where the size is computed, and use the padded size on both sides.",
        "Do not cut the padded tensor to fit: its kernel was launched for the padded size.",
        Case((295, 296), ({"rows": 295}, {"rows": 295})),
        Case((295, 297), ({"rows": 295}, {"rows": 295})),
    ),
    Transformation(
        "graph padding",
        "alignment",
        _graph_padding,
        "Allocate for the larger of the batch limit and the largest captured graph.",
        "Do not slice to the batch limit: a slice past the end is silently shorter, and the kernel writes on.",
        Case((16, 32), (_GRAPH, _GRAPH)),
        Case((16, 31), (_GRAPH, _GRAPH)),
    ),
    Transformation(
        "off by one",
        "off by one",
        _off_by_one,
        "Allocate for n + 1 where boundaries of n segments are stored.",
        "Do not drop the last element: it ends the last segment.",
        Case((240, 241), ({"max_num_seqs": 60, "tokens": 4}, {"max_num_seqs": 60, "tokens": 4})),
        Case((240, 242), ({"max_num_seqs": 60, "tokens": 4}, {"max_num_seqs": 60, "tokens": 4})),
    ),
    Transformation(
        "reserved slot",
        "reserved slot",
        _reserved,
        "Allocate the reserved places on top of the limit.",
        "Do not hand out the reserved place: padding is written there.",
        Case((0, 1), ({"size": 1, "reserved_slots": 1}, {"size": 1})),
        Case((0, 1), ({"size": 2, "reserved_slots": 1}, {"size": 1})),
    ),
    Transformation(
        "unit",
        "unit confusion",
        _unit,
        "Name the unit in the variable and in the contract, and convert in one place.",
        "Do not scale one side by a constant: the factor is a setting.",
        Case((512, 8192), ({"max_model_len": 8192, "block_size": 16}, {"max_model_len": 8192, "block_size": 16})),
        Case((512, 8191), ({"max_model_len": 8192, "block_size": 16}, {"max_model_len": 8192, "block_size": 16})),
    ),
    Transformation(
        "limit of something else",
        "unit confusion",
        _other_count,
        "Size it by what is counted there, and name that in the contract.",
        "Do not lower the larger limit until it fits: it is another quantity and changes by itself.",
        Case((64, 128), ({"max_num_seqs": 64}, {"num_query_tokens": 128})),
        Case((64, 128), ({"max_num_seqs": 64}, {"max_running_requests": 128})),
    ),
    Transformation(
        "context-parallel divisor",
        "two formulas",
        _divisor,
        "Divide by the number of ranks on both sides, or on neither.",
        "Do not halve the limit: without context parallelism it then is too small.",
        Case((16_384, 8192), ({**_MILLION, "dcp": 2}, _MILLION)),
        Case((16_384, 8193), ({**_MILLION, "dcp": 2}, _MILLION)),
        records=("decode_context_parallel_size",),
    ),
    Transformation(
        "foreign input",
        "foreign input",
        _foreign,
        "Read the input from the component that the size is for.",
        "Do not copy the value: it goes stale. Do not run eagerly instead: that hides a read out of bounds.",
        Case((4, 8), ({"heads": 4, "draft_heads": 8}, {"heads": 4, "draft_heads": 8})),
        Case((4, 9), ({"heads": 4, "draft_heads": 8}, {"heads": 4, "draft_heads": 8})),
    ),
)
