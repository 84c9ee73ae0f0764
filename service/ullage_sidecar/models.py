"""What the API answers, as models, and how they are made from the state."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from ullage.inspect.postmortem import Changed, Damage, Full
from ullage.segment.layout import OCCUPANCY_STEPS
from ullage_sidecar.state import NS

if TYPE_CHECKING:
    from ullage.inspect.postmortem import PostMortem
    from ullage.segment.snapshot import Buffer, Event
    from ullage_sidecar.alarms import Key, Warning_
    from ullage_sidecar.state import Life


class ProbeModel(BaseModel):
    """A hook point in the engine."""

    name: str
    status: str
    detail: str
    calls: int
    errors: int


class DiedModel(BaseModel):
    """A place in the order of an engine's deaths."""

    process: str
    outcome: str
    cause: str
    last_sign: datetime


class PostMortemModel(BaseModel):
    """What is known of a death: who went first, where it happened, what was full, what is new since the last time."""

    order: list[DiedModel]
    phase: str
    step_age_seconds: float | None
    batch_requests: int
    batch_tokens: int
    nearest: list[Full]
    violations: list[Damage]
    changed: list[Changed]


class ProcessModel(BaseModel):
    """One incarnation of a process. ``shown``: it is the one that metrics are about."""

    process: str
    incarnation: str
    shown: bool
    state: Literal["running", "stalled", "stopped", "killed", "crashed"]
    cause: Literal["primary", "consequential"] | None
    ended_seen: datetime | None
    lock_lost: bool
    identity: dict[str, str | int]
    pid: int
    started: datetime
    steps: int
    last_step: datetime | None
    running_requests: int | None
    hook_errors: int
    disabled: bool
    probes: list[ProbeModel]
    post_mortem: PostMortemModel | None


class BufferModel(BaseModel):
    """One buffer. Sizes in ``unit``; ``occupancy`` counts observations up to each share of the capacity.

    ``closed``: it was freed, and is listed for what it counted.
    """

    process: str
    buffer: str
    kind: str
    unit: str
    location: str
    limit: str
    bytes: int
    capacity: int
    used: int
    high_water: int
    high_water_ratio: float | None
    high_water_at: datetime | None
    occupancy: dict[str, int]
    beyond: int
    exhaustions: int
    deferrals: int
    bounds_violations: int
    worst_index: int | None
    grows: int
    shrinks: int
    closed: bool


class InventoryModel(BaseModel):
    """Buffers alike, known by their size only."""

    process: str
    name: str
    type: str
    location: str
    count: int
    bytes: int


class BuffersModel(BaseModel):
    """What a process holds."""

    buffers: list[BufferModel]
    inventory: list[InventoryModel]


class EventModel(BaseModel):
    """A dated record of something rare. ``count`` is how often it had happened by then."""

    process: str
    incarnation: str
    number: int
    at: datetime
    kind: str
    subject: str
    count: int
    numbers: list[int]
    detail: str


class WarningModel(BaseModel):
    """A warning that is active."""

    process: str
    buffer: str
    contract: str
    reason: str
    severity: Literal["info", "warning", "critical"]
    message: str
    since: datetime
    adopted: bool


def date(ns: int) -> datetime:
    """Return a time of the segment as a date."""
    return datetime.fromtimestamp(ns / NS, timezone.utc)


def _date_or_never(ns: int) -> datetime | None:
    return date(ns) if ns else None


def process_model(life: Life, post_mortem: PostMortem | None, *, shown: bool) -> ProcessModel:
    """Return one life of a process as a model; ``post_mortem`` if it ended otherwise than in order."""
    words = life.snapshot.process
    return ProcessModel(
        process=life.process,
        incarnation=life.snapshot.incarnation,
        shown=shown,
        state=life.condition,
        cause=life.ending.cause if life.ending else None,
        ended_seen=date(life.ending.at_ns) if life.ending else None,
        lock_lost=life.lock_lost,
        identity=life.snapshot.identity,
        pid=words.pid,
        started=date(words.started_ns),
        steps=words.steps,
        last_step=_date_or_never(words.step_ns),
        running_requests=words.running if words.running >= 0 else None,
        hook_errors=words.hook_errors,
        disabled=bool(words.disabled_ns),
        probes=[
            ProbeModel(
                name=probe.name,
                status=probe.status.name.lower(),
                detail=probe.detail,
                calls=probe.calls,
                errors=probe.errors,
            )
            for probe in life.snapshot.probes
        ],
        post_mortem=_post_mortem_model(post_mortem) if post_mortem is not None else None,
    )


def _post_mortem_model(found: PostMortem) -> PostMortemModel:
    return PostMortemModel(
        order=[
            DiedModel(process=died.process, outcome=died.outcome, cause=died.cause, last_sign=date(died.last_sign_ns))
            for died in found.order
        ],
        phase=found.phase,
        step_age_seconds=found.step_age_ns / NS if found.step_age_ns is not None else None,
        batch_requests=found.batch_requests,
        batch_tokens=found.batch_tokens,
        nearest=list(found.nearest),
        violations=list(found.violations),
        changed=list(found.changed),
    )


def buffer_model(process: str, buffer: Buffer) -> BufferModel:
    """Return a buffer as a model."""
    return BufferModel(
        process=process,
        buffer=buffer.name,
        kind=buffer.kind.name.lower(),
        unit=buffer.unit,
        location=buffer.location.name.lower(),
        limit=buffer.limit,
        bytes=buffer.nbytes,
        capacity=buffer.capacity,
        used=buffer.used,
        high_water=buffer.high_water,
        high_water_ratio=buffer.high_water_ratio,
        high_water_at=_date_or_never(buffer.high_water_ns),
        occupancy={str(edge): count for edge, count in zip(OCCUPANCY_STEPS, buffer.occupancy, strict=True)},
        beyond=buffer.beyond,
        exhaustions=buffer.exhaustions,
        deferrals=buffer.deferrals,
        bounds_violations=buffer.out_of_bounds,
        worst_index=buffer.worst_index if buffer.out_of_bounds else None,
        grows=buffer.grows,
        shrinks=buffer.shrinks,
        closed=buffer.closed,
    )


def inventory_model(process: str, buffer: Buffer) -> InventoryModel:
    """Return an entry of the inventory as a model."""
    return InventoryModel(
        process=process,
        name=buffer.name,
        type=buffer.limit,
        location=buffer.location.name.lower(),
        count=buffer.instances,
        bytes=buffer.nbytes,
    )


def event_model(life: Life, event: Event) -> EventModel:
    """Return an event of one life as a model."""
    return EventModel(
        process=life.process,
        incarnation=life.snapshot.incarnation,
        number=event.number,
        at=date(event.time_ns),
        kind=event.kind.name.lower(),
        subject=event.subject,
        count=event.count,
        numbers=list(event.numbers),
        detail=event.detail,
    )


def warning_model(key: Key, warning: Warning_) -> WarningModel:
    """Return an active warning as a model."""
    return WarningModel(
        **key._asdict(),
        severity=warning.severity,
        message=warning.message,
        since=date(warning.since_ns),
        adopted=warning.adopted,
    )
