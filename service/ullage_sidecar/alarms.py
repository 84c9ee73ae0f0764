"""Alarms: which conditions hold, since when, and which are over. Pure: state and memory in, memory out.

A warning is a state, not an event: one that was true before anybody looked is listed all the same. It is
cleared when its condition has been absent for ``clear_hold``; at once when its process is gone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from ullage.segment.layout import OCCUPANCY_STEPS, Kind, ProbeStatus
from ullage_sidecar.diagnosis.joined import MAX_EXPLAINED
from ullage_sidecar.rows import Rows
from ullage_sidecar.state import NS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ullage.segment.agreement import Disagreement
    from ullage.segment.snapshot import Buffer
    from ullage_sidecar.diagnosis.joined import Contract
    from ullage_sidecar.settings import Settings
    from ullage_sidecar.state import Life, State

Severity = Literal["info", "warning", "critical"]
MESSAGE_LENGTH = 900
"""Characters of a list in a message: with what is said around it, a message has at most 1,000."""
MAX_RAISED = 256
"""Kinds of warning that are counted of one process; a buffer's name is part of one."""
_LOWER_EDGES = (0.0, *OCCUPANCY_STEPS[:-1])


class Key(NamedTuple):
    """What a warning is about. Empty where it does not apply."""

    process: str
    buffer: str
    contract: str
    reason: str


@dataclass(frozen=True)
class Warning_:  # noqa: N801  Warning is a builtin
    """A condition that holds, or held until shortly ago.

    Attributes:
        since_ns: When it began.
        last_ns: When it last held.
        message: What is wrong, with numbers.
        adopted: It held already when the sidecar first looked.
    """

    key: Key
    severity: Severity
    message: str
    since_ns: int
    last_ns: int
    adopted: bool = False


class Change(NamedTuple):
    """A warning that was raised, adopted or cleared."""

    what: Literal["raised", "adopted", "cleared"]
    warning: Warning_


class Seen(NamedTuple):
    """What a buffer had counted at the last look, and when its present series of exhaustions began and went on."""

    above: int
    high_water: int
    exhaustions: int
    series_ns: int
    latest_ns: int


@dataclass(frozen=True)
class Alarms:
    """The warnings that are active, and what is remembered to judge the next moment."""

    active: dict[Key, Warning_] = field(default_factory=dict)
    raised: Counter[tuple[Key, Severity]] = field(default_factory=Counter)
    seen: dict[tuple[str, str], Seen] = field(default_factory=dict)
    looked_ns: int = 0


class _Holds(NamedTuple):
    """A condition that holds now. ``keeps`` only: not enough to raise a warning, but to keep one."""

    key: Key
    severity: Severity
    message: str
    since_ns: int
    keeps: bool = False


def evaluate(before: Alarms, state: State, settings: Settings, rows: Rows | None = None) -> tuple[Alarms, list[Change]]:
    """Return the alarms that hold in ``state``, and what changed.

    Args:
        before: The alarms of the last look.
        state: What was found now.
        settings: The settings in force.
        rows: Counts the processes and contracts whose conditions cannot be judged; they have no warnings.
    """
    rows = rows or Rows()
    judged = rows.each(
        "warning", state.shown, lambda life: _judge(before, life, settings, state.at_ns), key=lambda life: life.process
    )
    conditions = [holds for _, found in judged for holds in found]
    of_contracts = rows.each(
        "warning",
        state.contracts,
        lambda entry: list(_contract_conditions(entry[1], state.at_ns)),
        key=lambda entry: (entry[0], entry[1].name),
    )
    conditions += [holds for found in of_contracts for holds in found]
    conditions += _unreadable(state)
    active: dict[Key, Warning_] = {}
    raised = _remembered(before, state)
    changes = []
    first = not before.looked_ns
    for holds in conditions:
        known = before.active.get(holds.key)
        if known is not None:
            message = known.message if holds.keeps else holds.message
            active[holds.key] = replace(known, message=message, severity=holds.severity, last_ns=state.at_ns)
        elif not holds.keeps:
            warning = Warning_(holds.key, holds.severity, holds.message, holds.since_ns, state.at_ns, adopted=first)
            active[holds.key] = warning
            changes.append(Change("adopted" if first else "raised", warning))
            if not first:
                raised[holds.key, holds.severity] += 1
    living = {life.process for life in state.shown if life.ending is None}
    for key, warning in before.active.items():
        if key not in active:
            fresh = state.at_ns - warning.last_ns < settings.clear_hold * NS
            if fresh and key.reason == "near_capacity" and key.process in living:
                active[key] = warning
            else:
                changes.append(Change("cleared", warning))
    seen = {key: value for found, _ in judged for key, value in found.items()}
    return Alarms(active, raised, seen, state.at_ns), changes


