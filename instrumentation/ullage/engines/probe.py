"""A probe: one hook point, its record in the segment, and the breaker that switches it off."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage import safety
from ullage.host.process import process
from ullage.segment import layout, text
from ullage.segment.layout import EventKind, P, ProbePayload, ProbeStatus, Q

if TYPE_CHECKING:
    from collections.abc import Callable

    from ullage.host.session import Session
    from ullage.segment.writer import Segment

COST_WINDOW_CALLS = 1_000
MAX_MEAN_COST_NS = 50_000
MAX_COST_NS = 1_000_000
"""The most that one run counts: a wall clock also runs while the kernel runs another thread."""
MEASURED = 16
"""The first 16 calls are measured, then one in 16, and each one after one that cost too much."""

_clock = time.perf_counter_ns


class _Record(NamedTuple):
    """The record of a probe in one segment."""

    segment: Segment
    number: int
    words: memoryview


class Probe:
    """One hook point and what became of it.

    After ``safety.MAX_ERRORS`` errors, or a mean cost above ``MAX_MEAN_COST_NS`` over ``COST_WINDOW_CALLS`` runs of our
    code, it switches itself off: the wrapper then only calls the engine's function.

    It has a record in the segment once it is known what became of it: a module that this process never imports
    is none of its hook points. One that ``waits`` is of something that a process may import and not use: it has a
    record once that is used as well.

    Attributes:
        name: ``Class.function`` in the engine's words.
        calls: How often the engine called the function.
        due: The number of the call that is measured next; every one, once the probe is off.
        inside: The engine's object whose call is under way, if only outermost calls count.
    """

    __slots__ = (
        "_cost_ns",
        "_counted",
        "_detail",
        "_errors",
        "_live",
        "_place",
        "_records",
        "_stands_for",
        "_status",
        "_told",
        "_waits",
        "_window_ns",
        "_window_runs",
        "calls",
        "due",
        "inside",
        "name",
    )

    def __init__(self, name: str, *, waits: bool = False) -> None:
        self.name = name
        self._waits = waits
        self._live = False
        self._told: list[dict[str, Any]] = []
        self.inside: object = None
        self.calls = 0
        self.due = 1
        self._status = ProbeStatus.UNKNOWN
        self._detail = ""
        self._place = safety.Place(f"probe {name}", self._disable)
        self._errors = 0
        self._cost_ns = 0
        self._counted, self._stands_for = 0, 1
        self._window_runs = self._window_ns = 0
        self._records: dict[Session, _Record] = {}

    @property
    def status(self) -> ProbeStatus:
        """Whether the hook point is watched; unknown until its module was imported."""
        return self._status

    @property
    def live(self) -> bool:
        """Whether our code runs at this hook point."""
        return self._live

    @live.setter
    def live(self, live: bool) -> None:
        self._live = live
        for names in self._told:
            names["ullage_live"] = live

    def tell(self, names: dict[str, Any]) -> None:
        """Keep ``ullage_live`` up to date among the global names of a wrapper, which has no time to ask."""
        self._told.append(names)

    def set(self, status: ProbeStatus, detail: str = "") -> None:
        """Say what became of the hook point, and why it is not installed."""
        decided = self._status is not ProbeStatus.UNKNOWN
        self._status, self._detail = status, detail
        self.live = status is ProbeStatus.INSTALLED
        self.due = self.calls + 1
        if self._waits:
            return
        if decided:
            self._publish()
        else:
            process.share(self)

    def used(self) -> None:
        """What it is of is used in this process."""
        if self._waits:
            self._waits = False
            if self._status is not ProbeStatus.UNKNOWN:
                process.share(self)

    def counted(self) -> bool:
        """A call is due: store how many there were, and say which is next. False if our code does not run at all."""
        if self.live:
            calls = self.calls
            self._store(Q.CALLS, calls)
            self._stands_for, self._counted = calls - self._counted, calls
            self.due = calls + (1 if calls < MEASURED else MEASURED)
        return self.live

    def measure(self, callback: Callable[..., object], *args: object) -> None:
        """Run our code, accounting for its cost.

        Raises:
            Exception: What ``callback`` raised.
        """
        start = _clock()
        try:
            callback(*args)
        finally:
            cost = min(_clock() - start, MAX_COST_NS)
            self._cost_ns += cost * self._stands_for
            self._store(Q.COST_NS, self._cost_ns)
            if cost > MAX_MEAN_COST_NS:
                self.due = self.calls + 1
            self._window_ns += cost
            self._window_runs += 1
            if self._window_runs == COST_WINDOW_CALLS:
                self._check_cost()

    def attempt(self, callback: Callable[..., object], *args: object) -> None:
        """Run our code, accounting for its errors only. Raises nothing (but see ``ULLAGE_STRICT``)."""
        try:
            callback(*args)
        except Exception as error:
            self.failed(error)

    def failed(self, error: Exception) -> None:
        """Our code raised: count it, and go on. Raises nothing (but see ``ULLAGE_STRICT``)."""
        self._errors += 1
        self._store(Q.ERRORS, self._errors)
        process.sample()  # it may be this probe that decides whether a step is sampled
        self._place.caught(error)

    def attach(self, session: Session) -> None:
        """Take a record of the segment of ``session``."""
        if session in self._records:
            return
        segment = session.segment
        index = segment.allocate(layout.PROBES) if segment is not None else None
        if segment is None or index is None:
            session.drop(P.DROPPED_PROBES)
            return
        words = segment.words(layout.PROBES, index)
        self._records[session] = _Record(segment, index, words)
        words[Q.CALLS], words[Q.ERRORS], words[Q.COST_NS] = self.calls, self._errors, self._cost_ns
        self._publish()

    def leave(self, session: Session) -> None:
        """Store nothing more into the segment of ``session``."""
        self._records.pop(session, None)

    def detach(self) -> None:
        """The hook is switched off, and the probe with it."""
        self.set(ProbeStatus.DISABLED, "switched off")
        self._records.clear()

    def restart(self) -> None:
        """In a forked child: count from zero, in the child's segments."""
        self._records.clear()
        self._place = safety.Place(f"probe {self.name}", self._disable)
        self.calls = self._errors = self._cost_ns = self._window_runs = self._window_ns = self._counted = 0
        self.due = 1

    def _store(self, word: Q, value: int) -> None:
        for record in self._records.values():
            record.words[word] = value

    def _publish(self) -> None:
        payload = ProbePayload(text.encode(self.name, 80), text.encode(self._detail, 64)).pack()
        for record in self._records.values():
            record.words[Q.STATUS] = self._status
            record.segment.seal(layout.PROBES, record.number, payload)

    def _check_cost(self) -> None:
        mean = self._window_ns // self._window_runs
        self._window_ns = self._window_runs = 0
        if mean > MAX_MEAN_COST_NS:
            self._disable(f"mean cost {mean // 1000} us over {COST_WINDOW_CALLS} calls")

    def _disable(self, why: str) -> None:
        if self.live:
            self.set(ProbeStatus.DISABLED, why)
            process.sample()
            for session in process.sessions:
                session.set_running(-1)  # a probe that still counts steps stores a number again at the next one
                session.emit(EventKind.PROBE_DISABLED, self.name, detail=why)
            safety.log_once(f"probe {self.name} is off", f"probe {self.name} switched itself off: {why}")


class SharedProbe(Probe):
    """The probe of several hook points: installed if all are that there are, else in the state of one that is not."""

    __slots__ = ()

    def set(self, status: ProbeStatus, detail: str = "") -> None:
        """Say what became of one of them; the others go on, unless they were switched off."""
        if status is ProbeStatus.INSTALLED and self.status is not ProbeStatus.UNKNOWN:
            return
        super().set(status, detail)
        self.live = status is not ProbeStatus.DISABLED
