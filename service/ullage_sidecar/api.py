"""The HTTP API: what it answers, as models, and where."""

from __future__ import annotations

import asyncio
import gzip
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel

from ullage.segment.layout import OCCUPANCY_STEPS
from ullage_sidecar.state import NS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ullage.segment.snapshot import Buffer
    from ullage_sidecar.alarms import Alarms
    from ullage_sidecar.state import Life, State

GZIP_LEVEL = 1  # a tenth of the time of the default, for a fifth more bytes


class ProbeModel(BaseModel):
    """A hook point in the engine."""

    name: str
    status: str
    detail: str
    calls: int
    errors: int


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


class BufferModel(BaseModel):
    """One buffer. Sizes in ``unit``; ``occupancy`` counts observations up to each share of the capacity."""

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


class Source(Protocol):
    """Where the API looks."""

    def look(self, *, records: bool = False) -> State:
        """Read the state now."""

    @property
    def alarms(self) -> Alarms:
        """The alarms as of the last tick."""

    @property
    def ready(self) -> bool:
        """Whether ticks are being made."""


Process = Annotated[str | None, Query(description="Only this process.")]


def router(source: Source, registry: CollectorRegistry) -> APIRouter:
    """Return the routes over ``source``; ``registry`` renders the metrics. Reading is done off the event loop."""
    routes = APIRouter()

    @routes.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> str:
        paths = ("/metrics", *(f"/v1/{name}" for name in ("processes", "buffers", "events", "warnings")))
        links = "".join(f'<li><a href="{path}">{path}</a></li>' for path in paths)
        return f"<!doctype html><title>ullage</title><h1>ullage</h1><ul>{links}</ul>"

    @routes.get("/livez", response_class=PlainTextResponse)
    async def livez() -> str:
        return "ok\n"

    @routes.get("/readyz", response_class=PlainTextResponse)
    async def readyz() -> str:
        if not source.ready:
            raise HTTPException(503, "no tick was made in the last seconds")
        return "ok\n"

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        compress = "gzip" in request.headers.get("accept-encoding", "")

        def render() -> bytes:
            body = encoder(registry)
            return gzip.compress(body, GZIP_LEVEL) if compress else body

        headers = {"content-type": content_type, "vary": "Accept, Accept-Encoding"}
        if compress:
            headers["content-encoding"] = "gzip"
        return Response(await asyncio.to_thread(render), headers=headers)

    @routes.get("/v1/processes")
    async def processes() -> list[ProcessModel]:
        state = await asyncio.to_thread(source.look)
        return [_process(life, shown=life in state.shown) for life in state.lives]

    @routes.get("/v1/buffers")
    async def buffers(process: Process = None) -> BuffersModel:
        state = await asyncio.to_thread(source.look)
        held = [
            (life.process, buffer)
            for life in state.shown
            if process in (None, life.process)
            for buffer in life.snapshot.buffers
        ]
        return BuffersModel(
            buffers=[_buffer(name, buffer) for name, buffer in held if not buffer.inventory],
            inventory=[_inventory(name, buffer) for name, buffer in held if buffer.inventory],
        )

    @routes.get("/v1/events")
    async def events(
        process: Process = None, limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000
    ) -> list[EventModel]:
        state = await asyncio.to_thread(source.look, records=True)
        found = [
            EventModel(
                process=life.process,
                incarnation=life.snapshot.incarnation,
                number=event.number,
                at=_date(event.time_ns),
                kind=event.kind.name.lower(),
                subject=event.subject,
                count=event.count,
                numbers=list(event.numbers),
                detail=event.detail,
            )
            for life in state.lives
            if process in (None, life.process)
            for event in life.snapshot.events
        ]
        return sorted(found, key=lambda event: event.at)[-limit:]

    @routes.get("/v1/warnings")
    async def warnings() -> list[WarningModel]:
        return [
            WarningModel(
                **key._asdict(),
                severity=warning.severity,
                message=warning.message,
                since=_date(warning.since_ns),
                adopted=warning.adopted,
            )
            for key, warning in sorted(source.alarms.active.items())
        ]

    return routes


def _date(ns: int) -> datetime:
    return datetime.fromtimestamp(ns / NS, timezone.utc)


def _date_or_never(ns: int) -> datetime | None:
    return _date(ns) if ns else None


def _process(life: Life, *, shown: bool) -> ProcessModel:
    words = life.snapshot.process
    return ProcessModel(
        process=life.process,
        incarnation=life.snapshot.incarnation,
        shown=shown,
        state=life.condition,
        cause=life.ending.cause if life.ending else None,
        ended_seen=_date(life.ending.at_ns) if life.ending else None,
        lock_lost=life.lock_lost,
        identity=life.snapshot.identity,
        pid=words.pid,
        started=_date(words.started_ns),
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
    )


def _buffer(process: str, buffer: Buffer) -> BufferModel:
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
    )


def _inventory(process: str, buffer: Buffer) -> InventoryModel:
    return InventoryModel(
        process=process,
        name=buffer.name,
        type=buffer.limit,
        location=buffer.location.name.lower(),
        count=buffer.instances,
        bytes=buffer.nbytes,
    )
