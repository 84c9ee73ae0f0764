"""State: which processes there are, how they are or how they ended, and what adds up over their lives.

A process name outlives its processes: each incarnation has a segment of its own. ``History`` remembers
between readings what the segments alone do not say: when a death was seen, which came first, and what files that are
gone by now had counted.
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from ullage.diagnosis.joined import Contract, joined
from ullage.segment.layout import ProbeStatus

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


class Tally(NamedTuple):
    """One counter of a buffer, or of a contract, that adds up over the incarnations of a process name."""

    name: str
    what: Literal["violations", "exhaustions", "grows", "shrinks", "shape_checks", "shape_violations"]


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
    """

    at_ns: int
    shown: tuple[Life, ...]
    lives: tuple[Life, ...]
    totals: dict[str, Counter[Tally]]
    exits: Counter[tuple[str, str, str]]
    unreadable: tuple[Unreadable, ...]
    read_errors: Counter[str]
    contracts: tuple[tuple[str, Contract], ...] = ()


@dataclass
class History:
    """What is remembered between readings. Changed by ``observe`` alone."""

    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    endings: dict[str, Ending] = field(default_factory=dict)
    first_ends: dict[tuple[str, bool], int] = field(default_factory=dict)
    activity: dict[str, Activity] = field(default_factory=dict)
    tallies: dict[str, tuple[str, Counter[Tally]]] = field(default_factory=dict)
    gone: dict[str, Counter[Tally]] = field(default_factory=dict)
    exits: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    read_errors: Counter[str] = field(default_factory=Counter)
    known_bad: set[tuple[str, str]] = field(default_factory=set)
    lock_lost: set[str] = field(default_factory=set)


def observe(found: Found, history: History, settings: Settings, now_ns: int) -> tuple[State, History]:
    """Judge what was found; return the state, and the history after it. The given history is left alone."""
    history = deepcopy(history)
    snapshots = sorted(found.snapshots, key=lambda snapshot: snapshot.process.started_ns)
    _watch_activity(snapshots, history, now_ns)
    lock_lost = _lock_lost(snapshots, history, settings, now_ns)
    _name(snapshots, history)
    dead = [s for s in snapshots if not s.alive and s.incarnation not in lock_lost]
    _bury(dead, snapshots, history, settings, now_ns)
    _count_errors(found, history)
    totals = _add_up(snapshots, {bad.file.partition(".")[0] for bad in found.unreadable}, history)
    lives = tuple(_judge(snapshot, lock_lost, history, settings, now_ns) for snapshot in snapshots)
    shown = _shown(lives, settings, now_ns)
    state = State(
        at_ns=now_ns,
        shown=shown,
        lives=lives,
        totals=totals,
        exits=history.exits.copy(),
        unreadable=found.unreadable,
        read_errors=history.read_errors.copy(),
        contracts=_contracts(shown),
    )
    return state, history


def _contracts(shown: Iterable[Life]) -> tuple[tuple[str, Contract], ...]:
    engines: dict[str, list[Life]] = {}
    for life in shown:
        engines.setdefault(life.snapshot.engine_id, []).append(life)
    return tuple(
        (engine, contract)
        for engine, lives in sorted(engines.items())
        for contract in joined((life.process, life.snapshot.claims) for life in lives)
    )


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
    history.lock_lost = lost
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
        if base == snapshot.name:
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


def _add_up(snapshots: Iterable[Snapshot], unreadable: set[str], history: History) -> dict[str, Counter[Tally]]:
    present = set()
    for snapshot in snapshots:
        present.add(snapshot.incarnation)
        history.tallies[snapshot.incarnation] = (history.names[snapshot.incarnation][1], _tally(snapshot))
    for incarnation in [inc for inc in history.tallies if inc not in present and inc not in unreadable]:
        process, tally = history.tallies.pop(incarnation)
        history.gone.setdefault(process, Counter()).update(tally)
        history.names.pop(incarnation, None)
        history.endings.pop(incarnation, None)
        history.activity.pop(incarnation, None)
    totals: dict[str, Counter[Tally]] = {process: tally.copy() for process, tally in history.gone.items()}
    for process, tally in history.tallies.values():
        totals.setdefault(process, Counter()).update(tally)
    return totals


def _tally(snapshot: Snapshot) -> Counter[Tally]:
    """Return what a snapshot adds to the totals; what is zero adds nothing, and most is."""
    tally: Counter[Tally] = Counter()
    for buffer in snapshot.buffers:
        if buffer.out_of_bounds:
            tally[Tally(buffer.name, "violations")] = buffer.out_of_bounds
        if buffer.exhaustions:
            tally[Tally(buffer.name, "exhaustions")] = buffer.exhaustions
        if buffer.grows:
            tally[Tally(buffer.name, "grows")] = buffer.grows
        if buffer.shrinks:
            tally[Tally(buffer.name, "shrinks")] = buffer.shrinks
    for claim in snapshot.claims:
        if claim.tally:
            tally[Tally(claim.contract, "shape_checks")] = claim.checks
            tally[Tally(claim.contract, "shape_violations")] = claim.violations
    return tally


def _count_errors(found: Found, history: History) -> None:
    """Count each bad file once, and half-written records when they are caught; left by a death, once."""
    bad = {(item.file, item.reason) for item in found.unreadable}
    for _, reason in bad - history.known_bad:
        history.read_errors[reason] += 1
    left = {(s.incarnation, "half_written") for s in found.snapshots if s.half_written and not s.alive}
    caught = sum(
        s.half_written for s in found.snapshots if s.alive or (s.incarnation, "half_written") not in history.known_bad
    )
    if caught:
        history.read_errors["half_written"] += caught
    history.known_bad = bad | left
