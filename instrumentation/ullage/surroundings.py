"""What a process finds where it runs: a directory for segments, other engines, how the hook came in."""

from __future__ import annotations

import os
from pathlib import Path

from ullage.segment import sweep

DEFAULT_DIRECTORY = Path("/run/ullage")
ARRIVAL_MAX = 200


def directory() -> Path | None:
    """Return where segments go: ``ULLAGE_DIR``, or the usual place if it is there; None for nowhere."""
    configured = os.environ.get("ULLAGE_DIR")
    if configured:
        return Path(configured)
    return DEFAULT_DIRECTORY if DEFAULT_DIRECTORY.is_dir() else None


def free_name(base: str, where: Path) -> str:
    """Return ``base`` with the first number that no living engine in ``where`` has."""
    taken = {snapshot.identity.get("engine_name") for snapshot in sweep.living(where)}
    number = 0
    while f"{base}{number}" in taken:
        number += 1
    return f"{base}{number}"


def arrival() -> dict[str, str]:
    """Return how the hook came into this process: where it was found, and the variables that decide about it.

    No other variable is recorded. Text is ASCII, and cut: it shares the room of the identity.
    """
    found = {
        "hook_path": str(Path(__file__).parents[1]),
        "pythonpath": os.environ.get("PYTHONPATH"),
        "vllm_plugins": os.environ.get("VLLM_PLUGINS"),
    }
    return {
        name: value.encode("ascii", "replace").decode()[:ARRIVAL_MAX]
        for name, value in found.items()
        if value is not None
    }
