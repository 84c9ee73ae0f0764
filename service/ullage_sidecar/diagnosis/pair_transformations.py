"""Causes that take two transformations: two independent faults. Tried only where one transformation explains nothing.

One of the two may be an input that the sides recorded with different values. Some pairs give almost any number and are
not tried: two that each chose a value that was not recorded, and another formula with a transformation of it. Since no
transformation explains the sizes alone, both are needed. The number of pairs tried is bounded.
"""

from __future__ import annotations

from itertools import islice, permutations
from typing import TYPE_CHECKING, NamedTuple

from ullage_sidecar.diagnosis.candidate_formulas import candidate_formulas
from ullage_sidecar.diagnosis.finding import Cause
from ullage_sidecar.diagnosis.numeric import Fault, other_inputs, views, weigh
from ullage_sidecar.diagnosis.transformations import TRANSFORMATIONS, Transformation, Variant
from ullage_sidecar.formulas import format_terms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ullage_sidecar.diagnosis.candidate_formulas import Candidate
    from ullage_sidecar.diagnosis.numeric import Pair, View
    from ullage_sidecar.formulas import Terms

RECORDED = 8.0
"""How much more a pair weighs of which one transformation is on record: each side recorded the value it took."""
MAX_TRIED = 5000
"""Pairs of transformations tried for one disagreement; it ends with the formula that has more, of which none is."""


class _Tried(NamedTuple):
    """Two transformations, one after the other, and what each made of a formula; ``second`` uses what both use."""

    transformations: tuple[Transformation, Transformation]
    first: Variant
    second: Variant


def pair_transformations(pair: Pair) -> Iterator[Cause]:
    """Yield what two transformations of one formula explain; the same two perhaps several times."""
    left = MAX_TRIED
    for side in views(pair):
        for candidate in candidate_formulas(pair.contract, pair.dim, side.known, side.size):
            if not candidate.uses:
                continue
            yield from _an_input_and_a_transformation(side, candidate)
            tried = list(islice(_pairs(side, candidate), left + 1))
            left -= len(tried)
            if left < 0:
                return
            yield from _fitting(side, candidate, tried)


def _an_input_and_a_transformation(side: View, candidate: Candidate) -> Iterator[Cause]:
    """Explain by inputs that differ, and a transformation of the formula."""
    for transformation in TRANSFORMATIONS:
        variants = list(transformation.variants(candidate.terms, side.merged))
        fitting = [(variant, names) for variant in variants if (names := side.differing(variant))]
        if fitting:
            variant, names = fitting[0]
            faults = (_fault(transformation, variant), other_inputs(side, candidate, names))
            fit = RECORDED * len(fitting) / len(variants)
            yield _cause(side, candidate, faults, variant, fit, _records(transformation, variant))


def _pairs(side: View, candidate: Candidate) -> Iterator[_Tried]:
    """Yield all variants of all variants of a formula, by two transformations of which at least one chose no value."""
    for transformations in permutations(TRANSFORMATIONS, 2):
        for first in transformations[0].variants(candidate.terms, side.merged):
            for second in transformations[1].variants(first.terms, side.merged):
                if first.free is None or second.free is None:
                    yield _Tried(transformations, first, second._replace(uses=first.uses + second.uses))


def _fitting(side: View, candidate: Candidate, tried: list[_Tried]) -> Iterator[Cause]:
    """Explain by two transformations of the formula, in either order; each pair competes with all that it can make."""
    chosen: dict[frozenset[str], list[_Tried]] = {}
    for one in tried:
        chosen.setdefault(frozenset(transformation.id for transformation in one.transformations), []).append(one)
    for among in chosen.values():
        fitting = [one for one in among if side.differing(one.second) == () and _both_stand(candidate.terms, one)]
        if fitting:
            (first, second), before, after = fitting[0]
            records = _records(first, before) + _records(second, after)
            faults = (_fault(first, before), _fault(second, after))
            yield _cause(side, candidate, faults, after, len(fitting) / len(among), records)


def _both_stand(terms: Terms, tried: _Tried) -> bool:
    """Return whether the second transformation left alone what the first one made of ``terms``."""
    return all(term in tried.second.terms for term in tried.first.terms if term not in terms)


def _fault(transformation: Transformation, variant: Variant) -> Fault:
    return Fault(transformation.id, transformation.cause, variant.words, transformation.advice, transformation.avoid)


def _records(transformation: Transformation, variant: Variant) -> tuple[str, ...]:
    return () if variant.free is None else transformation.records


def _cause(
    side: View,
    candidate: Candidate,
    faults: tuple[Fault, Fault],
    variant: Variant,
    fit: float,
    records: tuple[str, ...],
) -> Cause:
    one, other = faults
    words = (
        f"{side.plain.source} has {format_terms(candidate.terms)} = {side.size}, {side.transformed.source} has "
        f"{format_terms(variant.terms)} = {side.other}: {one.words}, and {other.words}"
    )
    return Cause(
        " and ".join(sorted((one.rule, other.rule))),
        " and ".join(sorted({one.cause, other.cause})),
        words,
        weigh(side, (one.cause, other.cause), candidate, fit, variant.terms, variant.uses),
        f"{one.advice} {other.advice}",
        f"{one.avoid} {other.avoid}",
        candidate.tries,
        side.both(candidate.terms, variant.terms),
        records,
    )
