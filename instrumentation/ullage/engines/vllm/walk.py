"""One walk over a V1 runner when its KV cache is initialised: only then have its buffers their final sizes.

Before, the tables of a healthy engine can have another width. Each part reads shapes and limits that stand, makes
claims of them, and fails alone.
"""

from __future__ import annotations

from typing import Any

from ullage import safety
from ullage.engines.vllm import builds, limits, ropes, rows, tables

PARTS = (limits.claim_of_runner, tables.claim, rows.claim, ropes.claim, builds.watch)


def walk(runner: Any) -> None:
    """Claim the size of everything that ``runner`` and what hangs on it have allocated, and what it must hold."""
    for part in PARTS:
        with safety.shield(f"walk: {part.__module__}"):
            part(runner)
