"""Health: how long ago a tick last succeeded, and what has failed since."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import NamedTuple

from ullage.segment.text import clean

LIVE_WITHIN_S = 60.0
READY_WITHIN_S = 10.0
_LONG_TICK_S = 1.0
_LONGEST = 300  # characters of a described error


class Ticks(NamedTuple):
    """Totals for the metrics.

    Attributes:
        succeeded_at: When a tick last succeeded, in seconds since the epoch; None before the first.
        failures: Ticks that raised, since the start.
    """

    succeeded_at: float | None
    failures: int


class Health:
    """The record of the ticks. One thread writes it; any thread may read it.

    Durations are measured with the monotonic clock: a wall clock that jumps must not restart the sidecar.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._begun: float | None = None
        self._failure = ""
        self._ticks = Ticks(None, 0)

    def begin(self) -> None:
        """Record that a tick begins."""
        self._begun = time.monotonic()

    def succeed(self) -> None:
        """Record that the tick has succeeded."""
        self._begun, self._failure = None, ""
        self._since = time.monotonic()
        self._ticks = self._ticks._replace(succeeded_at=time.time())

    def fail(self, error: Exception) -> None:
        """Record that the tick has raised ``error``."""
        self._begun, self._failure = None, describe(error)
        self._ticks = self._ticks._replace(failures=self._ticks.failures + 1)

    @property
    def ticks(self) -> Ticks:
        """Totals for the metrics."""
        return self._ticks

    @property
    def live(self) -> bool:
        """Whether a tick succeeded, or the sidecar started, within the last minute."""
        return time.monotonic() - self._since < LIVE_WITHIN_S

    @property
    def ready(self) -> bool:
        """Whether a tick has succeeded within the last ten seconds."""
        return self._ticks.succeeded_at is not None and time.monotonic() - self._since < READY_WITHIN_S

    @property
    def detail(self) -> str:
        """For how long no tick has succeeded, and why, in one line."""
        now = time.monotonic()
        ever = "" if self._ticks.succeeded_at is not None else " since the sidecar started"
        detail = f"no tick has succeeded for {now - self._since:.0f} s{ever}"
        begun, failure = self._begun, self._failure
        if failure:
            detail += f"; the last failure: {failure}"
        if begun is not None and now - begun > _LONG_TICK_S:
            detail += f"; the current tick has been running for {now - begun:.0f} s"
        return detail


def describe(error: Exception) -> str:
    """Return the type, place and message of ``error`` in one printable line of bounded length."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        place = f" at {Path(frame.f_code.co_filename).name}:{line} ({frame.f_code.co_name})"
    return clean(f"{type(error).__name__}{place}: {str(error)[:_LONGEST]}")[:_LONGEST]
