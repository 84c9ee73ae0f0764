"""Checks of an installation, for ``ullage doctor``. Pure: what was seen in, findings out.

Each check yields findings with a verdict, what it is about, what is so, and what to do if that is wrong. Of the
engine's side a check knows only what stands in the segments.
"""

from __future__ import annotations

import stat
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ullage import __version__
from ullage.segment import file_system, layout
from ullage.segment.layout import ProbeStatus
from ullage_sidecar.discovery import NO_HOOK
from ullage_sidecar.engines import ENGINES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ullage_sidecar.state import Life, State

Verdict = Literal["ok", "note", "wrong"]
FORMAT = f"{layout.MAJOR}.{layout.MINOR}"


@dataclass(frozen=True)
class Finding:
    """What one check found. ``do`` is what to do, where something is wrong or may be."""

    verdict: Verdict
    what: str
    where: str
    says: str
    do: str = ""


@dataclass(frozen=True)
class Volume:
    """The directory of the segments, as the sidecar finds it.

    Attributes:
        kind: The type of its file system; None if the kernel does not say.
        free: Bytes that can still be written.
        mode: Type and permissions, as ``stat`` has them.
        owner: User and group that it belongs to.
        us: User and group of this process.
        writers: The users whose segments are there.
        writable: Whether this process may write there.
        disabled: Whether the file is there that switches hooks off.
    """

    path: Path
    kind: str | None
    free: int
    mode: int
    owner: tuple[int, int]
    us: tuple[int, int]
    writers: tuple[int, ...]
    writable: bool
    disabled: bool


def checks(volume: Volume, state: State, problems: list[str]) -> Iterator[Finding]:
    """Yield what all checks find. ``problems``: what is wrong with the settings."""
    yield from _volume(volume)
    for problem in problems:
        yield Finding("wrong", "settings", "sidecar", problem, "mend it; the default holds meanwhile")
    yield from _files(state)
    living = [life for life in state.shown if life.ending is None]
    if not living:
        yield _nobody(volume, state)
    for life in living:
        yield from _hook(life)
        yield from _way_in(life)
        yield from _probes(life)


def _volume(volume: Volume) -> Iterator[Finding]:
    where = str(volume.path)
    if volume.kind in file_system.IN_MEMORY:
        yield Finding("ok", "file system", where, f"{volume.kind}")
    else:
        kind = volume.kind or "of an unknown kind"
        yield Finding(
            "note", "file system", where, f"{kind}, not tmpfs", "stores can stall; use a memory-backed volume"
        )
    room = f"{volume.free} bytes are free, a segment takes {layout.FILE_BYTES}"
    if volume.free < layout.FILE_BYTES:
        do = "the next process that starts is not watched: raise the volume's size limit"
        yield Finding("wrong", "room", where, room, do)
    else:
        yield Finding("ok", "room", where, room)
    yield _writers(volume)
    if volume.disabled:
        do = f"remove {volume.path / 'disable'}, and start the engine again"
        yield Finding("wrong", "switch", where, "a file named disable switches every hook off", do)


def _writers(volume: Volume) -> Finding:
    mode = stat.S_IMODE(volume.mode)
    user, group = volume.owner
    ours = "this process ({}:{}) {}".format(*volume.us, "can write there, too" if volume.writable else "only reads")
    says = f"mode {mode:04o}, owner {user}:{group}; {ours}"
    if volume.writers:
        says += f"; segments of user {', '.join(map(str, volume.writers))}"
    if mode & stat.S_IWOTH or volume.writers:
        return Finding("ok", "permissions", str(volume.path), says)
    who = f"user {user}" + (f" and group {group}" if mode & stat.S_IWGRP else "")
    return Finding("note", "permissions", str(volume.path), says, f"only {who} can write: the engine must be that")


def _files(state: State) -> Iterator[Finding]:
    for bad in state.unreadable:
        do = {
            "version": "hook and sidecar must be of one major version of the format: install the same ullage in both",
            "permission": "let everybody read it (the hook makes segments with mode 0644)",
            "copy": "copy segments to another directory, and read them there with `ullage inspect`",
            "too_many": "remove the segments of processes that are long dead",
        }.get(bad.reason, "if no process writes it any more, remove it")
        yield Finding("wrong", "segment", bad.file, bad.message, do)


def _nobody(volume: Volume, state: State) -> Finding:
    dead = [f"{life.process} ({life.condition})" for life in state.shown]
    says = f"none is alive; dead: {', '.join(dead)}" if dead else "none was ever here"
    return Finding("wrong", "hook", str(volume.path), says, NO_HOOK)


def _hook(life: Life) -> Iterator[Finding]:
    identity, words = life.snapshot.identity, life.snapshot.process
    version = identity.get("hook_version", "of an unknown version")
    says = f"hook {version}, format {life.snapshot.version}, Python {identity.get('python', '?')}, pid {words.pid}"
    if version == __version__ and life.snapshot.version == FORMAT:
        yield Finding("ok", "hook", life.process, says)
    else:
        do = f"the sidecar is {__version__}, format {FORMAT}: it reads what both know; bring them together when you can"
        yield Finding("note", "hook", life.process, says, do)
    if life.lock_lost:
        do = "its death will not be noticed; does the volume's file system know locks (a network one may not)?"
        yield Finding("wrong", "lock", life.process, "nobody holds it, but the process goes on", do)
    else:
        yield Finding("ok", "lock", life.process, "held: the process lives")
    if words.disabled_ns:
        yield Finding("wrong", "switch", life.process, "the hook was switched off", "start the engine again")
    if words.hook_errors:
        do = "the engine is not affected; its log has the first of each kind: please report it"
        yield Finding("wrong", "errors", life.process, f"{words.hook_errors} errors of the hook", do)
    dropped = words.dropped_buffers + words.dropped_claims + words.dropped_probes
    if dropped:
        yield Finding(
            "note", "records", life.process, f"{dropped} did not fit into the segment", "they are not watched"
        )


def _way_in(life: Life) -> Iterator[Finding]:
    """How the hook got in: by the folder, or by what the image has; and whether its engine lets plugins in."""
    identity = life.snapshot.identity
    if "hook_path" in identity:
        path = identity.get("pythonpath", "")
        says = f"imported from {identity['hook_path']}; PYTHONPATH is {path or 'not set'}"
        yield Finding("ok", "way in", life.process, says)
    plugin_variables = str(identity.get("plugin_variables", ""))
    for engine in ENGINES:
        allowed = engine.allowed_plugins(plugin_variables)
        if allowed is None:
            continue
        says = f"{engine.plugin_variable} is {allowed!r}"
        if "ullage" in allowed.split(","):
            yield Finding("ok", "plugins", life.process, says)
        else:
            do = "name ullage in it, or unset it: the engine does not load the hook otherwise"
            yield Finding("wrong", "plugins", life.process, says, do)


def _probes(life: Life) -> Iterator[Finding]:
    count = Counter(probe.status for probe in life.snapshot.probes)
    if count[ProbeStatus.INSTALLED]:
        yield Finding("ok", "probes", life.process, f"{count[ProbeStatus.INSTALLED]} installed")
    for probe in life.snapshot.probes:
        if probe.status is ProbeStatus.INSTALLED:
            continue
        says = f"{probe.name} is {probe.status.name.lower()}: {probe.detail or 'no reason is given'}"
        if probe.status is ProbeStatus.ABSENT:
            yield Finding("note", "probes", life.process, says, "what it counts does not exist in this engine")
        else:
            yield Finding("wrong", "probes", life.process, says, "what it counts is not watched; please report it")
