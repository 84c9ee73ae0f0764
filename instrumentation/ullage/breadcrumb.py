"""The last thing that a process says before it dies inside a step: where it is, and with which batch.

A few stores for each step, into words that outlive the process. What fails leaves its words standing.
"""

from __future__ import annotations

import time

from ullage.segment.layout import P
from ullage.segment.phase import Phase
from ullage.session import session


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

    def begin(self, phase: Phase) -> None:
        """A step begins, in ``phase``; its batch is not known yet."""
        self.batch(0, 0)
        session.store(P.STEP_BEGIN_NS, time.time_ns())
        self.enter(phase)

    def batch(self, tokens: int, requests: int) -> None:
        """The batch of the step is known."""
        session.store(P.BATCH_TOKENS, tokens)
        session.store(P.BATCH_REQUESTS, requests)

    def end(self) -> None:
        """The step is over."""
        session.store(P.STEP_BEGIN_NS, 0)

    def enter(self, phase: Phase) -> None:
        """The process is in ``phase`` now."""
        self.phase = phase
        self.rehearsing = phase >= Phase.DUMMY_RUN
        session.store(P.PHASE, phase)

    def rehearse(self, phase: Phase) -> None:
        """A run of the engine's own begins, perhaps within another, or within a step."""
        self._outer.append(self.phase)
        self.enter(phase)

    def rehearsed(self) -> None:
        """It is over, whatever came of it."""
        self.enter(self._outer.pop())


breadcrumb = Breadcrumb()