def _remembered(before: Alarms, state: State) -> Counter[tuple[Key, Severity]]:
    """Return the counts that are kept: while the process is known, of each at most the latest ``MAX_RAISED``."""
    kept: Counter[tuple[Key, Severity]] = Counter()
    of_process: Counter[str] = Counter()
    for entry, count in reversed(before.raised.items()):
        key, _ = entry
        of_process[key.process] += 1
        if key in before.active or (
            of_process[key.process] <= MAX_RAISED and (not key.process or key.process in state.names)
        ):
            kept[entry] = count
    return Counter(dict(reversed(kept.items())))


def _listed(parts: Sequence[str], left_out: int = 0) -> str:
    """Join ``parts`` into at most ``MESSAGE_LENGTH`` characters; say how many, with those ``left_out``, do not fit."""
    room = MESSAGE_LENGTH - len("; and 9,999,999 more")
    text = ""
    for count, part in enumerate(parts):
        longer = f"{text}; {part}" if text else part
        if len(longer) > room:
            left_out += len(parts) - count
            text = text or part[:room]
            break
        text = longer
    return f"{text}; and {left_out:,} more" if left_out else text


def _look(before: Alarms, life: Life, buffer: Buffer, settings: Settings, now_ns: int) -> Seen:
    last = _last(before, life, buffer)
    above = _above(buffer, settings.ratio_of(buffer))
    more = buffer.exhaustions > (last.exhaustions if last else 0)
    if last is None:  # the first look: what the segment's dates say, if they are no later than now
        series_ns, latest_ns = (min(ns, now_ns) for ns in (buffer.exhausted_first_ns, buffer.exhausted_last_ns))
    else:
        latest_ns = now_ns if more else last.latest_ns
        series_ns = last.series_ns or (now_ns if more else 0)
    if not buffer.exhaustions or now_ns - latest_ns > settings.clear_hold * NS:
        series_ns = 0
    return Seen(above, buffer.high_water, buffer.exhaustions, series_ns, latest_ns)


def _last(before: Alarms, life: Life, buffer: Buffer) -> Seen | None:
    """What was seen of a buffer last; zeros for one that began after the sidecar did; None at the first look."""
    last = before.seen.get((life.snapshot.incarnation, buffer.name))
    if last is None and before.looked_ns:
        return Seen(0, 0, 0, 0, 0)
    return last


def _above(buffer: Buffer, ratio: float) -> int:
    """Observations above ``ratio`` of the capacity, as exactly as the occupancy steps tell."""
    counts = zip(_LOWER_EDGES, buffer.occupancy, strict=True)
    return buffer.beyond + sum(count for lower, count in counts if lower >= ratio)


def _judge(
    before: Alarms, life: Life, settings: Settings, now_ns: int
) -> tuple[dict[tuple[str, str], Seen], list[_Holds]]:
    """Return what was seen of the buffers of a process, and the conditions that hold of it."""
    seen = {}
    found = list(_process_conditions(life, settings))
    for buffer in life.snapshot.buffers:
        if buffer.inventory:
            continue
        now = _look(before, life, buffer, settings, now_ns)
        seen[life.snapshot.incarnation, buffer.name] = now
        found += _violations(life, buffer)
        if life.ending is None and not buffer.closed:
            found += _near_capacity(life, buffer, now, _last(before, life, buffer), settings, now_ns)
            found += _exhaustion(life, buffer, now, settings)
    return seen, found


def _unreadable(state: State) -> Iterator[_Holds]:
    if state.unreadable:
        message = _listed([bad.message for bad in state.unreadable])
        yield _Holds(Key("", "", "", "segment_unreadable"), "warning", message, state.at_ns)


