"""What a process finds where it runs: a directory for segments, other engines, how the hook came in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.segment.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ullage.segment.snapshot import Snapshot

DEFAULT_DIRECTORY = Path("/run/ullage")
ARRIVAL_MAX = 200
ENGINE_NAME_MAX = 64


def directory() -> Path | None:
    """Return where segments go: ``ULLAGE_DIR``, or the usual place if it is there; None for nowhere."""
    configured = os.environ.get("ULLAGE_DIR")
    if configured:
        return Path(configured)
    return DEFAULT_DIRECTORY if DEFAULT_DIRECTORY.is_dir() else None


def free_name(base: str, neighbours: Iterable[Snapshot]) -> str:
    """Return ``base`` with the first number that no living engine among ``neighbours`` has."""
    taken = {neighbour.identity.get("engine_name") for neighbour in neighbours if neighbour.alive}
    number = 0
    while f"{base}{number}" in taken:
        number += 1
    return f"{base}{number}"


def engine_name() -> str:
    """Return the name that ``ULLAGE_ENGINE`` gives this engine, cleaned and cut; empty for none."""
    return clean(os.environ.get("ULLAGE_ENGINE", ""))[:ENGINE_NAME_MAX]


def inherited_engine() -> tuple[str, str]:
    """Return name and id of the engine that this process was started by; empty for none."""
    name, _, engine_id = os.environ.get("ULLAGE_ENGINE_ID", "").rpartition(":")
    return clean(name)[:ENGINE_NAME_MAX], clean(engine_id)[:ENGINE_NAME_MAX]


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
