"""What a process finds where it runs: a directory for segments, other engines, how the hook was installed."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.segment.text import clean

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ullage.segment.snapshot import Snapshot

DEFAULT_DIRECTORY = Path("/run/ullage")
INSTALL_INFO_MAX = 200
ENGINE_NAME_MAX = 64


def directory() -> Path | None:
    """Return where segments go: ``ULLAGE_DIR``, or the usual place if it is there; None for nowhere."""
    configured = os.environ.get("ULLAGE_DIR")
    if configured:
        return Path(configured)
    return DEFAULT_DIRECTORY if DEFAULT_DIRECTORY.is_dir() else None


def free_name(base: str, neighbours: Iterable[Snapshot], used: Collection[str] = (), *, given: str = "") -> str:
    """Return a name for a new engine instance.

    Args:
        base: The kind of engine; the name is ``base`` with the first number that is free.
        neighbours: Engines in the same directory; a living one keeps its name.
        used: Names of earlier engine instances of this process.
        given: A name from the configuration. A second instance of this process gets ``-2`` after it.
    """
    if given:
        numbered = (f"{given}-{number}" for number in itertools.count(2))
        return next(name for name in itertools.chain([given], numbered) if name not in used)
    taken = {neighbour.identity.get("engine_name") for neighbour in neighbours if neighbour.alive}.union(used)
    return next(name for number in itertools.count() if (name := f"{base}{number}") not in taken)


def engine_name() -> str:
    """Return the name that ``ULLAGE_ENGINE`` gives this engine, cleaned and cut; empty for none."""
    return clean(os.environ.get("ULLAGE_ENGINE", ""))[:ENGINE_NAME_MAX]


def inherited_engine() -> tuple[str, str]:
    """Return name and id of the engine that this process was started by; empty for none."""
    name, _, engine_id = os.environ.get("ULLAGE_ENGINE_ID", "").rpartition(":")
    return clean(name)[:ENGINE_NAME_MAX], clean(engine_id)[:ENGINE_NAME_MAX]


def pass_on_engine(name: str, engine_id: str) -> None:
    """Have the processes that are started from here inherit an engine; an empty name for none."""
    if name:
        os.environ["ULLAGE_ENGINE_ID"] = f"{name}:{engine_id}"
    else:
        os.environ.pop("ULLAGE_ENGINE_ID", None)


def install_info(variables: Iterable[str]) -> dict[str, str]:
    """Return how the hook came into this process: where it was found, and the variables that decide about it.

    No other variable is recorded. Text is ASCII, and cut: it shares the room of the identity.

    Args:
        variables: Names of the environment variables that restrict which plugins an engine loads.

    Returns:
        Keys of the identity: ``hook_path``; ``pythonpath`` if it is set; ``plugin_variables`` with those of
        ``variables`` that are set, each ``NAME=value``, joined by spaces, if there is one.
    """
    plugin_variables = [f"{name}={os.environ[name]}" for name in variables if name in os.environ]
    found = {
        "hook_path": str(Path(__file__).parents[2]),
        "pythonpath": os.environ.get("PYTHONPATH"),
        "plugin_variables": " ".join(plugin_variables) or None,
    }
    return {
        name: value.encode("ascii", "replace").decode()[:INSTALL_INFO_MAX]
        for name, value in found.items()
        if value is not None
    }
