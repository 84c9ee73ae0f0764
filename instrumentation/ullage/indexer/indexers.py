"""The two indexers: one for a stated worst case, one that grows."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ullage.exact import size
from ullage.indexer.guarding import Indexer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from ullage.indexer.rows import Rows


class GuardedIndexer(Indexer):
    """Rows for a stated worst case: an index beyond the capacity, int(worst_case x margin) + 1, is refused.

    A use of more than ``worst_case`` rows is a warning in the sidecar, a violation is critical.

    Args:
        name: Of the buffer; unique in this process.
        worst_case: The most rows that anybody should need: the largest index + 1.
        row_shape: Shape of one row; () for a number.
        dtype: Of the rows; half and fp8 too.
        device: cpu or cuda.
        margin: At least 1.

    Raises:
        ValueError: An argument is outside what it can be.
    """

    _planned_as = "worst_case"

    def __init__(
        self,
        name: str,
        worst_case: int,
        row_shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str,
        margin: float = 1.1,
    ) -> None:
        super().__init__(name, worst_case, row_shape, dtype, device, margin=margin)


class GrowingIndexer(Indexer):
    """Rows that double until the largest index fits, and keep their contents, until ``lock``.

    It starts with int(base_capacity x margin) + 1 rows, or ``max_capacity`` if that is less. It grows in ``write``,
    by indices that the host knows, or by those that were harvested from the device since the last one. Growth
    replaces the storage and waits for the device: take ``rows`` again after it.

    Args:
        name: Of the buffer; unique in this process.
        base_capacity: The most rows that are planned for: the largest index + 1.
        row_shape: Shape of one row; () for a number.
        dtype: Of the rows; half and fp8 too.
        device: cpu or cuda.
        margin: At least 1.
        max_capacity: The most rows to grow to. Without it one wrong index can take all the memory.

    Raises:
        ValueError: An argument is outside what it can be.
    """

    _planned_as = "base_capacity"

    def __init__(
        self,
        name: str,
        base_capacity: int,
        row_shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str,
        margin: float = 1.15,
        *,
        max_capacity: int | None = None,
    ) -> None:
        if max_capacity is not None and size("max_capacity", max_capacity) < max(base_capacity, 1):
            raise ValueError(f"{name}: max_capacity is {max_capacity}, less than base_capacity {base_capacity} or 1")
        super().__init__(name, base_capacity, row_shape, dtype, device, margin=margin, max_capacity=max_capacity)
        self._locked = False
        self._resizes = 0
        self._retired: list[Rows] = []

    @property
    def resizes(self) -> int:
        """How often it has grown."""
        return self._resizes

    def lock(self) -> None:
        """Forbid growth from now on, because the storage is referred to, for example by a captured graph."""
        self._locked = True

    def is_current(self, tensor: torch.Tensor) -> bool:
        """Tell whether ``tensor`` is a view of the present storage; one that was taken before a growth is not."""
        return bool(tensor.untyped_storage().data_ptr() == self._rows.storage.untyped_storage().data_ptr())

    def _room_for(self, rows: int) -> bool:
        if self._locked or (self.max_capacity is not None and rows > self.max_capacity):
            return False
        capacity = self.capacity
        while capacity < rows:
            capacity *= 2
        if self.max_capacity is not None:
            capacity = min(capacity, self.max_capacity)
        try:
            grown = self._rows.grown(capacity)
        except (RuntimeError, MemoryError) as error:
            self._handle.exhausted(rows)
            raise MemoryError(
                f"{self.name}: no memory to grow from {self.capacity} to {capacity} rows, of which {rows} are needed; "
                f"the rows are as they were. Set max_capacity, or raise base_capacity so that they are allocated early"
            ) from error
        if self._counters.captured:
            self._retired.append(self._rows)  # replays go on writing there
        self._rows = grown
        self._resizes += 1
        self._handle.resize(capacity)
        return True

    def _origin(self) -> str:
        start = f"int({self._planned_as} {self.planned} x margin {self.margin:g}) + 1"
        grown = f", grown {self._resizes} times" if self._resizes else ""
        end = f", at most max_capacity {self.max_capacity}" if self.max_capacity is not None else ""
        return f"is {start}{grown}{end}{', and locked' if self._locked else ''}"

    def _advice(self, needed: int) -> str:
        if self._locked:
            return f"raise base_capacity to at least {needed}, or write that index before lock()"
        if self.max_capacity is not None and needed > self.max_capacity:
            return f"raise max_capacity to at least {needed}"
        return "a read does not grow it"

    def _catch_up(self) -> None:
        wanted, self._wanted = self._wanted, 0
        if self.max_capacity is not None:
            wanted = min(wanted, self.max_capacity)
        if wanted > self.capacity:
            with contextlib.suppress(MemoryError):  # counted; the write at hand may fit
                self._room_for(wanted)
