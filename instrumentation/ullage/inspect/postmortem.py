"""What is known of a death: who went first, where the process was, what was full, what is new since the last time.

Pure, and standard library only: the sidecar tells it, and ``ullage inspect`` where no sidecar is left.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.segment.layout import Kind, Phase, enum_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ullage.segment.snapshot import Buffer, Outcome, Snapshot

LINE_BYTES = 8192
TEXT_LENGTH = 128
"""Characters of a text in a line that is too long: JSON writes one in 12 bytes at most, and four are always there."""
NEAREST = 5
EVENTS = 8
_LISTS = ("changed", "events", "order", "violations", "nearest")
_OWN = frozenset({"engine_id", "incarnation"})


class Death(NamedTuple):
    """A process that is dead. ``seen_ns``: when that was seen, 0 if it is not known; ``cause`` likewise."""

    process: str
    snapshot: Snapshot
    outcome: Outcome
    cause: str = ""
    seen_ns: int = 0


class Died(NamedTuple):
    """A place in the order of an engine's deaths. ``last_sign_ns``: the last thing it is known to have done."""

    process: str
    outcome: Outcome
    cause: str
    last_sign_ns: int


@dataclass(frozen=True)
class Full:
    """A buffer at its fullest. ``ratio`` is the high-water mark's share of the capacity then in force."""

    buffer: str
    unit: str
    used: int
    high_water: int
    capacity: int
    ratio: float
    exhaustions: int
    limit: str


@dataclass(frozen=True)
class Damage:
    """A buffer or a contract that was violated. ``worst_index`` is None for a contract."""

    what: str
    count: int
    worst_index: int | None


@dataclass(frozen=True)
class Changed:
    """Something that was different in the incarnation before: of its identity, a capacity, or a claim's input."""

    what: str
    before: str
    now: str


@dataclass(frozen=True)
class PostMortem:
    """What is known of one death.

    Attributes:
        order: The dead of the same engine, in the order in which they died.
        phase: The function of the engine it died in; empty if it was in none that is watched.
        step_age_ns: How long the step it died in had been going on when the death was seen; None if it died between
            steps, or the moment is not known.
        batch_requests: Of that step; 0 if not known.
        batch_tokens: Likewise.
        nearest: The buffers that were nearest to full, worst first; fixed ones, which always are, left out.
        violations: Out-of-bounds and shape violations, most first.
        changed: What differs from the incarnation before; empty also where there was none.
        events: The last ones, newest last: (date in ns, kind, subject, detail).
    """

    process: str
    incarnation: str
    outcome: Outcome
    cause: str
    seen_ns: int
    order: tuple[Died, ...]
    steps: int
    last_step_ns: int
    phase: str
    step_age_ns: int | None
    batch_requests: int
    batch_tokens: int
    nearest: tuple[Full, ...]
    violations: tuple[Damage, ...]
    changed: tuple[Changed, ...]
    events: tuple[tuple[int, str, str, str], ...]


def post_mortem(death: Death, engine: Iterable[Death], before: Snapshot | None = None) -> PostMortem:
    """Return what is known of ``death``.

    Args:
        death: What died; its snapshot should have been read with events.
        engine: All deaths of the same engine, this one among them.
        before: The incarnation of the same process before this one, if its segment is still there.
    """
    snapshot = death.snapshot
    words = snapshot.process
    inside = bool(words.step_begin_ns)
    phase = enum_of(Phase, words.phase)
    return PostMortem(
        process=death.process,
        incarnation=snapshot.incarnation,
        outcome=death.outcome,
        cause=death.cause,
        seen_ns=death.seen_ns,
        order=tuple(
            Died(one.process, one.outcome, one.cause, one.snapshot.last_sign_ns) for one in sorted(engine, key=_order)
        ),
        steps=words.steps,
        last_step_ns=words.step_ns,
        phase="" if phase is Phase.NONE else phase.name.lower(),
        step_age_ns=max(0, death.seen_ns - words.step_begin_ns) if inside and death.seen_ns else None,
        batch_requests=words.batch_requests if inside else 0,
        batch_tokens=words.batch_tokens if inside else 0,
        nearest=_nearest(snapshot.buffers),
        violations=_violations(snapshot),
        changed=_changed(before, snapshot) if before is not None else (),
        events=tuple(
            (event.time_ns, event.kind.name.lower(), event.subject, event.detail) for event in snapshot.events[-EVENTS:]
        ),
    )


