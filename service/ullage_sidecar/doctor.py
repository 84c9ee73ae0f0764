"""``ullage doctor``: whether this sidecar and the hooks beside it are as they should be, and what to do if not.

Made for ``kubectl exec`` in the sidecar: it looks where the sidecar looks, with the sidecar's settings and rights.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from typing import TYPE_CHECKING, TextIO

from ullage import __version__
from ullage.segment import file_system
from ullage.segment.layout import SUFFIX
from ullage_sidecar import discovery
from ullage_sidecar.checkup import FORMAT, Finding, Volume, checks
from ullage_sidecar.state import History, State, observe

if TYPE_CHECKING:
    from pathlib import Path

    from ullage_sidecar.settings import Settings

FINE, WRONG, BLIND = 0, 1, 2
SECOND_LOOK_S = 1.0


def doctor(settings: Settings, problems: list[str], out: TextIO, *, as_json: bool = False) -> int:
    """Write what is found. ``problems``: what is wrong with the settings.

    Returns:
        0 if nothing is wrong, 1 if something is, 2 if the directory cannot be looked at.
    """
    try:
        volume = _look_at(settings.dir)
    except OSError as error:
        do = "mount the volume of the segments there, or set ULLAGE_DIR (--dir) to where it is"
        found = [Finding("wrong", "volume", str(settings.dir), error.strerror or str(error), do)]
        status = BLIND
    else:
        found = list(checks(volume, _state(settings), problems))
        status = WRONG if any(one.verdict == "wrong" for one in found) else FINE
    if as_json:
        findings = [dataclasses.asdict(one) for one in found]
        json.dump({"status": status, "sidecar": __version__, "format": FORMAT, "findings": findings}, out, indent=2)
        out.write("\n")
    else:
        out.write(f"ullage {__version__}, format {FORMAT}\n")
        for one in found:
            out.write(f"{one.verdict:<5}  {one.what:<11}  {one.where}: {one.says}\n")
            if one.do:
                out.write(f"       -> {one.do}\n")
    return status


def _look_at(directory: Path) -> Volume:
    with os.scandir(directory) as entries:
        writers = {entry.stat(follow_symlinks=False).st_uid for entry in entries if entry.name.endswith(SUFFIX)}
    status, room = directory.stat(), os.statvfs(directory)
    return Volume(
        path=directory,
        kind=file_system.kind_of(directory),
        free=room.f_bavail * room.f_frsize,
        mode=status.st_mode,
        owner=(status.st_uid, status.st_gid),
        us=(os.geteuid(), os.getegid()),
        writers=tuple(sorted(writers)),
        writable=os.access(directory, os.W_OK),
        disabled=(directory / "disable").exists(),
    )


def _state(settings: Settings) -> State:
    """Look twice where a lock is gone: a process that goes on without it is not dead."""
    found = discovery.find(settings.dir)
    state, history = observe(found, History(), settings, time.time_ns())
    if all(snapshot.alive for snapshot in found.snapshots):
        return state
    time.sleep(SECOND_LOOK_S)
    state, _ = observe(discovery.find(settings.dir), history, settings, time.time_ns())
    return state
