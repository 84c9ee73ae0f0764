"""The step sampler: which steps of an engine instance bring something that was not recorded yet.

Most steps are like the one before. What a patch costs is not what it does, but that it does it in each of them
(docs/adr/0006-what-is-new.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ullage.progress.step_clock import StepClock

SAMPLE_EVERY = 512
"""One step in 512 is sampled, although it seems to bring nothing new."""


class StepSampler:
    """What was sampled of one engine instance in this process.

    The scheduler's probe classifies a batch, if the runner is in the same process. Elsewhere no step is steady.
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock = clock
        self.start()

    def start(self) -> None:
        """Forget what was sampled: an engine starts, or starts again after it was idle."""
        self._sample_at = 0
        self._tokens = self._requests = -1
        self._clock.sample()

    def classify(self, tokens: int, requests: int, *, plain: bool) -> None:
        """Decide whether the step is steady: it brings nothing that a sampled step did not bring.

        ``plain``: no request joined, and all of them decode. Else a sequence may be longer by far than any that was
        sampled, and the step after it is sampled as well.

        All that is sized for a batch has room for a smaller one if it has room for this one.
        """
        clock = self._clock
        smaller = tokens <= self._tokens and requests <= self._requests
        if smaller and clock.steps < self._sample_at and plain:
            clock.steady, clock.sample_at = True, self._sample_at
        else:
            self._tokens, self._requests = max(tokens, self._tokens), max(requests, self._requests)
            self._sample_at = clock.steps + SAMPLE_EVERY if plain else 0
            clock.sample()

    def within(self, steps: int) -> None:
        """In a sampled step: after ``steps`` more, something may have come to its limit. Sample again by then."""
        self._sample_at = min(self._sample_at, self._clock.steps + steps)
