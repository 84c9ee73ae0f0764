"""Finds the segments in a directory and reads each; one that cannot be read never harms another."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ullage.segment.layout import SUFFIX
from ullage.segment.reader import UnreadableError, read, relevance
from ullage.segment.text import clean

if TYPE_CHECKING:
    from pathlib import Path

    from ullage.segment.snapshot import Snapshot

NO_HOOK = (
    "check that the engine has ULLAGE_DIR set to this directory (the same volume in both containers), that its "
    "environment has ullage (`pip show ullage`; or PYTHONPATH, in which a pod's value replaces the image's own, names "
    "the folder that ullage-install-hook filled), that VLLM_PLUGINS is unset or names ullage, that ULLAGE_DISABLE is "
    "not set, and the engine's log for a line of ullage"
)
"""What to look at where no process writes a segment."""


MAX_FILES = 512
"""Segments that are read at one moment."""
MAX_LISTED = 16_384
"""Files among which they are chosen."""


@dataclass(frozen=True)
class Unreadable:
    """A file that looks like a segment by its name only."""

    file: str
    reason: str
    message: str


@dataclass(frozen=True)
class Found:
    """What a directory held at one moment."""

    snapshots: tuple[Snapshot, ...]
    unreadable: tuple[Unreadable, ...]


def find(directory: Path, *, events: bool = False) -> Found:
    """Read every segment in ``directory``; a missing directory holds none.

    ``events`` reads them, too.
    """
    snapshots: list[Snapshot] = []
    unreadable: list[Unreadable] = []
    try:
        paths = sorted(path for path in directory.iterdir() if path.name.endswith(SUFFIX))
    except FileNotFoundError:
        paths = []
    except OSError as error:
        return Found((), (Unreadable(str(directory), "directory", str(error)),))
    if len(paths) > MAX_FILES:
        paths, unreadable = _most_relevant(paths)
    for path in paths:
        try:
            snapshots.append(read(path, events=events))
        except FileNotFoundError:
            continue
        except UnreadableError as error:
            unreadable.append(Unreadable(clean(path.name), error.reason, str(error)))
        except Exception as error:
            unreadable.append(Unreadable(clean(path.name), "error", clean(f"{type(error).__name__}: {error}")))
    return Found(tuple(snapshots), tuple(unreadable))


def _most_relevant(paths: list[Path]) -> tuple[list[Path], list[Unreadable]]:
    """Choose among too many files: those that a process holds, then the newest. The others are not read."""
    listed = paths[:MAX_LISTED]
    chosen = set(heapq.nlargest(MAX_FILES, listed, key=relevance))
    why = f"not read: {len(paths)} files, of which {MAX_FILES} are read, the living and the newest; remove old ones"
    left_out = [clean(path.name) for path in listed if path not in chosen]
    return sorted(chosen), [Unreadable(name, "too_many", f"{name}: {why}") for name in left_out]
