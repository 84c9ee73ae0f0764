"""Removes the files of dead processes, but keeps the evidence. Run by the hook when a segment is opened."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING

from ullage.segment import reader
from ullage.segment.layout import FILE_NAME, TEMPORARY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from re import Pattern

    from ullage.segment.snapshot import Snapshot

KEEP_NEWEST = 2
ORPHAN_AGE_S = 60
MAX_ENTRIES = 8_192
"""Directory entries that are examined, in the order in which the kernel lists them."""
BUDGET_S = 0.25
"""How long a host waits for that at its start. What is not reached is left to the next one."""


def survey(directory: Path) -> list[tuple[Path, Snapshot]]:
    """Return what the processes in ``directory`` say of themselves, the living and the dead; no records.

    Reads a few hundred bytes of each file whose name is a segment's, within ``MAX_ENTRIES`` and ``BUDGET_S``. What
    cannot be read is left out.
    """
    deadline = time.monotonic() + BUDGET_S
    found = []
    for path in _entries(directory, FILE_NAME):
        if time.monotonic() > deadline:
            break
        with contextlib.suppress(FileNotFoundError, reader.UnreadableError):
            found.append((path, reader.glance(path)))
    return found


def sweep(directory: Path, found: Iterable[tuple[Path, Snapshot]], now: float) -> None:
    """Unlink of the segments ``found`` the dead that ``expendable`` names, and temporary files older than a minute."""
    for path in expendable([(path, snapshot) for path, snapshot in found if not snapshot.alive]):
        _unlink(path)
    for path in _entries(directory, TEMPORARY_NAME):
        with contextlib.suppress(OSError):
            if now - path.lstat().st_mtime > ORPHAN_AGE_S:
                _unlink(path)


def expendable(dead: Iterable[tuple[Path, Snapshot]]) -> list[Path]:
    """Return the files to unlink: of each process name all but its first crash and its newest two.

    It errs towards keeping where not all of the dead are given.
    """
    by_name = defaultdict(list)
    last_stops: dict[str, Snapshot] = {}
    for path, snapshot in dead:
        by_name[snapshot.name].append((snapshot.process.started_ns, path, snapshot))
        known = last_stops.setdefault(snapshot.engine_id, snapshot)
        if snapshot.process.stop_ns > known.process.stop_ns:
            last_stops[snapshot.engine_id] = snapshot
    victims = []
    for lives in by_name.values():
        if len(lives) <= KEEP_NEWEST:
            continue
        lives.sort(key=lambda life: life[0])
        older = lives[:-KEEP_NEWEST]
        crashes = (path for _, path, life in lives if life.outcome([last_stops[life.engine_id]]) != "stopped")
        first_crash = next(crashes, None)
        victims += [path for _, path, _ in older if path != first_crash]
    return victims


def _entries(directory: Path, names: Pattern[str]) -> Iterator[Path]:
    """Yield those of the first ``MAX_ENTRIES`` entries whose whole name fits; a bad directory has none."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            if names.fullmatch(entry.name):
                yield directory / entry.name


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
