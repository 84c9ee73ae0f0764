"""What must hold after a write; for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ullage.indexer.guarding import Indexer


def check_invariants(
    indexer: Indexer, idx: torch.Tensor, values: torch.Tensor, before: torch.Tensor | None = None
) -> None:
    """Assert, in a test, that ``indexer.write(idx, values)`` was done right. Waits for the device.

    Args:
        indexer: The indexer, after the write.
        idx: As written.
        values: As written.
        before: ``indexer.rows.clone()`` from before the write: no other row may differ from it, and rows that came
            with a growth since must be zero.

    Raises:
        AssertionError: An index is outside [0, capacity), the capacity is less than what was planned for times the
            margin, a written row does not read back bit for bit, or another row changed.
    """
    name, capacity = indexer.name, indexer.capacity
    rows, written = _bits(indexer.rows), _bits(values.detach().reshape(-1, *indexer.rows.shape[1:]))
    idx = idx.reshape(-1).long()
    outside = ((idx < 0) | (idx >= capacity)).nonzero().flatten().tolist()
    assert not outside, f"{name}: index {int(idx[outside[0]])} at position {outside[0]} is outside [0, {capacity})"
    least = indexer.planned * indexer.margin
    if indexer.max_capacity is not None:
        least = min(least, indexer.max_capacity)
    assert capacity >= least, f"{name}: the capacity is {capacity}, less than {least:g} = planned x margin"
    touched = torch.zeros(capacity, dtype=torch.bool, device=idx.device)
    reads_back = touched.clone()
    touched[idx] = True
    reads_back[idx[(rows[idx] == written).all(dim=1)]] = True  # of several values for one row, any one may stay
    lost = (touched & ~reads_back).nonzero().flatten().tolist()
    assert not lost, f"{name}: row {lost[0]} does not read back as it was written ({len(lost)} rows)"
    if before is not None:
        expected = torch.zeros_like(rows)
        expected[: len(before)] = _bits(before)
        changed = ((rows != expected).any(dim=1) & ~touched).nonzero().flatten().tolist()
        assert not changed, f"{name}: row {changed[0]} changed, but was not written ({len(changed)} rows)"


def _bits(rows: torch.Tensor) -> torch.Tensor:
    """Return (n, bytes per row) uint8: two rows are the same if their bits are."""
    return rows.contiguous().view(torch.uint8).reshape(len(rows), -1)
