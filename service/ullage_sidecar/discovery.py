"""Finds the segments in a directory and reads each; one that cannot be read never harms another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ullage.segment.layout import FILE_NAME, SUFFIX
from ullage.segment.reader import UnreadableError, read, relevance
from ullage.segment.text import clean
from ullage_sidecar.engines import ENGINES

if TYPE_CHECKING:
    from pathlib import Path

    from ullage.segment.snapshot import Snapshot

_PLUGIN_VARIABLES = " or ".join(engine.plugin_variable for engine in ENGINES)
NO_HOOK = (
    "check that the engine has ULLAGE_DIR set to this directory (the same volume in both containers), that its "
    "environment has ullage (`pip show ullage`; or PYTHONPATH, in which a pod's value replaces the image's own, names "
    f"the folder that ullage-install-hook filled), that {_PLUGIN_VARIABLES} is unset or names ullage, that "
    "ULLAGE_DISABLE is not set, and the engine's log for a line of ullage"
)
"""What to look at where no process writes a segment."""
_TOO_MANY = "too many for this sidecar ({} files), which reads those of living processes first, then the newest"
FEW_FILES = 64
"""Up to that many segments, all are read, whatever their order."""
MAX_FILES = 512
MAX_RECORDS = 32_768
"""Segments, and records in them, that are read at one moment: 64 full segments would take 220 MiB."""
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
    if len(paths) > FEW_FILES:
        # Only a file of the right name can be a segment: no number of others hides one.
        segments = [path for path in paths if FILE_NAME.fullmatch(path.name)]
        others = [path for path in paths if not FILE_NAME.fullmatch(path.name)]
        paths = sorted(segments[:MAX_LISTED], key=relevance, reverse=True) + others[:MAX_LISTED]
    records = 0
    for number, path in enumerate(paths):
        name = clean(path.name)
        if number >= MAX_FILES or records >= MAX_RECORDS:
            unreadable.append(Unreadable(name, "too_many", f"{name}: not read: {_TOO_MANY.format(len(paths))}"))
            continue
        try:
            snapshot = read(path, events=events)
        except FileNotFoundError:
            continue
        except UnreadableError as error:
            unreadable.append(Unreadable(name, error.reason, str(error)))
        except Exception as error:
            unreadable.append(Unreadable(name, "error", clean(f"{type(error).__name__}: {error}")))
        else:
            snapshots.append(snapshot)
            records += len(snapshot.buffers) + len(snapshot.claims) + len(snapshot.probes)
    return Found(tuple(snapshots), tuple(sorted(unreadable, key=lambda bad: bad.file)))
