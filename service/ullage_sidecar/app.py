"""The composition root: wires reading, judging and serving together. The only module that knows all others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException

from ullage import __version__
from ullage.postmortem import line
from ullage_sidecar import discovery
from ullage_sidecar.alarms import Alarms, Change, evaluate
from ullage_sidecar.api import router
from ullage_sidecar.deaths import deaths, died
from ullage_sidecar.doorbell import Doorbell
from ullage_sidecar.metrics import Collector, Reload
from ullage_sidecar.state import History, State, observe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ullage_sidecar.settings import Settings

log = logging.getLogger("ullage")
TICK_S = 1.0
READY_WITHIN_S = 10.0
HOOK_EXPECTED_S = 60.0
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.CRITICAL}


class Watch:
    """Looks at the segments: whenever asked, and once a second to judge warnings."""

    def __init__(self, reload: Callable[[], tuple[Settings, list[str]]]) -> None:
        self._load = reload
        self._settings, problems = reload()
        self._reloaded = Reload(not problems, time.time())
        _report(problems)
        self._history = History()
        self._alarms = Alarms()
        self._lock = threading.Lock()
        self._ticked = float("-inf")
        self._anybody = False
        self._told: frozenset[str] = frozenset()
        # A wall clock that jumps must neither clear a warning nor raise one: dates go on from here by themselves.
        self._started_ns = time.time_ns() - time.monotonic_ns()

    @property
    def alarms(self) -> Alarms:
        """The alarms as of the last tick."""
        return self._alarms

    @property
    def ready(self) -> bool:
        """Whether ticks are being made."""
        return time.monotonic() - self._ticked < READY_WITHIN_S

    def look(self, *, events: bool = False) -> State:
        """Read all segments now; with ``events``, those, too."""
        with self._lock:
            found = discovery.find(self._settings.dir, events=events)
            return observe(found, self._history, self._settings, self._started_ns + time.monotonic_ns())

    def scrape(self) -> tuple[State, Alarms, Settings, Reload]:
        """What the metrics are made of."""
        return self.look(), self._alarms, self._settings, self._reloaded

    def reload(self) -> None:
        """Read the settings again; if something is wrong with them, those from before stay, all of them."""
        settings, problems = self._load()
        _report(problems)
        if problems:
            self._reloaded = Reload(successful=False, at=self._reloaded.at)
            log.error("settings were not reloaded; those from before hold")
        else:
            self._settings = settings
            self._reloaded = Reload(successful=True, at=time.time())
            log.info("settings were reloaded")

    def tick(self) -> None:
        """Judge the warnings, and log what changed."""
        state = self.look()
        self._anybody = any(life.ending is None for life in state.lives)
        self._alarms, changes = evaluate(self._alarms, state, self._settings)
        self._ticked = time.monotonic()
        for change in changes:
            _log(change)
        if not died(state) <= self._told:
            self._told = self.tell_deaths(known=self._told)

    def tell_deaths(self, known: frozenset[str] = frozenset()) -> frozenset[str]:
        """Write a line of JSON to stdout for each death but those ``known``; return all that there are.

        A container's log outlives its pod.
        """
        found = deaths(self.look(events=True))
        told = "".join(f"{line(death)}\n" for incarnation, death in found.items() if incarnation not in known)
        sys.stdout.write(told)
        sys.stdout.flush()
        return frozenset(found)

    def run(self, bell: Doorbell) -> None:
        """Tick until the bell is told to stop: once a second, and when a process has died or come. For a thread."""
        started = time.monotonic()
        told = False
        going = True
        while going:
            bell.listen(self._settings.dir)
            self._tick_safely()
            if not told and not self._anybody and time.monotonic() - started > HOOK_EXPECTED_S:
                told = True
                log.warning("no hook found in %s: nothing is watched; %s", self._settings.dir, discovery.NO_HOOK)
            going = bell.wait(TICK_S)

    def _tick_safely(self) -> None:
        try:
            self.tick()
        except Exception:
            self._ticked = time.monotonic()
            log.exception("a tick failed; the next one is tried all the same")


def create_app(load: Callable[[], tuple[Settings, list[str]]]) -> FastAPI:
    """Return the application; ``load`` reads the settings, now and on SIGHUP, and says what is wrong with them."""
    watch = Watch(load)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(watch.scrape))

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        bell = Doorbell()
        ticking = threading.Thread(target=watch.run, args=(bell,), name="ullage-watch", daemon=True)
        ticking.start()
        with contextlib.suppress(NotImplementedError, RuntimeError):  # not in the main thread
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, watch.reload)
        yield
        bell.stop()
        await asyncio.to_thread(ticking.join)
        bell.close()
        watch.tell_deaths()  # once more: what was written when they died may be gone with the log's older part

    # The interactive pages would load scripts from elsewhere; a cluster may have no way out.
    app = FastAPI(title="ullage", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.include_router(router(watch, registry))
    app.add_exception_handler(HTTPException, _problem)
    app.add_exception_handler(RequestValidationError, _problem)
    return app


async def _problem(_request: Request, error: Exception) -> JSONResponse:
    """Answer an error as a problem document (RFC 9457)."""
    if isinstance(error, RequestValidationError):
        wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        status, title, detail = 422, "Unprocessable Content", wrong
    else:
        status = error.status_code if isinstance(error, HTTPException) else 500
        title = detail = str(getattr(error, "detail", error))
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return JSONResponse(body, status, media_type="application/problem+json")


def _report(problems: list[str]) -> None:
    for problem in problems:
        log.error("setting %s", problem)


def _log(change: Change) -> None:
    warning = change.warning
    key = warning.key
    level = logging.INFO if change.what == "cleared" else _LEVELS[warning.severity]
    where = " ".join(part for part in (key.process, key.buffer, key.contract) if part)
    log.log(level, "%s %s %s: %s: %s", change.what, warning.severity, key.reason, where, warning.message)
