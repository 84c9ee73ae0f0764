"""The rows of an indexer: one tensor, with a row that swallows and a row that is always zero behind them."""

from __future__ import annotations

import torch

SPARE = 2
"""Rows behind the capacity: ``storage[capacity]`` is the spill row, ``storage[capacity + 1]`` the zero row."""


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros that can be written in every mode of torch, and in CUDA graphs that a compiler makes."""
    with torch.inference_mode(mode=False):  # what is made inside could not be written outside
        made = torch.zeros(shape, dtype=dtype, device=device)
    if device.type == "cuda":
        from torch._dynamo import mark_static_address  # noqa: PLC0415  takes seconds, and only CUDA needs it

        mark_static_address(made, guard=True)
    return made


class Rows:
    """``capacity`` rows of zeros, allocated once. Indices must be int64 and inside the storage: nothing is checked.

    Attributes:
        capacity: How many rows there are, without spill and zero row.
        storage: (capacity + 2, *row_shape). For fp8, which index operations reject, its bytes.
        rows: (capacity, *row_shape), a view of the storage in the dtype asked for.
        direct: The storage is in the dtype asked for.
    """

    def __init__(self, capacity: int, row_shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.capacity = capacity
        self.direct = not (dtype.is_floating_point and dtype.itemsize == 1)
        self.storage = zeros((capacity + SPARE, *row_shape), dtype if self.direct else torch.uint8, device)
        with torch.inference_mode(mode=False):
            self.rows = self.storage[:capacity].view(dtype)

    def put(self, idx: torch.Tensor, values: torch.Tensor) -> None:
        """Write ``values[n]`` to row ``idx[n]``. No gradient flows into the rows."""
        if values.requires_grad:
            values = values.detach()
        self.storage.index_copy_(0, idx, values if self.direct else values.view(torch.uint8))

    def take(self, idx: torch.Tensor) -> torch.Tensor:
        """Return a copy of the rows ``idx``."""
        taken = self.storage.index_select(0, idx)
        return taken if self.direct else taken.view(self.rows.dtype)

    def grown(self, capacity: int) -> Rows:
        """Return ``capacity`` rows, at least as many as here, that begin with a copy of these."""
        row_shape, device = tuple(self.rows.shape[1:]), self.rows.device
        grown = Rows(capacity, row_shape, self.rows.dtype, device)
        # Rare, so exact rather than fast: what other streams still write belongs to the copy, and they must not
        # write to the new rows before it is complete.
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        grown.storage[: self.capacity].copy_(self.storage[: self.capacity])
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return grown
