"""State: which processes there are, how they are or how they ended, and what adds up over their lives.

A process name outlives its processes: each incarnation has a segment of its own. ``History`` remembers
between readings what the segments alone do not say: when a death was seen, which came first, and what files that are
gone by now had counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from ullage.segment.layout import ProbeStatus
from ullage.segment.snapshot import UNKNOWN
from ullage_sidecar.diagnosis.joined import Contract, by_contract, contract_of
from ullage_sidecar.rows import Rows
from ullage_sidecar.totals import Tally, added, remembered, tally_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ullage.segment.snapshot import Outcome, Snapshot
    from ullage_sidecar.discovery import Found, Unreadable
    from ullage_sidecar.settings import Settings

Condition = Literal["running", "stalled", "stopped", "killed", "crashed"]
CONDITIONS: tuple[Condition, ...] = ("running", "stalled", "stopped", "killed", "crashed")
OUTCOMES = ("stopped", "killed", "crashed")
CAUSES = ("primary", "consequential")
NS = 1_000_000_000
MAX_GONE = 256
"""Names of processes without a file that are remembered."""
ABSENT_S = 60
"""How long a file must be absent before it is taken for gone."""


class Ending(NamedTuple):
    """How a process ended. ``at_ns`` is when its death was seen: the kernel keeps no date of it."""

    outcome: Outcome
    cause: Literal["primary", "consequential"]
    at_ns: int


class Activity(NamedTuple):
    """What a process had counted at the last look, and when that last changed."""

    total: int
    steps: int
    moved_ns: int
    stepped_ns: int


@dataclass(frozen=True)
class Life:
    """One incarnation of a process.

    Attributes:
        process: Its name, unique among the living: the second living process of one name ends in ``-2``.
        ending: How it ended; None while it lives.
        lock_lost: Its lock is gone, but its counters move: it lives, and its death will not be noticed.
    """

    process: str
    snapshot: Snapshot
    condition: Condition
    ending: Ending | None = None
    lock_lost: bool = False


@dataclass(frozen=True)
class State:
    """Everything there is to know at one moment.

    Attributes:
        shown: One life per process name: the newest living one, else the newest dead one.
        lives: All of them, oldest first.
        totals: Per process name, what adds up over its incarnations.
        contracts: (engine id, contract), with the claims of all processes of the engine.
        exits: How often a process ended: (process, outcome, cause).
        read_errors: Files and records that could not be read so far, by reason.
        names: Process names that have a file, or had one not too long ago: nothing is remembered of others.
    """

    at_ns: int
    shown: tuple[Life, ...]
    lives: tuple[Life, ...]
    totals: dict[str, Counter[Tally]]
    exits: Counter[tuple[str, str, str]]
    unreadable: tuple[Unreadable, ...]
    read_errors: Counter[str]
    contracts: tuple[tuple[str, Contract], ...] = ()
    names: frozenset[str] = frozenset()


@dataclass
class History:
    """What is remembered between readings. ``observe`` returns a new one, and never changes one that it was given.

    Attributes:
        names: (Name in the segment, name that is served) by incarnation.
        first_ends: When the first process of an engine died (ns), by (engine id, whether it stopped in order); for as
            long as another death can follow from it.
        tallies: (Process name, what its segment counts) by incarnation.
        gone: What files that are gone had counted, by process name.
        unseen: Since when a process name has no file (ns); the longest gone first.
        absent: Since when (ns) a file is not there that may come back, by incarnation.
        skipped: (Records half written, records refused) at the last look, by incarnation.
        known_bad: (File, reason) of the files that could not be read at the last look.
        lock_lost: Incarnations that go on without their lock.
    """

    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    endings: dict[str, Ending] = field(default_factory=dict)
    first_ends: dict[tuple[str, bool], int] = field(default_factory=dict)
    activity: dict[str, Activity] = field(default_factory=dict)
    tallies: dict[str, tuple[str, Counter[Tally]]] = field(default_factory=dict)
    gone: dict[str, Counter[Tally]] = field(default_factory=dict)
    unseen: dict[str, int] = field(default_factory=dict)
    exits: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    read_errors: Counter[str] = field(default_factory=Counter)
    absent: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, tuple[int, int]] = field(default_factory=dict)
    known_bad: frozenset[tuple[str, str]] = frozenset()
    lock_lost: frozenset[str] = frozenset()

    def copy(self) -> History:
        """Return one with containers of its own. The values in them are replaced, never changed."""
        return replace(
            self,
            names=self.names.copy(),
            endings=self.endings.copy(),
            first_ends=self.first_ends.copy(),
            activity=self.activity.copy(),
            tallies=self.tallies.copy(),
            gone=self.gone.copy(),
            unseen=self.unseen.copy(),
            exits=self.exits.copy(),
            read_errors=self.read_errors.copy(),
            absent=self.absent.copy(),
            skipped=self.skipped.copy(),
        )


def observe(
    found: Found, history: History, settings: Settings, now_ns: int, rows: Rows | None = None
) -> tuple[State, History]:
    """Judge what was found.

    Args:
        found: The segments, as read at ``now_ns``.
        history: What the last look returned; it is left alone.
        settings: The settings in force.
        now_ns: Time of the look, in ns since the epoch.
        rows: Counts the processes and contracts that cannot be judged, and are left out.

    Returns:
        The state, and the history for the next look.
    """
    rows = rows or Rows()
    history = history.copy()
    snapshots = sorted(found.snapshots, key=lambda snapshot: snapshot.process.started_ns)
    _watch_activity(snapshots, history, now_ns)
    lock_lost = _lock_lost(snapshots, history, settings, now_ns)
    _name(snapshots, history)
    dead = [s for s in snapshots if not s.alive and s.incarnation not in lock_lost]
    _bury(dead, snapshots, history, settings, now_ns)
    _count_errors(found, history)
    totals = _add_up(found, history, settings, rows, now_ns)
    _forget(totals, history, settings, now_ns)
    lives = tuple(
        rows.each(
            "process",
            snapshots,
            lambda snapshot: _judge(snapshot, lock_lost, history, settings, now_ns),
            key=lambda snapshot: snapshot.incarnation,
        )
    )
    shown = _shown(lives, settings, now_ns)
    state = State(
        at_ns=now_ns,
        shown=shown,
        lives=lives,
        totals=totals,
        exits=history.exits.copy(),
        unreadable=found.unreadable,
        read_errors=history.read_errors.copy(),
        contracts=_contracts(shown, rows),
        names=frozenset(label for _, label in history.names.values()).union(history.unseen),
    )
    return state, history


def _contracts(shown: Iterable[Life], rows: Rows) -> tuple[tuple[str, Contract], ...]:
    engines: dict[str, list[Life]] = {}
    for life in shown:
        engines.setdefault(life.snapshot.engine_id, []).append(life)
    said = [
        (engine, name, claims)
        for engine, lives in sorted(engines.items())
        for name, claims in by_contract((life.process, life.snapshot.claims) for life in lives).items()
    ]
    return tuple(
        rows.each("contract", said, lambda one: (one[0], contract_of(one[1], one[2])), key=lambda one: one[:2])
    )


def _forget(totals: dict[str, Counter[Tally]], history: History, settings: Settings, now_ns: int) -> None:
    """Forget process names that have had no file for ``retention``, and the longest gone of more than ``MAX_GONE``."""
    present = {label for _, label in history.names.values()}
    for name in present & history.unseen.keys():
        del history.unseen[name]
    surplus = len(history.unseen) + len(history.absent) - MAX_GONE
    for position, (name, since_ns) in enumerate(list(history.unseen.items())):
        if position < surplus or now_ns - since_ns > settings.retention * NS:
            del history.unseen[name]
            history.gone.pop(name, None)
            totals.pop(name, None)
    kept = present | history.unseen.keys()
    for key in [key for key in history.exits if key[0] not in kept]:
        del history.exits[key]
    for group, first_ns in list(history.first_ends.items()):
        if now_ns - first_ns > settings.sibling_window * NS:
            del history.first_ends[group]


def _lock_lost(snapshots: Iterable[Snapshot], history: History, settings: Settings, now_ns: int) -> set[str]:
    """Return the incarnations without a lock that went on after they were taken for dead, and revive them."""
    lost = set()
    for snapshot in snapshots:
        incarnation = snapshot.incarnation
        moved_ns = history.activity[incarnation].moved_ns
        ending = history.endings.get(incarnation)
        went_on = moved_ns > ending.at_ns if ending is not None else incarnation in history.lock_lost
        if not snapshot.alive and went_on and now_ns - moved_ns < settings.stall_after * NS:
            history.endings.pop(incarnation, None)
            lost.add(incarnation)
    unseen = history.lock_lost - {snapshot.incarnation for snapshot in snapshots}
    history.lock_lost = frozenset(lost | (unseen & history.names.keys()))
    return lost


def _watch_activity(snapshots: Iterable[Snapshot], history: History, now_ns: int) -> None:
    """Note which processes went on. By our own clock: the dates in a segment are of a wall clock, which can jump."""
    for snapshot in snapshots:
        words = snapshot.process
        count = words.steps + sum(buffer.observations for buffer in snapshot.buffers)
        before = history.activity.get(snapshot.incarnation)
        if before is None:
            # The first look has nothing but the date; one in the future is as good as now.
            first_ns = min(words.step_ns or now_ns, now_ns)
            history.activity[snapshot.incarnation] = Activity(count, words.steps, first_ns, first_ns)
        else:
            moved_ns = now_ns if count != before.total else before.moved_ns
            stepped_ns = now_ns if words.steps != before.steps else before.stepped_ns
            history.activity[snapshot.incarnation] = Activity(count, words.steps, moved_ns, stepped_ns)


def _name(snapshots: Iterable[Snapshot], history: History) -> None:
    """Give each incarnation its process name; it keeps it, whoever else comes or goes."""
    # A name is free once its process is dead, also if nobody has noted that yet: it may have been restarted since.
    living = {s.incarnation for s in snapshots if s.alive} | history.lock_lost
    taken = {label for incarnation, (_, label) in history.names.items() if incarnation in living}
    for snapshot in snapshots:
        base, label = history.names.get(snapshot.incarnation, ("", ""))
        # A half-written identity has no process name: the process keeps the previous one.
        if base == snapshot.name or (base and snapshot.name == UNKNOWN and snapshot.half_written):
            continue
        taken.discard(label)
        label, number = snapshot.name, 1
        while snapshot.alive and label in taken:
            number += 1
            label = f"{snapshot.name}-{number}"
        if snapshot.alive:
            taken.add(label)
        history.names[snapshot.incarnation] = (snapshot.name, label)


def _bury(
    dead: Iterable[Snapshot], everybody: list[Snapshot], history: History, settings: Settings, now_ns: int
) -> None:
    """Record the endings seen for the first time. The first death of an engine is the primary one.

    Seen at once, the one that noticed no failure went first: the others outlived it and said so.
    """
    fresh = [snapshot for snapshot in dead if snapshot.incarnation not in history.endings]
    fresh.sort(key=lambda s: (s.process.failure_ns, s.last_sign_ns))
    for snapshot in fresh:
        outcome = snapshot.outcome(everybody)
        # A process that stopped in order is no reason for another one's death.
        group = (snapshot.engine_id, outcome == "stopped")
        first_ns = history.first_ends.get(group)
        follows = first_ns is not None and now_ns - first_ns <= settings.sibling_window * NS
        if not follows:
            history.first_ends[group] = now_ns
        ending = Ending(outcome, "consequential" if follows else "primary", now_ns)
        history.endings[snapshot.incarnation] = ending
        history.exits[history.names[snapshot.incarnation][1], outcome, ending.cause] += 1


def _judge(snapshot: Snapshot, lock_lost: set[str], history: History, settings: Settings, now_ns: int) -> Life:
    process = history.names[snapshot.incarnation][1]
    ending = history.endings.get(snapshot.incarnation)
    if ending is not None:
        return Life(process, snapshot, ending.outcome, ending)
    words = snapshot.process
    activity = history.activity[snapshot.incarnation]
    # With a probe off, steps may not be counted: then whatever else moves is a sign of life.
    off = any(probe.status is ProbeStatus.DISABLED for probe in snapshot.probes)
    since_ns = activity.moved_ns if off else activity.stepped_ns
    late = words.steps > 0 and now_ns - since_ns > settings.stall_after * NS
    stalled = late and words.running > 0 and not words.disabled_ns
    return Life(
        process,
        snapshot,
        "stalled" if stalled else "running",
        lock_lost=snapshot.incarnation in lock_lost,
    )


def _shown(lives: Iterable[Life], settings: Settings, now_ns: int) -> tuple[Life, ...]:
    chosen: dict[str, Life] = {}
    for life in lives:  # oldest first
        before = chosen.get(life.process)
        expired = life.ending is not None and now_ns - life.ending.at_ns > settings.retention * NS
        if not expired and (before is None or before.ending is not None or life.ending is None):
            chosen[life.process] = life
    return tuple(chosen[name] for name in sorted(chosen))


def _add_up(found: Found, history: History, settings: Settings, rows: Rows, now_ns: int) -> dict[str, Counter[Tally]]:
    tallies = rows.each(
        "process", found.snapshots, lambda snapshot: (snapshot.incarnation, tally_of(snapshot)), key=_incarnation
    )
    for incarnation, tally in tallies:
        history.tallies[incarnation] = (history.names[incarnation][1], tally)
    for incarnation in _absent(found, history, settings, now_ns):
        _, process = history.names.pop(incarnation)
        history.unseen.pop(process, None)
        history.unseen[process] = history.absent[incarnation]
        if incarnation in history.tallies:
            _, tally = history.tallies.pop(incarnation)
            history.gone[process] = remembered(added(history.gone.get(process), tally))
        for known in (history.endings, history.activity, history.skipped, history.absent):
            known.pop(incarnation, None)
    totals = history.gone.copy()
    for process, tally in history.tallies.values():
        totals[process] = added(totals.get(process), tally)
    return totals


def _incarnation(snapshot: Snapshot) -> str:
    return snapshot.incarnation


def _absent(found: Found, history: History, settings: Settings, now_ns: int) -> list[str]:
    """Return the incarnations whose files are gone for good: for a minute, or the longest gone of very many.

    A directory that is away for a moment, or cannot be listed, comes back with the same files.
    """
    if any(bad.reason == "directory" for bad in found.unreadable):
        return []
    here = {snapshot.incarnation for snapshot in found.snapshots}
    here |= {bad.file.partition(".")[0] for bad in found.unreadable}
    for incarnation in here & history.absent.keys():
        del history.absent[incarnation]
    for incarnation in history.names.keys() - here:
        history.absent.setdefault(incarnation, now_ns)
    surplus = len(history.absent) - MAX_GONE
    hold_ns = min(ABSENT_S, settings.retention) * NS
    return [
        incarnation
        for position, (incarnation, since_ns) in enumerate(history.absent.items())
        if position < surplus or now_ns - since_ns > hold_ns
    ]


def _count_errors(found: Found, history: History) -> None:
    """Count each bad file once, and of the records that are skipped those more than at the last look."""
    bad = frozenset((item.file, item.reason) for item in found.unreadable)
    for _, reason in bad - history.known_bad:
        history.read_errors[reason] += 1
    history.known_bad = bad
    for snapshot in found.snapshots:
        now = (snapshot.half_written, snapshot.refused)
        before = history.skipped.get(snapshot.incarnation, (0, 0))
        for reason, count, known in zip(("half_written", "refused"), now, before, strict=True):
            if count > known:
                history.read_errors[reason] += count - known
        history.skipped[snapshot.incarnation] = now
