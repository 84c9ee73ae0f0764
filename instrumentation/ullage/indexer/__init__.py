"""Indexers: rows that are allocated once, and writes that cannot leave them unseen.

    rows = GuardedIndexer("draft_rows", worst_case=8192, row_shape=(128,), dtype=torch.bfloat16, device="cuda")
    rows.write(idx, values, host_idx=idx_on_host)      # refused before anything is written
    rows.write(idx, values)                            # device indices alone: what is outside goes to a spill row

An index outside [0, capacity), also a negative one, is a violation. What the host knows (indices on the host, a host
mirror ``host_idx`` or an upper ``bound``) is checked before anything is launched, without waiting for the device; a
mirror and a bound are taken at their word. In a compiled function and during the capture of a CUDA graph only the
device can check, whatever the host knows. One thread at a time uses an indexer.
"""

from ullage.indexer.indexers import GrowingIndexer, GuardedIndexer
from ullage.indexer.invariants import check_invariants

__all__ = ["GrowingIndexer", "GuardedIndexer", "check_invariants"]
