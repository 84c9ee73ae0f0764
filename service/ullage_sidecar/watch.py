"""The watch: reads the segments whenever asked, and once a second judges warnings and remembers what it saw."""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ullage.inspect.postmortem import line
from ullage_sidecar import discovery
from ullage_sidecar.alarms import Alarms, Change, evaluate
from ullage_sidecar.deaths import deaths, died
from ullage_sidecar.doorbell import Doorbell
from ullage_sidecar.health import Health, Ticks, describe
from ullage_sidecar.metrics import Reload
from ullage_sidecar.ratelimit import RateLimit
from ullage_sidecar.rows import Rows
from ullage_sidecar.state import History, State, observe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ullage_sidecar.settings import Settings

log = logging.getLogger("ullage")
TICK_S = 1.0
HOOK_EXPECTED_S = 60.0
LAST_TICK_WITHIN_S = 1.0
LOGGED_EVERY_S = 60.0
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.CRITICAL}


class Watch:
    """Reads the segments. Ticks alone change what is remembered; every other read leaves it as it is.

    What is remembered is replaced as a whole and never locked, so that a tick that hangs holds up no request.
    """

    def __init__(self, load: Callable[[], tuple[Settings, list[str]]]) -> None:
        self._load = load
        self._settings, problems = load()
        self._reloaded = Reload(not problems, time.time())
        _report(problems)
        self._health = Health()
        self._rows = Rows()
        self._history = History()
        self._alarms = Alarms()
        self._hook_found = False
        self._told: frozenset[str] = frozenset()
        self._tick_failures, self._scrape_failures = RateLimit(LOGGED_EVERY_S), RateLimit(LOGGED_EVERY_S)
        # A wall clock that jumps must neither clear a warning nor raise one: dates advance with the monotonic clock.
        self._started_ns = time.time_ns() - time.monotonic_ns()

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._settings

    @property
    def health(self) -> Health:
        """Whether ticks succeed."""
        return self._health

    @property
    def rows(self) -> Rows:
        """Counts the rows that are left out."""
        return self._rows

    @property
    def alarms(self) -> Alarms:
        """The alarms as of the last tick."""
        return self._alarms

    def look(self, *, events: bool = False) -> State:
        """Read all segments now, with their events if asked, and judge them by what the last tick remembered.

        Counts of exits and read errors are those of the last tick: they must not depend on how often they are read.
        """
        history = self._history
        state, _ = self._judge(history, events=events)
        return replace(state, exits=history.exits, read_errors=history.read_errors)

    def scrape(self) -> tuple[State, Alarms, Settings, Reload, Ticks]:
        """Return what the metrics are made of. If reading fails, the state has no process, and says so."""
        try:
            state = self.look()
        except Exception as error:
            if self._scrape_failures.allows():
                log.exception("reading the segments for a scrape failed; the sidecar's own metrics are served")
            failed = discovery.Unreadable(str(self._settings.dir), "error", describe(error))
            history = self._history
            state = State(self._now_ns(), (), (), {}, history.exits, (failed,), history.read_errors)
        return state, self._alarms, self._settings, self._reloaded, self._health.ticks

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
        state, self._history = self._judge(self._history)
        self._hook_found = any(life.ending is None for life in state.lives)
        self._alarms, changes = evaluate(self._alarms, state, self._settings, self._rows)
        for change in changes:
            _log(change)
        if not died(state) <= self._told:
            told = self._told | self.tell_deaths(known=self._told) | died(state)
            self._told = frozenset(incarnation for incarnation in told if incarnation in self._history.endings)

    def tell_deaths(self, known: frozenset[str] = frozenset()) -> frozenset[str]:
        """Write a line of JSON to stdout for each death but those ``known``; return all that there are.

        A container's log outlives its pod.
        """
        found = deaths(self.look(events=True), self._rows)
        fresh = [death for incarnation, death in found.items() if incarnation not in known]
        told = self._rows.each("post_mortem", fresh, line, key=lambda death: death.incarnation)
        try:
            sys.stdout.write("".join(f"{text}\n" for text in told))
            sys.stdout.flush()
        except (OSError, ValueError) as error:  # closed, or full: the ticks go on, and /v1/processes has it
            if self._tick_failures.allows():
                log.error("a post-mortem cannot be written to stdout: %s", describe(error))  # noqa: TRY400
        return frozenset(found)

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Tick in a thread while the block runs. Its end does not wait for a tick that hangs."""
        bell = Doorbell()
        thread = threading.Thread(target=self.run, args=(bell,), name="ullage-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            bell.stop()
            thread.join(LAST_TICK_WITHIN_S)
            if thread.is_alive():
                log.error("the last tick has not ended within %g s: not waiting for it", LAST_TICK_WITHIN_S)
            else:
                bell.close()

    def run(self, bell: Doorbell) -> None:
        """Tick until the bell stops: once a second, and when a process starts or dies. For a thread."""
        started = time.monotonic()
        told = False
        going = True
        while going:
            self._tick_safely(bell)
            if not told and not self._hook_found and time.monotonic() - started > HOOK_EXPECTED_S:
                told = True
                log.warning("no hook found in %s: nothing is watched; %s", self._settings.dir, discovery.NO_HOOK)
            going = bell.wait(TICK_S)

    def _tick_safely(self, bell: Doorbell) -> None:
        self._health.begin()
        try:
            bell.listen(self._settings.dir)
            self.tick()
        except Exception as error:
            self._health.fail(error)
            if self._tick_failures.allows():
                log.exception("a tick failed; the next one follows in %g s", TICK_S)
        else:
            self._health.succeed()

    def _judge(self, history: History, *, events: bool = False) -> tuple[State, History]:
        settings = self._settings
        return observe(discovery.find(settings.dir, events=events), history, settings, self._now_ns(), self._rows)

    def _now_ns(self) -> int:
        return self._started_ns + time.monotonic_ns()


def _report(problems: list[str]) -> None:
    for problem in problems:
        log.error("setting %s", problem)


def _log(change: Change) -> None:
    warning = change.warning
    key = warning.key
    level = logging.INFO if change.what == "cleared" else _LEVELS[warning.severity]
    where = " ".join(part for part in (key.process, key.buffer, key.contract) if part)
    log.log(level, "%s %s %s: %s: %s", change.what, warning.severity, key.reason, where, warning.message)
