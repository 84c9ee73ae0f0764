"""Indices that only the device knows: guarded there, counted there, and harvested without waiting for it.

``guard`` sends what is outside [0, capacity) to a spare row instead of refusing it, and counts into a table on the
device. Nothing here makes the host wait for the device.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple, Protocol
from weakref import WeakSet, WeakValueDictionary

import torch

from ullage import safety
from ullage.host.process import process
from ullage.indexer.rows import zeros

STREAMS = 64
"""Rows of a table on CUDA, one for each stream: two streams that add to one row lose updates. The 65th stream and
later ones share the last row."""

_CHECKS, _OUTSIDE, _WRITES, _USED, _HIGH, _LOW = range(6)
"""Columns. Sums: indices, those outside, batches written. Maxima: largest index written + 1, largest index, ~smallest
index (it cannot overflow, and is negative unless an index was). Each column only ever grows."""

_rows: dict[tuple[int | None, int], int] = {}
_tables: WeakValueDictionary[int, Counters] = WeakValueDictionary()
_numbers = itertools.count()


class Harvest(NamedTuple):
    """What was counted on the device since the last harvest; the three extremes are since the beginning."""

    checks: int
    violations: int
    writes: int
    used: int
    high: int
    low: int


class Counters:
    """The table of one indexer, and what was already harvested from it.

    Attributes:
        table: (streams, 6) int64, on the device.
        number: Names these counters to ``guard``.
        captured: A CUDA graph was captured that counts here: replays touch the table unseen by the host.
    """

    def __init__(self, device: torch.device) -> None:
        self.number = next(_numbers)
        self.captured = False
        self._touched = False
        self._copied: torch.cuda.Event | None = None
        self._seen = (0, 0, 0)
        self.table = zeros((STREAMS if device.type == "cuda" else 1, 6), torch.int64, device)
        with torch.inference_mode(mode=False):
            self.table[:, _HIGH:] = -1
            if device.type == "cuda":
                self._pinned = torch.empty(self.table.shape, dtype=torch.int64, pin_memory=True)
        _tables[self.number] = self

    def touch(self) -> None:
        """Note that the device was asked to count."""
        self._touched = True
        self.captured = self.captured or capturing(self.table.device)

    def harvest(self, *, wait: bool = False) -> Harvest | None:
        """Return what was counted since the last call, as far as it has arrived; None if that is nothing.

        Call it on the thread that works with the device, and not during sleep (the table may be unmapped). During
        the capture of a graph it does nothing.

        Args:
            wait: Wait for the work of the current stream, so that none of its counts is missed.
        """
        device = self.table.device
        changed = self._touched or self.captured
        if not (changed or self._copied) or capturing(device):
            return None
        if device.type != "cuda" or wait:
            self._touched, self._copied = False, None
            return self._difference(self.table)  # reading a table on the device waits for this stream
        arrived = None
        if self._copied is not None:
            if not self._copied.query():
                return None
            arrived = self._difference(self._pinned)
            self._copied = None
        if changed:
            self._touched = False
            self._pinned.copy_(self.table, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(device))
        return arrived

    def _difference(self, table: torch.Tensor) -> Harvest | None:
        columns = list(zip(*table.tolist(), strict=True))
        checks, outside, writes = (sum(column) for column in columns[:_USED])
        used, high, low = (max(column) for column in columns[_USED:])
        seen, self._seen = self._seen, (checks, outside, writes)
        if self._seen == seen:
            return None
        return Harvest(checks - seen[0], outside - seen[1], writes - seen[2], used, high, ~low)


def capturing(device: torch.device) -> bool:
    """Tell whether a CUDA graph is being captured on the current stream of ``device``."""
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def inside(idx: torch.Tensor, table: torch.Tensor, capacity: int, write: bool, number: int) -> torch.Tensor:  # noqa: FBT001  an operator takes what its schema says
    """Count a batch of indices in ``table``, and return it with what is outside replaced, as int64.

    Out of range, a write goes to the spill row ``capacity``, a read to the zero row ``capacity + 1``.

    Args:
        idx: (n,) int32 or int64.
        table: A table of ``Counters``; this adds to the row of the current stream.
        capacity: Rows.
        write: Whether the batch is written.
        number: The number of the ``Counters``.
    """
    idx = idx.long()
    outside = idx.clamp(0, capacity - 1) != idx
    if idx.numel():
        counters = _tables.get(number)
        if counters is not None:
            counters.touch()
        row = table[_row(table.device)]
        row[_CHECKS].add_(idx.numel())
        row[_OUTSIDE].add_(outside.sum())
        low, high = torch.aminmax(idx)
        used = row[_USED]
        if write:
            row[_WRITES].add_(1)
            used = torch.where(outside, -1, idx).amax() + 1
        torch.maximum(row[_USED:], torch.stack((used, high, ~low)), out=row[_USED:])
    return torch.where(outside, capacity if write else capacity + 1, idx)


# Opaque to the compiler: a compiled graph calls it as it is, so the row is that of the stream it runs on.
guard = torch.library.custom_op(
    "ullage::guard",
    inside,
    mutates_args=("table",),
    schema="(Tensor idx, Tensor(a!) table, int capacity, bool write, int number) -> Tensor",
)
guard.register_fake(lambda idx, *_: torch.empty_like(idx, dtype=torch.int64))


def _row(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    stream = torch.cuda.current_stream(device).cuda_stream
    return _rows.setdefault((device.index, stream), min(len(_rows), STREAMS - 1))


class Harvested(Protocol):
    """What is harvested at the step tick."""

    def harvest(self) -> None:
        """Take over what has arrived from the device."""


_live: WeakSet[Harvested] = WeakSet()


def at_ticks(harvested: Harvested) -> None:
    """Have ``harvested.harvest()`` called at each step tick, as long as it is referred to elsewhere."""
    _live.add(harvested)
    process.chores.at_ticks(_harvest)


def not_at_ticks(harvested: Harvested) -> None:
    """Take it out again."""
    _live.discard(harvested)


def _harvest() -> None:
    for harvested in list(_live):
        with safety.shield("harvest"):
            harvested.harvest()