def _process_conditions(life: Life, settings: Settings) -> Iterator[_Holds]:
    words = life.snapshot.process

    def key(reason: str) -> Key:
        return Key(life.process, "", "", reason)

    if life.ending is not None and life.ending.cause == "primary" and life.ending.outcome != "stopped":
        message = f"{life.process} was {life.ending.outcome} after {words.steps} steps"
        yield _Holds(key("process_died"), "warning", message, life.ending.at_ns)
    if life.condition == "stalled":
        message = f"no step for {settings.stall_after:g} s although {words.running} requests run"
        yield _Holds(key("engine_stalled"), "warning", message, words.step_ns)
    if life.lock_lost:
        yield _Holds(key("lock_lost"), "warning", "the lock is gone, the process is not", words.step_ns)
    if words.hook_errors and life.ending is None:
        yield _Holds(key("hook_errors"), "warning", f"{words.hook_errors} errors in the hook", words.started_ns)
    off = [probe for probe in life.snapshot.probes if probe.status is ProbeStatus.DISABLED]
    if off and life.ending is None:
        message = _listed([f"{probe.name} is off: {probe.detail}" for probe in off])
        yield _Holds(key("probe_disabled"), "warning", message, words.started_ns)


def _contract_conditions(contract: Contract, now_ns: int) -> Iterator[_Holds]:
    for process in contract.processes:
        found = contract.disagreements_of(process)
        if found:
            pairs = _listed([_pair(one) for one in found[:MAX_EXPLAINED]], len(found[MAX_EXPLAINED:]))
            more = f"; {contract.uncompared:,} other sizes are not compared" if contract.uncompared else ""
            key = Key(process, "", contract.name, "shape_disagreement")
            yield _Holds(key, "warning", f"claims do not fit: {pairs}{more}", now_ns)
        _, violations, first_ns = contract.counts.get(process, (0, 0, 0))
        if violations:
            key = Key(process, "", contract.name, "shape_violation")
            yield _Holds(key, "critical", f"{violations} shapes did not satisfy the contract", first_ns)


def _pair(found: Disagreement) -> str:
    one, other = found.provider, found.requirement
    more = len(found.providers) + len(found.requirements) - 2
    alike = f" ({more:,} claims say the same)" if more > 0 else ""
    return f"{one.source} of {one.process} {list(one.shape)}, {other.source} {list(other.shape)}{alike}"


def _violations(life: Life, buffer: Buffer) -> Iterator[_Holds]:
    if buffer.out_of_bounds:
        key = Key(life.process, buffer.name, "", "bounds_violation")
        message = (
            f"{buffer.out_of_bounds} out of bounds, worst index {buffer.worst_index}; "
            f"the capacity is {buffer.capacity} {buffer.unit} now"
        )
        yield _Holds(key, "critical", message, buffer.violation_ns)


def _near_capacity(
    life: Life, buffer: Buffer, now: Seen, last: Seen | None, settings: Settings, now_ns: int
) -> Iterator[_Holds]:
    """Near its capacity: now, or in a burst since the last look."""
    if buffer.kind is Kind.FIXED or not buffer.capacity:
        return
    line = settings.ratio_of(buffer)
    ratio = buffer.used / buffer.capacity
    burst = last is not None and now.above > last.above
    peak = last is not None and now.high_water > last.high_water and now.high_water >= line * buffer.capacity
    near = ratio >= line or burst or peak
    if not near and ratio < min(settings.clear_below, line):
        return
    worst = now.high_water if peak else buffer.used
    at = "in a burst" if burst and ratio < line and not peak else f"at {worst / buffer.capacity:.0%}"
    special = settings.buffers.get(buffer.name)
    severity: Severity = "info" if buffer.kind is Kind.MANAGED else "warning"
    yield _Holds(
        Key(life.process, buffer.name, "", "near_capacity"),
        (special and special.severity) or severity,
        f"{at} of {buffer.capacity} {buffer.unit}, used {buffer.used}, high water {buffer.high_water}",
        # The first look finds what began before it: not later than the highest mark was set.
        now_ns if last is not None else min(buffer.high_water_ns, now_ns),
        keeps=not near,
    )


def _exhaustion(life: Life, buffer: Buffer, now: Seen, settings: Settings) -> Iterator[_Holds]:
    """Exhaustions that went on for ``exhaustion_hold``, with no pause longer than ``clear_hold``."""
    if not now.series_ns or now.latest_ns - now.series_ns < settings.exhaustion_hold * NS:
        return
    yield _Holds(
        Key(life.process, buffer.name, "", "exhaustion"),
        "warning",
        f"{buffer.exhaustions} exhaustions, going on for {settings.exhaustion_hold:g} s or more",
        now.series_ns,
    )
