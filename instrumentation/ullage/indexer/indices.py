"""Indices on the host: what they are, and whether every one of them is inside. Nothing here looks at a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

INTEGERS = (torch.int32, torch.int64)


class Extent:
    """Finds the smallest and the largest index of a batch in one pass, into memory of its own.

    Half the price of two tensors that Python must ask for their values. One thread at a time.
    """

    def __init__(self) -> None:
        memory = bytearray(16)
        self._values = memoryview(memory).cast("q")
        with torch.inference_mode(mode=False):
            self._out = tuple(torch.frombuffer(memory, dtype=torch.int64))

    def of(self, idx: torch.Tensor) -> tuple[int, int]:
        """Return both, of int64 on the host.

        Raises:
            RuntimeError: The batch is empty or something else.
        """
        torch.aminmax(idx, out=self._out)
        return self._values[0], self._values[1]


def worst(idx: torch.Tensor, capacity: int) -> tuple[int, int, int]:
    """Find what is outside [0, capacity); something is.

    Returns:
        The smallest index if it is negative (no capacity makes room for it), else the largest; its position in the
        batch; how many are outside.
    """
    outside = ((idx < 0) | (idx >= capacity)).sum()
    position = int(idx.argmin())
    if idx[position] >= 0:
        position = int(idx.argmax())
    return int(idx[position]), position, int(outside)


def check_indices(name: str, idx: torch.Tensor, device: torch.device) -> None:
    """Check that an indexer can use a batch of indices; its values are not read.

    Raises:
        TypeError: It is no tensor of int32 or int64.
        ValueError: It has more than one dimension, or is on another device than the rows.
    """
    if not isinstance(idx, torch.Tensor):
        raise TypeError(f"{name}: idx is a {type(idx).__name__}; pass a torch tensor of int32 or int64 on {device}")
    if idx.dtype not in INTEGERS:
        hint = "; a mask becomes indices with mask.nonzero().flatten()" if idx.dtype is torch.bool else ""
        raise TypeError(f"{name}: idx is {idx.dtype}; it must be int32 or int64{hint}")
    if idx.ndim > 1:
        raise ValueError(f"{name}: idx has shape {tuple(idx.shape)}; it must have one dimension, or none for one row")
    if idx.device != device:
        hint = ", and these as host_idx" if idx.device.type == "cpu" else ""
        raise ValueError(f"{name}: idx is on {idx.device}, the rows are on {device}: pass indices on {device}{hint}")


def check_values(name: str, idx: torch.Tensor, values: torch.Tensor, like: torch.Tensor) -> None:
    """Hold the rows to be written against the indices and against ``like``, the rows there are.

    Raises:
        TypeError: ``values`` is no tensor, or has another dtype.
        ValueError: Its shape is not that of one row for each index, or it is on another device.
    """
    if not isinstance(values, torch.Tensor):
        raise TypeError(f"{name}: values is a {type(values).__name__}; pass a torch tensor of {like.dtype}")
    if values.dtype is not like.dtype:
        raise TypeError(f"{name}: values are {values.dtype}, the rows are {like.dtype}: convert with .to({like.dtype})")
    if values.shape != idx.shape + like.shape[1:]:
        raise ValueError(
            f"{name}: values have shape {tuple(values.shape)}; {idx.numel()} indices of shape {tuple(idx.shape)} and "
            f"rows of shape {tuple(like.shape[1:])} need {(*idx.shape, *like.shape[1:])}"
        )
    if values.device != like.device:
        raise ValueError(f"{name}: values are on {values.device}, the rows are on {like.device}")


def mirror(name: str, host_idx: torch.Tensor | Sequence[int], count: int) -> torch.Tensor:
    """Return a host mirror of ``count`` indices (a CPU tensor, a NumPy array or a list) as a flat CPU tensor.

    Raises:
        TypeError: It does not hold int32 or int64, or is not on the host.
        ValueError: It does not hold ``count`` of them.
    """
    if isinstance(host_idx, torch.Tensor) and host_idx.device.type != "cpu":
        raise TypeError(f"{name}: host_idx is on {host_idx.device}; it must be a copy of the indices on the host")
    host = torch.as_tensor(host_idx)
    if host.numel() != count:
        raise ValueError(f"{name}: host_idx has {host.numel()} indices, idx has {count}: it must mirror the same batch")
    if count and host.dtype not in INTEGERS:
        raise TypeError(f"{name}: host_idx holds {host.dtype}; it must be int32 or int64")
    return host.reshape(-1).long()
