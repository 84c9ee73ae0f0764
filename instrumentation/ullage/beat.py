"""What each iteration of an engine stores of its process, and what is done now and then beside it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ullage.safety import Place
from ullage.segment.layout import P
from ullage.words import SINK, Pending

if TYPE_CHECKING:
    from collections.abc import Callable

CHECK_INTERVAL_NS = 10_000_000_000

# In each step: to look a name up in an enumeration costs more than the store.
_STEPS, _STEP_NS, _RUNNING = map(int, (P.STEPS, P.STEP_NS, P.RUNNING))


class Beat:
    """The iterations of this process. Use the module's ``beat``.

    Attributes:
        words: The plain words of the process, to be stored into.
        steps: How many iterations there were.
        due_ns: When something is to be done that is not done in each step.
        familiar: The one under way brings nothing that is to be looked at. Said by who knows (``engines._novelty``).
        judge_at: The number of the one for which that is to be said anew, even if its batch is that of the one before.
    """

    __slots__ = ("_check_ns", "_checks", "_harvests", "due_ns", "familiar", "judge_at", "steps", "words")

    def __init__(self) -> None:
        self.words: memoryview | Pending = SINK
        self.steps = 0
        self.due_ns = self._check_ns = 0
        self.familiar = False
        self.judge_at = 0
        self._checks: list[tuple[Callable[[], object], Place]] = []
        self._harvests: list[tuple[Callable[[], object], Place]] = []

    def tick(self, running: int = -1) -> None:
        """One engine iteration is over. ``running``: requests that need the next one; -1 if not known."""
        self.steps += 1
        words = self.words
        now = time.time_ns()
        words[_STEPS] = self.steps
        words[_STEP_NS] = now
        words[_RUNNING] = running
        if now > self.due_ns:
            self.catch_up(now)

    def catch_up(self, now: int) -> None:
        """Do what is due at ``now``."""
        for harvest, place in self._harvests:
            if not place.off:
                with place:
                    harvest()
        if now > self._check_ns:
            self._check_ns = now + CHECK_INTERVAL_NS
            self.check()
        self.due_ns = 0 if self._harvests else self._check_ns

    def check(self) -> None:
        """Do what is done at least 10 s apart."""
        for check, place in self._checks:
            if not place.off:
                with place:
                    check()

    def at_ticks(self, harvest: Callable[[], object]) -> None:
        """Have ``harvest`` called at each step tick, on the thread that makes it. Again is a no-op."""
        if all(harvest is not known for known, _ in self._harvests):
            self._harvests.append((harvest, _place(harvest)))
        self.due_ns = 0

    def at_checks(self, check: Callable[[], object]) -> None:
        """Have ``check`` called in a step tick, at least 10 s apart."""
        self._checks.append((check, _place(check)))


def _place(function: Callable[[], object]) -> Place:
    return Place(f"step tick: {getattr(function, '__qualname__', function)}")


beat = Beat()
