"""Removes the files of dead processes, but keeps the evidence. Run by the hook when a segment is opened."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from typing import TYPE_CHECKING

from ullage.segment import reader
from ullage.segment.layout import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ullage.segment.snapshot import Snapshot

KEEP_NEWEST = 2
ORPHAN_AGE_S = 60


def sweep(directory: Path, now: float) -> None:
    """Unlink dead segments except what ``expendable`` keeps, and temporary files older than a minute.

    A file that cannot be read is left alone: it is not known to be dead, or to be ours.
    """
    dead = []
    for path in _entries(directory, f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError, reader.UnreadableError):
            snapshot = reader.read(path, events=False)
            if not snapshot.alive:
                dead.append((path, snapshot))
    for path in expendable(dead):
        _unlink(path)
    for path in _entries(directory, ".*.tmp"):
        with contextlib.suppress(OSError):
            if now - path.stat().st_mtime > ORPHAN_AGE_S:
                _unlink(path)


def expendable(dead: Iterable[tuple[Path, Snapshot]]) -> list[Path]:
    """Return the files to unlink: of each process name all but its first crash and its newest two."""
    dead = list(dead)
    everybody = [snapshot for _, snapshot in dead]
    by_name = defaultdict(list)
    for path, snapshot in dead:
        by_name[snapshot.name].append((snapshot.process.started_ns, path, snapshot))
    victims = []
    for lives in by_name.values():
        lives.sort(key=lambda life: life[0])
        older = lives[:-KEEP_NEWEST]
        first_crash = next((path for _, path, snapshot in lives if snapshot.outcome(everybody) != "stopped"), None)
        victims += [path for _, path, _ in older if path != first_crash]
    return victims


def living(directory: Path) -> Iterator[Snapshot]:
    """Yield what the living processes in ``directory`` say of themselves."""
    for path in _entries(directory, f"*{SUFFIX}"):
        with contextlib.suppress(FileNotFoundError, reader.UnreadableError):
            snapshot = reader.read(path, events=False)
            if snapshot.alive:
                yield snapshot


def _entries(directory: Path, pattern: str) -> list[Path]:
    try:
        return sorted(directory.glob(pattern))
    except OSError:
        return []


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