def line(found: PostMortem) -> str:
    """Return it as one line of JSON in ASCII, of at most ``LINE_BYTES``.

    What does not fit is cut: first long texts, then the list that takes the most room, again and again by half; its
    least telling entries go first, and are counted. A container's log is what outlives its pod; the runtime splits
    lines that are longer than 16 KiB.
    """
    document: dict[str, Any] = {"ullage": "post_mortem", **asdict(found)}
    document["order"] = [died._asdict() for died in found.order]
    if len(_compact(document)) > LINE_BYTES:
        document = _cut(document)
    left_out: dict[str, int] = {}
    while len(_compact(document)) > LINE_BYTES:
        name = max(_LISTS, key=lambda key: len(_compact(document[key])))
        entries = document[name]
        kept = len(entries) // 2
        document[name] = entries[len(entries) - kept :] if name == "events" else entries[:kept]
        left_out[name] = left_out.get(name, 0) + len(entries) - kept
        document["left_out"] = left_out
    return _compact(document)


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _cut(value: Any) -> Any:
    """Return ``value`` with its texts cut to ``TEXT_LENGTH`` characters."""
    if isinstance(value, str):
        return value[:TEXT_LENGTH]
    if isinstance(value, dict):
        return {key: _cut(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cut(item) for item in value]
    return value


def _order(death: Death) -> tuple[int, int, int]:
    """Seen at once, the one that noticed no failure went first: the others outlived it and said so."""
    return death.seen_ns, death.snapshot.process.failure_ns, death.snapshot.last_sign_ns


def _nearest(buffers: Sequence[Buffer]) -> tuple[Full, ...]:
    ratios = [
        (buffer.high_water_ratio, buffer)
        for buffer in buffers
        if buffer.high_water_ratio and buffer.kind is not Kind.FIXED and not (buffer.inventory or buffer.closed)
    ]
    ratios.sort(key=lambda entry: (-entry[0], entry[1].name))
    return tuple(
        Full(
            buffer=buffer.name,
            unit=buffer.unit,
            used=buffer.used,
            high_water=buffer.high_water,
            capacity=buffer.capacity,
            ratio=round(ratio, 4),
            exhaustions=buffer.exhaustions,
            limit=buffer.limit,
        )
        for ratio, buffer in ratios[:NEAREST]
    )


def _violations(snapshot: Snapshot) -> tuple[Damage, ...]:
    found = [Damage(b.name, b.out_of_bounds, b.worst_index) for b in snapshot.buffers if b.out_of_bounds]
    found += [Damage(c.contract, c.violations, None) for c in snapshot.claims if c.tally and c.violations]
    return tuple(sorted(found, key=lambda damage: (-damage.count, damage.what)))


def _changed(before: Snapshot, now: Snapshot) -> tuple[Changed, ...]:
    """What the two say of themselves, and disagree on; what only one says is news of the hook, not of the engine."""
    old, new = _said(before), _said(now)
    return tuple(Changed(what, old[what], new[what]) for what in new if what in old and old[what] != new[what])


def _said(snapshot: Snapshot) -> dict[str, str]:
    said = {name: str(value) for name, value in snapshot.identity.items() if name not in _OWN}
    said |= {
        f"capacity of {b.name}": f"{b.capacity} {b.unit}" for b in snapshot.buffers if not (b.inventory or b.closed)
    }
    for claim in snapshot.claims:
        if not claim.witness:  # a batch is no configuration
            said |= {f"{name} of {claim.source}": str(value) for name, value in claim.inputs.items()}
    return said
