"""What the indexers have in common: nothing outside [0, capacity) is written or read unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import torch

from ullage.errors import BoundsViolation
from ullage.exact import size
from ullage.indexer import device as on_device
from ullage.indexer import indices as on_host
from ullage.indexer.rows import Rows
from ullage.recording.buffers import buffer

if TYPE_CHECKING:
    from collections.abc import Sequence


class Indexer:
    """What both indexers are: rows, counters on the device, a buffer's handle, and the checks before each use.

    Attributes:
        name: Of the buffer.
        planned: The planned number of rows; times ``margin``, plus 1, they are the capacity to begin with.
        margin: At least 1.
        max_capacity: No capacity goes beyond it; None for no such limit.
    """

    _planned_as = ""

    def __init__(
        self,
        name: str,
        planned: int,
        row_shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str,
        *,
        margin: float,
        max_capacity: int | None = None,
    ) -> None:
        planned = size(self._planned_as, planned)
        if not 1 <= margin < float("inf"):
            raise ValueError(f"{name}: margin is {margin!r}; it must be a number of at least 1")
        if not all(isinstance(width, int) and width > 0 for width in row_shape):
            raise ValueError(f"{name}: row_shape is {tuple(row_shape)}; its sizes must be whole numbers, 1 or more")
        where = torch.device(device)
        if where.type not in ("cpu", "cuda"):
            raise ValueError(f"{name}: the device is {where}; an indexer works on cpu and cuda")
        self.name = name
        self.planned = planned
        self.margin = margin
        self.max_capacity = max_capacity
        capacity = int(planned * margin) + 1
        if max_capacity is not None:
            capacity = min(capacity, max_capacity)
        self._rows = Rows(capacity, tuple(row_shape), dtype, where)
        self._device = self._rows.rows.device
        self._host_sees = self._device.type == "cpu"
        self._counters = on_device.Counters(self._device)
        self._extent = on_host.Extent()
        self._peak = 0
        self._wanted = 0
        self._handle = buffer(
            name,
            capacity=capacity,
            unit="rows",
            kind="hard",
            location="host" if where.type == "cpu" else "device",
            limit=f"{self._planned_as} x margin",
            bytes=self._rows.storage.nbytes,
        )
        self._handle.warn_at(planned + 1)
        on_device.at_ticks(self)

    @property
    def capacity(self) -> int:
        """How many rows there are."""
        return self._rows.capacity

    @property
    def rows(self) -> torch.Tensor:
        """The rows, (capacity, *row_shape): a view, good until the storage changes. Rows never written are zero."""
        return self._rows.rows

    @property
    def peak(self) -> int:
        """The largest index ever written + 1, or the bound it was promised; on the device, as far as harvested."""
        return self._peak

    def write(
        self,
        idx: torch.Tensor,
        values: torch.Tensor,
        host_idx: torch.Tensor | Sequence[int] | None = None,
        bound: int | None = None,
    ) -> None:
        """Write ``values[n]`` to row ``idx[n]``.

        An empty batch does nothing. Of several values for one row, any one may stay.

        Args:
            idx: (n,) int32 or int64 on the device of the rows; without a dimension, one row.
            values: (*idx.shape, *row_shape) in the dtype of the rows. No gradient flows into the rows.
            host_idx: The same indices on the host: a CPU tensor, a NumPy array or a list. Ignored if ``idx`` is
                on the host itself.
            bound: The largest index + 1, or more.

        Raises:
            BoundsViolation: An index that the host knows is outside; nothing was written.
            MemoryError: A growing indexer could not grow; nothing was written, and all rows are as they were.
            TypeError, ValueError: An argument does not fit; nothing was written.
        """
        if bound is None and not torch.compiler.is_compiling() and self._write_at_once(idx, values):
            return
        on_host.check_indices(self.name, idx, self._device)
        on_host.check_values(self.name, idx, values, self._rows.rows)
        if idx.ndim == 0:
            values = values.unsqueeze(0)
        idx = idx.reshape(-1).long()
        if torch.compiler.is_compiling() or on_device.capturing(self._device):
            self._rows.put(self._guard(idx, write=True), values)
        elif idx.numel():
            self._catch_up()
            used = self._admit(idx, host_idx, bound, write=True)
            if used is None:
                self._rows.put(self._guard(idx, write=True), values)
            else:
                self._rows.put(idx, values)
                self._wrote(idx.numel(), used)

    def read(
        self,
        idx: torch.Tensor,
        host_idx: torch.Tensor | Sequence[int] | None = None,
        bound: int | None = None,
    ) -> torch.Tensor:
        """Return a copy of the rows ``idx``, (*idx.shape, *row_shape). A read never grows anything.

        Args:
            idx: As for ``write``; what only the device knows to be outside reads as zeros.
            host_idx: As for ``write``.
            bound: As for ``write``.

        Raises:
            BoundsViolation: An index that the host knows is outside; nothing was read.
            TypeError, ValueError: An argument does not fit.
        """
        on_host.check_indices(self.name, idx, self._device)
        flat = idx.reshape(-1).long()
        blind = torch.compiler.is_compiling() or on_device.capturing(self._device)
        if blind or (flat.numel() and self._admit(flat, host_idx, bound, write=False) is None):
            taken = self._rows.take(self._guard(flat, write=False))
        else:
            taken = self._rows.take(flat)
            self._handle.checked(flat.numel())
        return taken if idx.ndim else taken[0]

    def harvest(self) -> None:
        """Take over what was counted on the device and has arrived, and ask for the rest. Does not wait for it.

        The step tick does this too. Call it on the thread that works with the device, and not while its memory sleeps.
        """
        self._take(self._counters.harvest())

    def close(self) -> None:
        """Take over the last counts from the device, and free the buffer's record; the rows go with the indexer."""
        self._take(self._counters.harvest(wait=True))
        on_device.not_at_ticks(self)
        self._handle.close()

    def _write_at_once(self, idx: torch.Tensor, values: torch.Tensor) -> bool:
        """Write the usual batch on the host, as fast as can be; False if it is not one, and nothing was written.

        After a large copy the caches are cold, and each look at an argument costs microseconds. So dtypes, shapes and
        devices are left to ``index_copy_``, which refuses before it writes; who then is at fault is found out later.
        """
        rows = self._rows
        if not (self._host_sees and rows.direct) or self._wanted > rows.capacity:
            return False
        try:
            if values.requires_grad:
                return False
            low, top = self._extent.of(idx)
            if low < 0 or top >= rows.capacity:
                return False
            rows.storage.index_copy_(0, idx, values)
        except Exception:
            return False
        self._wrote(idx.numel(), top + 1)
        return True

    # -- what the host knows -----------------------------------------------------------------------------------

    def _admit(
        self, idx: torch.Tensor, host_idx: torch.Tensor | Sequence[int] | None, bound: int | None, *, write: bool
    ) -> int | None:
        """Return the largest index + 1 of a batch that is inside; None if only the device knows its indices."""
        used = None
        if bound is not None:
            used = size(f"{self.name}: bound", bound)
            if used > self.capacity and not (write and self._room_for(used)):
                self._refuse(used - 1, None, 1, idx.numel(), write=write)
        host = idx
        if not self._host_sees:
            if host_idx is None:
                return used
            host = on_host.mirror(self.name, host_idx, idx.numel())
        low, top = self._extent.of(host)
        if (low < 0 or top >= self.capacity) and not (write and low >= 0 and self._room_for(top + 1)):
            self._refuse(*on_host.worst(host, self.capacity), idx.numel(), write=write)
        return top + 1

    def _room_for(self, rows: int) -> bool:  # noqa: ARG002  for the one that grows
        """Make room for more rows than the capacity; False if that is not allowed."""
        return False

    def _refuse(self, index: int, position: int | None, count: int, total: int, *, write: bool) -> NoReturn:
        self._handle.checked(total)
        self._handle.violated(index, count)
        where = "promised by bound" if position is None else f"at position {position} of {total}"
        others = f" ({count} indices are outside, this one the worst)" if count > 1 else ""
        advice = "no capacity makes room for a negative index" if index < 0 else self._advice(index + 1)
        raise BoundsViolation(
            f"{self.name}: index {index} {where} is outside [0, {self.capacity}){others}; nothing was "
            f"{'written' if write else 'read'}. The capacity {self._origin()}: {advice}",
            index=index,
            position=position,
            capacity=self.capacity,
        )

    def _origin(self) -> str:
        return f"is int({self._planned_as} {self.planned} x margin {self.margin:g}) + 1"

    def _advice(self, needed: int) -> str:
        return f"raise {self._planned_as} to at least {needed}"

    def _wrote(self, count: int, used: int) -> None:
        if used > self._peak:  # noqa: PLR1730  a call costs more
            self._peak = used
        self._handle.checked(count - 1)  # the observation is the check of the largest one
        self._handle.observe(used)

    # -- what only the device knows ----------------------------------------------------------------------------

    def _guard(self, idx: torch.Tensor, *, write: bool) -> torch.Tensor:
        """Return the indices with what is outside replaced, and have it counted on the device."""
        # The operator is for compilers: by itself it costs several times as much as what it does.
        guard = on_device.guard if torch.compiler.is_compiling() else on_device.inside
        return guard(idx, self._counters.table, self._rows.capacity, write, self._counters.number)

    def _take(self, harvest: on_device.Harvest | None) -> None:
        if harvest is None:
            return
        if harvest.writes:
            self._wrote(harvest.checks, harvest.used)
        else:
            self._handle.checked(harvest.checks)
        if harvest.violations:
            beyond = harvest.high - self.capacity + 1
            self._handle.violated(harvest.low if -harvest.low > max(beyond, 0) else harvest.high, harvest.violations)
            self._wanted = harvest.high + 1

    def _catch_up(self) -> None:
        """Make room for what the device asked for, where that is allowed."""
        self._wanted = 0
