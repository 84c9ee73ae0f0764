"""Totals: the counters that add up over the incarnations of a process name."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from ullage.segment.snapshot import Snapshot

MAX_TALLIES = 512
"""Counters of one process name that are remembered of files that are gone."""


class Tally(NamedTuple):
    """One counter of a buffer, or of a contract, that adds up over the incarnations of a process name."""

    name: str
    what: Literal["violations", "exhaustions", "grows", "shrinks", "shape_checks", "shape_violations"]


def added(one: Counter[Tally] | None, other: Counter[Tally]) -> Counter[Tally]:
    """Add two tallies up; zeros stay, unlike with ``+``: a contract without a violation has its series, too."""
    total = Counter(one)
    total.update(other)
    return total


def tally_of(snapshot: Snapshot) -> Counter[Tally]:
    """Return what a snapshot adds to the totals; what is zero adds nothing, and most is."""
    tally: Counter[Tally] = Counter()
    for buffer in snapshot.buffers:
        if buffer.out_of_bounds:
            tally[Tally(buffer.name, "violations")] = buffer.out_of_bounds
        if buffer.exhaustions:
            tally[Tally(buffer.name, "exhaustions")] = buffer.exhaustions
        if buffer.grows:
            tally[Tally(buffer.name, "grows")] = buffer.grows
        if buffer.shrinks:
            tally[Tally(buffer.name, "shrinks")] = buffer.shrinks
    for claim in snapshot.claims:
        if claim.tally:
            # One process may have several contracts of a name.
            tally[Tally(claim.contract, "shape_checks")] += claim.checks
            tally[Tally(claim.contract, "shape_violations")] += claim.violations
    return tally


def remembered(tally: Counter[Tally]) -> Counter[Tally]:
    """Return at most ``MAX_TALLIES`` of the counters: violations first, then exhaustions."""
    if len(tally) <= MAX_TALLIES:
        return tally
    order = ("violations", "shape_violations", "exhaustions", "shape_checks", "grows", "shrinks")
    return Counter(dict(sorted(tally.items(), key=lambda one: order.index(one[0].what))[:MAX_TALLIES]))
