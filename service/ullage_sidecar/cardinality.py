"""How many series a process may have: what exceeds that is left out of the metrics, and counted.

The API still has everything. Violations go last: buffers that have any are kept before others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ullage.segment.layout import Kind

if TYPE_CHECKING:
    from ullage.segment.snapshot import Buffer
    from ullage_sidecar.state import Life, State

PER_PROCESS = 24
PER_BUFFER = 13
PER_HISTOGRAM = 7
PER_PROBE = 5
PER_CONTRACT = 3
PER_CLOSED = 4


def has_histogram(buffer: Buffer) -> bool:
    """Tell whether the occupancy of ``buffer`` is worth seven series: it can overflow, or it asks for them."""
    return buffer.kind is Kind.HARD or buffer.histogram


def capped(state: State, cap: int) -> tuple[State, dict[str, int]]:
    """Return ``state`` with at most ``cap`` series for each process, and how many buffers were left out of each."""
    dropped: dict[str, int] = {}
    shown = []
    for life in state.shown:
        kept, left_out = _fitting(life, cap)
        if left_out:
            dropped[life.process] = left_out
            life = replace(life, snapshot=replace(life.snapshot, buffers=kept))  # noqa: PLW2901
        shown.append(life)
    return replace(state, shown=tuple(shown)), dropped


def _fitting(life: Life, cap: int) -> tuple[tuple[Buffer, ...], int]:
    snapshot = life.snapshot
    contracts = sum(claim.tally for claim in snapshot.claims)
    closed = sum(buffer.closed for buffer in snapshot.buffers)
    room = cap - PER_PROCESS - PER_PROBE * len(snapshot.probes) - PER_CONTRACT * contracts - PER_CLOSED * closed
    watched = [buffer for buffer in snapshot.buffers if not (buffer.inventory or buffer.closed)]
    kept = set()
    for buffer in sorted(watched, key=lambda buffer: not buffer.out_of_bounds):
        room -= PER_BUFFER + PER_HISTOGRAM * has_histogram(buffer)
        if room >= 0:
            kept.add(buffer.name)
    buffers = tuple(buffer for buffer in snapshot.buffers if buffer.inventory or buffer.closed or buffer.name in kept)
    return buffers, len(watched) - len(kept)
