"""Where an engine is in its step: the last thing that a process says before it dies inside one.

A few stores for each step, into words that outlive the process. After a failure they stay as they were.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ullage.segment.layout import P, Phase

if TYPE_CHECKING:
    from ullage.progress.step_clock import StepClock

# In each step: to look a name up in an enumeration costs more than the store.
_PHASE, _BEGIN_NS, _TOKENS, _REQUESTS = map(int, (P.PHASE, P.STEP_BEGIN_NS, P.BATCH_TOKENS, P.BATCH_REQUESTS))

_NONE = Phase.NONE


class StepPhase:
    """The phase of one engine instance in this process.

    Attributes:
        dummy: A dummy, profile or capture run is under way: it is no request's work, so no use of a buffer.
        current: The engine's function that the process is in.
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self.dummy = False
        self.current = Phase.NONE
        self._outer: list[tuple[bool, Phase]] = []

    def begin(self, phase: Phase, tokens: int = 0, requests: int = 0) -> None:
        """Begin a step in ``phase``; zeros for a batch that is not known."""
        self.batch(tokens, requests)
        self._clock.words[_BEGIN_NS] = time.time_ns()
        self.enter(phase)

    def batch(self, tokens: int, requests: int) -> None:
        """Store the batch of the step, and of those that follow until there is another."""
        words = self._clock.words
        words[_TOKENS] = tokens
        words[_REQUESTS] = requests

    def end(self) -> None:
        """End the step."""
        words = self._clock.words
        words[_BEGIN_NS] = 0
        words[_PHASE] = 0
        self.current = _NONE

    def enter(self, phase: Phase) -> None:
        """Store that the process is in ``phase`` now."""
        self._clock.words[_PHASE] = phase
        self.current = phase

    def begin_dummy_run(self, phase: Phase) -> None:
        """Begin a run of the engine's own, perhaps within another, or within a step."""
        self._outer.append((self.dummy, self.current))
        self.dummy = True
        self.enter(phase)

    def end_dummy_run(self) -> None:
        """End it, whatever came of it."""
        self.dummy, phase = self._outer.pop()
        self.enter(phase)
