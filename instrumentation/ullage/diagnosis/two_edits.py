"""Causes that take two edits: two things that went wrong independently. Tried only where one edit explains nothing.

One of the two may be an input of which the sides recorded other values. Some pairs give almost any number, and are not
tried: two with a value each that nobody recorded, and another formula altogether with an edit of it. Since no edit
does alone, each of the two is needed. The number of pairs tried is bounded.
"""

from __future__ import annotations

from itertools import islice, permutations
from typing import TYPE_CHECKING, NamedTuple

from ullage.diagnosis.bases import bases
from ullage.diagnosis.edits import EDITS, Edit, Variant
from ullage.diagnosis.finding import Cause
from ullage.diagnosis.numeric import Fault, other_inputs, views, weigh
from ullage.formulas import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ullage.diagnosis.bases import Base
    from ullage.diagnosis.numeric import Pair, View
    from ullage.formulas import Terms

RECORDED = 8.0
"""How much more a pair weighs of which one edit is on record: each side said which value it took."""
MAX_TRIED = 5000
"""Pairs of edits tried for one disagreement; it ends with the formula that has more, of which none is."""


class _Tried(NamedTuple):
    """Two edits, one after the other, and what each made of a formula; ``second`` uses what both use."""

    edits: tuple[Edit, Edit]
    first: Variant
    second: Variant


def two_edits(pair: Pair) -> Iterator[Cause]:
    """Yield what two edits of one formula explain; the same two perhaps several times."""
    left = MAX_TRIED
    for side in views(pair):
        for base in bases(pair.contract, pair.dim, side.known, side.size):
            if not base.uses:
                continue
            yield from _an_input_and_an_edit(side, base)
            tried = list(islice(_pairs(side, base), left + 1))
            left -= len(tried)
            if left < 0:
                return
            yield from _fitting(side, base, tried)


def _an_input_and_an_edit(side: View, base: Base) -> Iterator[Cause]:
    """Explain by inputs that differ, and an edit of the formula."""
    for edit in EDITS:
        variants = list(edit.variants(base.terms, side.merged))
        fitting = [(variant, names) for variant in variants if (names := side.differing(variant))]
        if fitting:
            variant, names = fitting[0]
            faults = (_fault(edit, variant), other_inputs(side, base, names))
            fit = RECORDED * len(fitting) / len(variants)
            yield _cause(side, base, faults, variant, fit, _records(edit, variant))


def _pairs(side: View, base: Base) -> Iterator[_Tried]:
    """Make all variants of all variants of a formula, by two different edits of which one chose no value at least."""
    for edits in permutations(EDITS, 2):
        for first in edits[0].variants(base.terms, side.merged):
            for second in edits[1].variants(first.terms, side.merged):
                if first.free is None or second.free is None:
                    yield _Tried(edits, first, second._replace(uses=first.uses + second.uses))


def _fitting(side: View, base: Base, tried: list[_Tried]) -> Iterator[Cause]:
    """Explain by two edits of the formula, in either order; what is chosen among is all that the two can make of it."""
    chosen: dict[frozenset[str], list[_Tried]] = {}
    for one in tried:
        chosen.setdefault(frozenset(edit.id for edit in one.edits), []).append(one)
    for among in chosen.values():
        fitting = [one for one in among if side.differing(one.second) == () and _both_stand(base.terms, one)]
        if fitting:
            (first, second), before, after = fitting[0]
            records = _records(first, before) + _records(second, after)
            faults = (_fault(first, before), _fault(second, after))
            yield _cause(side, base, faults, after, len(fitting) / len(among), records)


def _both_stand(terms: Terms, tried: _Tried) -> bool:
    """Return whether the second edit left alone what the first one made of ``terms``."""
    return all(term in tried.second.terms for term in tried.first.terms if term not in terms)


def _fault(edit: Edit, variant: Variant) -> Fault:
    return Fault(edit.id, edit.cause, variant.words, edit.advice, edit.avoid)


def _records(edit: Edit, variant: Variant) -> tuple[str, ...]:
    return () if variant.free is None else edit.records


def _cause(
    side: View, base: Base, faults: tuple[Fault, Fault], variant: Variant, fit: float, records: tuple[str, ...]
) -> Cause:
    one, other = faults
    words = (
        f"{side.plain.source} has {say(base.terms)} = {side.size}, {side.edited.source} has "
        f"{say(variant.terms)} = {side.other}: {one.words}, and {other.words}"
    )
    return Cause(
        " and ".join(sorted((one.rule, other.rule))),
        " and ".join(sorted({one.cause, other.cause})),
        words,
        weigh(side, (one.cause, other.cause), base, fit, variant.terms, variant.uses),
        f"{one.advice} {other.advice}",
        f"{one.avoid} {other.avoid}",
        base.tries,
        side.both(base.terms, variant.terms),
        records,
    )
