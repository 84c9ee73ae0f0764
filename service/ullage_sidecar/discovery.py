"""Finds the segments in a directory and reads each; one that cannot be read never harms another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ullage.segment.layout import SUFFIX
from ullage.segment.reader import UnreadableError, read

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
    snapshots, unreadable = [], []
    try:
        paths = sorted(path for path in directory.iterdir() if path.name.endswith(SUFFIX))
    except FileNotFoundError:
        paths = []
    except OSError as error:
        return Found((), (Unreadable(str(directory), "directory", str(error)),))
    for path in paths:
        try:
            snapshots.append(read(path, events=events))
        except FileNotFoundError:
            continue
        except UnreadableError as error:
            unreadable.append(Unreadable(path.name, error.reason, str(error)))
        except Exception as error:
            unreadable.append(Unreadable(path.name, "error", f"{type(error).__name__}: {error}"))
    return Found(tuple(snapshots), tuple(unreadable))
