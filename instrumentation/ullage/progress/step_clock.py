"""The step clock of a session: what each step of an engine stores, and what is done between steps."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING

from ullage.host.record_views import NULL_RECORD, LazyRecord
from ullage.safety import Place
from ullage.segment.layout import P

if TYPE_CHECKING:
    from collections.abc import Callable

CHECK_INTERVAL_NS = 10_000_000_000

# In each step: to look a name up in an enumeration costs more than the store.
_STEPS, _STEP_NS, _RUNNING = map(int, (P.STEPS, P.STEP_NS, P.RUNNING))


class Chores:
    """What the steps of any engine in this process do between their own work."""

    def __init__(self) -> None:
        self._clocks: weakref.WeakSet[StepClock] = weakref.WeakSet()
        self.checks: list[tuple[Callable[[], object], Place]] = []
        self.harvests: list[tuple[Callable[[], object], Place]] = []

    def at_checks(self, check: Callable[[], object]) -> None:
        """Have ``check`` called in a step, at least 10 s apart."""
        self.checks.append((check, _place(check)))

    def at_ticks(self, harvest: Callable[[], object]) -> None:
        """Have ``harvest`` called in each step, on the thread that makes it. Again is a no-op."""
        if all(harvest is not known for known, _ in self.harvests):
            self.harvests.append((harvest, _place(harvest)))
        for clock in self._clocks:
            clock.due_ns = 0

    def called_by(self, clock: StepClock) -> None:
        """Have the steps of ``clock`` do this."""
        self._clocks.add(clock)

    def check(self) -> None:
        """Run what is due every 10 s."""
        for check, place in self.checks:
            if not place.off:
                with place:
                    check()

    def harvest(self) -> None:
        """Run what is due in each step."""
        for harvest, place in self.harvests:
            if not place.off:
                with place:
                    harvest()


class StepClock:
    """The steps of one engine instance in this process.

    Attributes:
        words: The plain words of the process record, to be stored into.
        steps: How many steps there were.
        due_ns: When the next chore is due.
        steady: The step under way brings nothing that must be sampled; ``engines._sampler`` decides.
        sample_at: The number of the step that is sampled next, even if its batch is that of the step before.
    """

    __slots__ = ("__weakref__", "_check_ns", "_chores", "due_ns", "sample_at", "steady", "steps", "words")

    def __init__(self, chores: Chores) -> None:
        self.words: memoryview | LazyRecord = NULL_RECORD
        self.steps = 0
        self.due_ns = self._check_ns = 0
        self.steady = False
        self.sample_at = 0
        self._chores = chores
        chores.called_by(self)

    def tick(self, running: int = -1) -> None:
        """Count one step. ``running``: requests that need another step; -1 if not known."""
        self.steps += 1
        words = self.words
        now = time.time_ns()
        words[_STEPS] = self.steps
        words[_STEP_NS] = now
        words[_RUNNING] = running
        if now > self.due_ns:
            self.catch_up(now)

    def catch_up(self, now: int) -> None:
        """Run the chores that are due at ``now`` (nanoseconds since the epoch)."""
        self._chores.harvest()
        if now > self._check_ns:
            self._check_ns = now + CHECK_INTERVAL_NS
            self._chores.check()
        self.due_ns = 0 if self._chores.harvests else self._check_ns

    def sample(self) -> None:
        """Sample the step under way, whatever its batch is."""
        self.steady = False
        self.sample_at = 0


def _place(function: Callable[[], object]) -> Place:
    return Place(f"step tick: {getattr(function, '__qualname__', function)}")
