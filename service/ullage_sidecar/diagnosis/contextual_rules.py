"""Causes that no transformation of a formula gives: they follow from what the two sides are, and from their order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from ullage.segment.agreement import AT_LEAST, REQUIRES
from ullage_sidecar.diagnosis import vocabulary
from ullage_sidecar.diagnosis.candidate_formulas import candidate_formulas
from ullage_sidecar.diagnosis.finding import Cause
from ullage_sidecar.diagnosis.priors import log_prior
from ullage_sidecar.diagnosis.transformations import Case
from ullage_sidecar.formulas import format_terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ullage.segment.agreement import Claim
    from ullage_sidecar.diagnosis.numeric import Pair

    Judged = tuple[str, float, int] | None
    """What happened, in words; the share of what it was free to choose; formulas tried. None where it does not fit."""

MIB = 2**20
ROUND_FIT = 1 / 2
GENERAL_FIT = 1 / 8
"""Of what can be said of nearly every capacity that did not suffice."""
WIDTHS = (15, 16, 31, 32)
NARROW_FIT = 1 / 2


@dataclass(frozen=True)
class ContextualRule:
    """One way in which two sides come to differ.

    Attributes:
        cause: Its class among the priors.
        judge: Describes what happened and how much freedom that took, if it fits the two sides.
        case: Sizes that it explains; ``counter``: sizes nearby that it does not. The second side requires its size.
    """

    id: str
    cause: str
    judge: Callable[[Pair], Judged]
    advice: str
    avoid: str
    case: Case
    counter: Case


def contextual_rules(pair: Pair) -> Iterator[Cause]:
    """Yield what fits."""
    for rule in CONTEXTUAL_RULES:
        judged = rule.judge(pair)
        if judged is not None:
            words, fit, tries = judged
            weight = math.exp(log_prior(rule.cause, pair.without)) * fit / tries
            yield Cause(rule.id, rule.cause, words, weight, rule.advice, rule.avoid, tries)


def _builds(pair: Pair) -> Judged:
    """Compare versions and implementations."""
    ours, theirs = pair.provider.inputs, pair.requirement.inputs
    for name in sorted(ours.keys() & theirs.keys()):
        if name.endswith(vocabulary.BUILDS) and ours[name] != theirs[name]:
            words = f"{name} is {ours[name]} for {pair.provider.source}, {theirs[name]} for {pair.requirement.source}"
            return words, 1.0, 1
    return None


def _more_than_foreseen(pair: Pair) -> Judged:
    """See whether a capacity was made for less than what comes.

    Either no formula gives the need, it came with the traffic; or the capacity was computed from something else than
    the limit that the need is, or follows from in a known way.
    """
    have, need = pair.sizes
    inputs = pair.requirement.inputs
    if need <= have or pair.requirement.role != REQUIRES:
        return None
    words = f"{pair.requirement.source} needs {need}, more than the worst case that {pair.provider.source} assumed"
    if not _numbers(inputs) or any(inputs.get(name) == need for name in vocabulary.OBSERVED):
        return f"{words} ({have})", GENERAL_FIT, 1
    assumed = [
        candidate
        for candidate in candidate_formulas(pair.contract, pair.dim, pair.provider.inputs, have)
        if candidate.uses
    ]
    needed = [candidate for candidate in candidate_formulas(pair.contract, pair.dim, inputs, need) if candidate.uses]
    needed = [candidate for candidate in needed if candidate.formula is not None or len(candidate.terms) == 1]
    if pair.relation != AT_LEAST or not assumed or not needed:
        return None
    words = f"{words}: {format_terms(assumed[0].terms)} = {have}, and {format_terms(needed[0].terms)} = {need} can come"
    return words, GENERAL_FIT, min(candidate.tries for candidate in assumed)


def _constant(pair: Pair) -> Judged:
    """See whether one side is a constant, while the other follows from the configuration."""
    have, need = pair.sizes
    for claim, size, other, against in (
        (pair.provider, have, pair.requirement, need),
        (pair.requirement, need, pair.provider, have),
    ):
        own = candidate_formulas(pair.contract, pair.dim, claim.inputs, size)
        named = [candidate for candidate in own if candidate.formula is not None and not candidate.uses]
        round_number = not _numbers(claim.inputs) and size >= 8 and (size & (size - 1) == 0 or size % MIB == 0)
        following = [
            candidate
            for candidate in candidate_formulas(pair.contract, pair.dim, other.inputs, against)
            if candidate.uses
        ]
        if not following or not (named or round_number):
            continue
        number = f"{size / MIB:g} MiB" if size % MIB == 0 else str(size)
        computed = f"{other.source} computes {against} from {', '.join(following[0].uses)}"
        words = f"{claim.source} has a constant, {number}; {computed}"
        return words, 1.0 if named else ROUND_FIT, min(candidate.tries for candidate in following)
    return None


def _locked(pair: Pair) -> Judged:
    """See whether the size was fixed when the warm-up ended, and a later call needs more."""
    have, need = pair.sizes
    if need <= have or not any(name in pair.provider.inputs for name in vocabulary.LOCKED):
        return None
    words = f"{pair.provider.source} has what the warm-up needed ({have}), {pair.requirement.source} needs {need}"
    return words, 1.0, 1


def _index_width(pair: Pair) -> Judged:
    """See whether the capacity is what an index of 16 or 32 bits can reach with the recorded stride."""
    have, need = pair.sizes
    if need <= have:
        return None
    strides = [
        value for name, value in pair.provider.inputs.items() if "stride" in name and _is_size(value) and value > 0
    ]
    for stride in strides:
        for bits in WIDTHS:
            if have in (2**bits // stride, -(-(2**bits) // stride)):
                words = f"offsets below 2^{bits} reach {have} of {stride} each, {pair.requirement.source} has {need}"
                return words, 1.0 if pair.provider.inputs.get("index_limit") == 2**bits else 1 / len(WIDTHS), 1
    return None


def _kernel_page(pair: Pair) -> Judged:
    """See whether the columns would suffice if they counted the manager's blocks, not the kernel's."""
    have, need = pair.sizes
    columns, block, manager = _sizes(pair.provider, "columns", "block_size", "manager_block_size")
    if not columns or columns * block != have or have >= need or columns * manager < need:
        return None
    words = (
        f"{columns} columns count blocks of {manager} tokens, as the manager has them ({columns * manager} tokens); "
        f"the kernel takes each for {block} ({have} tokens, {need} are needed)"
    )
    return words, 1.0, 1


def _narrow(pair: Pair) -> Judged:
    """See whether a table that is narrow on purpose is read at every position of a request."""
    have, need = pair.sizes
    columns, block = _sizes(pair.provider, "columns", "block_size")
    length = pair.provider.inputs.get("max_model_len")
    reaches_a_request = have >= (length if _is_size(length) else need)
    if not columns or columns * block != have or reaches_a_request or need not in pair.requirement.inputs.values():
        return None
    words = (
        f"{pair.provider.source} has {columns} columns of {block} tokens; a lookup at position {have} or later "
        f"reads past its row, and nothing checks that"
    )
    return words, NARROW_FIT, 1


def _past_the_table(pair: Pair) -> Judged:
    """See whether an index goes past all rows and columns of its table."""
    have, need = pair.sizes
    rows, columns = _sizes(pair.provider, "rows", "columns")
    if not columns or rows * columns != have or have >= need:
        return None
    words = (
        f"{pair.requirement.source} takes element {need - 1} of {rows} x {columns}: row {(need - 1) // columns}, and "
        f"nothing checks that there are {rows}"
    )
    return words, 1.0, 1


def _foreign_limit(pair: Pair) -> Judged:
    """See whether the same limit of another component would do."""
    have, need = pair.sizes
    if pair.relation != AT_LEAST:
        return None
    inputs = {**pair.requirement.inputs, **pair.provider.inputs}
    for name, value in pair.provider.inputs.items():
        owner, what = vocabulary.whose(name)
        if not owner or value != have or need <= have:
            continue
        for other, enough in inputs.items():
            if vocabulary.whose(other)[1] == what and other != name and _is_size(enough) and enough >= need:
                words = f"{pair.provider.source} has {name} = {have}, where {other} = {enough} would do for {need}"
                return words, 1.0, 1
    return None


def _graph_coverage(pair: Pair) -> Judged:
    """See whether what was captured is all there is, and a batch can be larger."""
    have, need = pair.sizes
    graph = next((name for name in vocabulary.GRAPHS if pair.provider.inputs.get(name) == have), None)
    if graph is None or need <= have or need not in pair.requirement.inputs.values():
        return None
    words = f"{pair.provider.source} ends at the largest captured graph ({graph} = {have}), a batch of {need} can come"
    return words, ROUND_FIT, 1


def _numbers(inputs: dict[str, Any]) -> list[int]:
    return [value for value in inputs.values() if _is_size(value)]


def _sizes(claim: Claim, *names: str) -> list[int]:
    """Return recorded sizes by name; 0 for one that is missing."""
    return [value if _is_size(value := claim.inputs.get(name)) else 0 for name in names]


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


_DRAFT = {"draft_max_position_embeddings": 2048}
_TARGET = {"max_model_len": 8192, "target_max_position_embeddings": 16_384}
_KPOOL = {"columns": 410, "block_size": 128, "manager_block_size": 640}

CONTEXTUAL_RULES = (
    ContextualRule(
        "version skew",
        "version skew",
        _builds,
        "Install both sides from one build, or configure for the one that is in use.",
        "Do not pin one side alone.",
        Case((5, 9), ({"engine_version": "0.11"}, {"engine_version": "0.32"})),
        Case((5, 9), ({"engine_version": "0.32"}, {"engine_version": "0.32"})),
    ),
    ContextualRule(
        "static assumption",
        "static assumption",
        _more_than_foreseen,
        "Compute the capacity from the worst case, with a margin; guard the write.",
        "Do not retry the request.",
        Case((512, 640), ({"worst_case": 512}, {})),
        Case((512, 640), ({"worst_case": 512}, {"batch": 7})),
    ),
    ContextualRule(
        "hard-coded constant",
        "hard-coded constant",
        _constant,
        "Compute it from the configuration, and keep the constant as its lower bound.",
        "Do not raise the constant: the next model is larger.",
        Case((1024, 512), ({}, {"index_topk": 512})),
        Case((1000, 512), ({}, {"index_topk": 512})),
    ),
    ContextualRule(
        "warm-up gap",
        "warm-up gap",
        _locked,
        "Reserve in the warm-up what the largest request needs, on every path that uses the buffer.",
        "Do not unlock it: captured graphs hold its address.",
        Case((3_208_640, 12_582_912), ({"locked": True}, {"bytes": 12_582_912})),
        Case((3_208_640, 12_582_912), ({"bytes": 3_208_640}, {"bytes": 12_582_912})),
    ),
    ContextualRule(
        "index width",
        "integer overflow",
        _index_width,
        "Compute offsets in 64 bits, or allocate fewer than that.",
        "Do not trust that it works so far: the high numbers are handed out last.",
        Case((7768, 9000), ({"block_stride": 276_480}, {"num_gpu_blocks": 9000})),
        Case((7770, 9000), ({"block_stride": 276_480}, {"num_gpu_blocks": 9000})),
    ),
    ContextualRule(
        "foreign limit",
        "foreign input",
        _foreign_limit,
        "Size it by the limit of the engine, not of the component.",
        "Do not run eagerly instead: that turns the error into a silent read out of bounds.",
        Case((2048, 8192), (_DRAFT, _TARGET)),
        Case((2048, 8192), (_DRAFT, {"max_model_len": 8192, "target_max_position_embeddings": 4096})),
    ),
    ContextualRule(
        "graph coverage",
        "alignment",
        _graph_coverage,
        "Capture a graph as large as the largest batch, or lower the batch limit to the largest graph.",
        "Do not take the silence for success: a larger batch runs without a graph, many times slower.",
        Case((8, 12), ({"max_cudagraph_capture_size": 8}, {"max_num_seqs": 12})),
        Case((8, 12), ({"max_cudagraph_capture_size": 16}, {"max_num_seqs": 12})),
    ),
    ContextualRule(
        "kernel page",
        "unit confusion",
        _kernel_page,
        "Let the table count the kernel's blocks, or the kernel advertise its own block size.",
        "Do not widen the table: its entries are still numbers of larger blocks.",
        Case((52_480, 262_144), (_KPOOL, {"max_model_len": 262_144})),
        Case((52_480, 262_144), (_KPOOL | {"manager_block_size": 256}, {"max_model_len": 262_144})),
    ),
    ContextualRule(
        "past the table",
        "no bounds check",
        _past_the_table,
        "Bound the loop by the rows of the table, not by those of the launch.",
        "Do not allocate a row more: it would be read as data.",
        Case((12, 13), ({"rows": 3, "columns": 4}, {})),
        Case((13, 14), ({"rows": 3, "columns": 4}, {})),
    ),
    ContextualRule(
        "narrow table",
        "no bounds check",
        _narrow,
        "Mask the lookup, or leave this group out of it.",
        "Do not widen the table: this group keeps only a window of the sequence.",
        Case((128, 53_000), ({"columns": 32, "block_size": 4}, {"max_model_len": 53_000})),
        Case((129, 53_000), ({"columns": 32, "block_size": 4}, {"max_model_len": 53_000})),
    ),
)
