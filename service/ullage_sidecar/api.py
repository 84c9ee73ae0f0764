"""The HTTP API: what is answered where. Reading is done off the event loop."""

from __future__ import annotations

import asyncio
import gzip
from typing import TYPE_CHECKING, Annotated, Protocol

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from prometheus_client.exposition import choose_encoder

from ullage_sidecar.contract_models import ContractModel, contract_model
from ullage_sidecar.deaths import deaths
from ullage_sidecar.diagnosis.joined import MAX_EXPLAINED
from ullage_sidecar.encoding import accepts_gzip
from ullage_sidecar.models import (
    BuffersModel,
    EventModel,
    ProcessModel,
    WarningModel,
    buffer_model,
    event_model,
    inventory_model,
    process_model,
    warning_model,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from ullage.segment.snapshot import Buffer
    from ullage_sidecar.alarms import Alarms
    from ullage_sidecar.health import Health
    from ullage_sidecar.rows import Rows
    from ullage_sidecar.state import State

GZIP_LEVEL = 1  # a tenth of the time of the default, for a fifth more bytes


class Source(Protocol):
    """Where the API looks."""

    def look(self, *, events: bool = False) -> State:
        """Read the state now."""

    @property
    def alarms(self) -> Alarms:
        """The alarms as of the last tick."""

    @property
    def rows(self) -> Rows:
        """Counts the rows that are left out."""

    @property
    def health(self) -> Health:
        """Whether ticks succeed."""


Process = Annotated[str | None, Query(description="Only this process.")]


def router(source: Source, registry: CollectorRegistry) -> APIRouter:
    """Return the routes over ``source``; ``registry`` renders the metrics. Reading is done off the event loop."""
    routes = APIRouter()

    @routes.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def index() -> str:
        paths = ("/metrics", *(f"/v1/{name}" for name in ("processes", "buffers", "contracts", "events", "warnings")))
        links = "".join(f'<li><a href="{path}">{path}</a></li>' for path in paths)
        return f"<!doctype html><title>ullage</title><h1>ullage</h1><ul>{links}</ul>"

    @routes.get("/livez", response_class=PlainTextResponse)
    async def livez() -> str:
        if not source.health.live:
            raise HTTPException(503, source.health.detail)
        return "ok\n"

    @routes.get("/readyz", response_class=PlainTextResponse)
    async def readyz() -> str:
        if not source.health.ready:
            raise HTTPException(503, source.health.detail)
        return "ok\n"

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        encoder, content_type = choose_encoder(request.headers.get("accept", ""))
        compress = accepts_gzip(",".join(request.headers.getlist("accept-encoding")))

        def render() -> bytes:
            body = encoder(registry)
            return gzip.compress(body, GZIP_LEVEL) if compress else body

        headers = {"content-type": content_type, "vary": "Accept, Accept-Encoding"}
        if compress:
            headers["content-encoding"] = "gzip"
        return Response(await asyncio.to_thread(render), headers=headers)

    @routes.get("/v1/processes")
    async def processes() -> list[ProcessModel]:
        return await asyncio.to_thread(lambda: _processes(source.look(), source.rows))

    @routes.get("/v1/buffers")
    async def buffers(process: Process = None) -> BuffersModel:
        return await asyncio.to_thread(lambda: _buffers(source.look(), process, source.rows))

    @routes.get("/v1/contracts")
    async def contracts(
        contract: Annotated[str | None, Query(description="Only this contract.")] = None,
    ) -> list[ContractModel]:
        return await asyncio.to_thread(lambda: _contracts(source.look(), contract, source.rows))

    @routes.get("/v1/events")
    async def events(
        process: Process = None, limit: Annotated[int, Query(ge=1, le=10_000)] = 1_000
    ) -> list[EventModel]:
        found = await asyncio.to_thread(lambda: _events(source.look(events=True), process, source.rows))
        return found[-limit:]

    @routes.get("/v1/warnings")
    async def warnings() -> list[WarningModel]:
        active = sorted(source.alarms.active.items())
        return source.rows.each("warning", active, lambda entry: warning_model(*entry), key=lambda entry: entry[0])

    return routes


def _processes(state: State, rows: Rows) -> list[ProcessModel]:
    died = deaths(state, rows)
    return rows.each(
        "process",
        state.lives,
        lambda life: process_model(life, died.get(life.snapshot.incarnation), shown=life in state.shown),
        key=lambda life: life.snapshot.incarnation,
    )


def _buffers(state: State, process: str | None, rows: Rows) -> BuffersModel:
    found = [
        (life.process, buffer)
        for life in state.shown
        if process in (None, life.process)
        for buffer in life.snapshot.buffers
    ]

    def key(entry: tuple[str, Buffer]) -> tuple[str, str]:
        return entry[0], entry[1].name

    watched = [entry for entry in found if not entry[1].inventory]
    inventory = [entry for entry in found if entry[1].inventory]
    return BuffersModel(
        buffers=rows.each("buffer", watched, lambda entry: buffer_model(*entry), key),
        inventory=rows.each("buffer", inventory, lambda entry: inventory_model(*entry), key),
    )


def _contracts(state: State, name: str | None, rows: Rows) -> list[ContractModel]:
    """Return the contracts; an explanation can take a tenth of a second, so those of one page are few."""
    found = [entry for entry in state.contracts if name in (None, entry[1].name)]
    broken = [entry for entry in found if entry[1].disagreements or entry[1].violations]
    each = max(1, MAX_EXPLAINED // len(broken)) if broken else 0
    explained = {id(contract) for _, contract in broken[:MAX_EXPLAINED]}
    return rows.each(
        "contract",
        found,
        lambda entry: contract_model(*entry, each if id(entry[1]) in explained else 0, rows),
        key=lambda entry: (entry[0], entry[1].name),
    )


def _events(state: State, process: str | None, rows: Rows) -> list[EventModel]:
    """Return the events, oldest first."""
    found = [(life, event) for life in state.lives if process in (None, life.process) for event in life.snapshot.events]
    models = rows.each(
        "event",
        found,
        lambda entry: event_model(*entry),
        key=lambda entry: (entry[0].snapshot.incarnation, entry[1].number),
    )
    return sorted(models, key=lambda event: event.at)
