"""The last thing that a process says before it dies inside a step: where it is, and with which batch.

A few stores for each step, into words that outlive the process. What fails leaves its words standing.
"""

from __future__ import annotations

import time

from ullage.beat import beat
from ullage.segment.layout import P
from ullage.segment.phase import Phase

# In each step: to look a name up in an enumeration costs more than the store.
_PHASE, _BEGIN_NS, _TOKENS, _REQUESTS = map(int, (P.PHASE, P.STEP_BEGIN_NS, P.BATCH_TOKENS, P.BATCH_REQUESTS))

_NONE = Phase.NONE


class Breadcrumb:
    """Where this process is. Use the module's ``breadcrumb``.

    Attributes:
        rehearsing: A run of the engine's own is under way: no request's work, so no use of a buffer.
        phase: Which function of the engine the process is in.
    """

    def __init__(self) -> None:
        self.rehearsing = False
        self.phase = Phase.NONE
        self._outer: list[Phase] = []

    def begin(self, phase: Phase, tokens: int = 0, requests: int = 0) -> None:
        """A step begins, in ``phase``; zeros for a batch that is not known."""
        self.batch(tokens, requests)
        beat.words[_BEGIN_NS] = time.time_ns()
        self.enter(phase)

    def batch(self, tokens: int, requests: int) -> None:
        """This is the batch of the step, and of those that follow until there is another."""
        words = beat.words
        words[_TOKENS] = tokens
        words[_REQUESTS] = requests

    def end(self) -> None:
        """The step is over."""
        words = beat.words
        words[_BEGIN_NS] = 0
        words[_PHASE] = 0
        self.phase = _NONE

    def enter(self, phase: Phase) -> None:
        """The process is in ``phase`` now."""
        beat.words[_PHASE] = phase
        self.phase = phase

    def rehearse(self, phase: Phase) -> None:
        """A run of the engine's own begins, perhaps within another, or within a step."""
        self._outer.append(self.phase)
        self.rehearsing = True
        self.enter(phase)

    def rehearsed(self) -> None:
        """It is over, whatever came of it."""
        self.enter(self._outer.pop())
        self.rehearsing = self.phase >= Phase.DUMMY_RUN


breadcrumb = Breadcrumb()
