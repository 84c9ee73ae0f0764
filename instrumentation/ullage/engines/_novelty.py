"""Which steps bring something new: shapes, and what grows with them, are looked at in those only.

Most steps are like the one before. What a hook costs is not what it does, but that it does it in each of them
(docs/adr/0006-what-is-new.md).
"""

from __future__ import annotations

from ullage.beat import beat

LOOK_EVERY = 512
"""One step in so many is looked at, although it seems to bring nothing new."""


class Novelty:
    """What was looked at in this process. Use the module's ``novelty``.

    Who sees a batch first has it judged, if that is in the process that runs it: elsewhere nothing is familiar.
    """

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """An engine starts, or starts again after it had nothing to do: nothing was looked at."""
        self._look_at = 0
        self._tokens = self._requests = -1
        self.look()

    def judge(self, tokens: int, requests: int, *, plain: bool) -> None:
        """Say whether the step is familiar: it brings nothing that one that was looked at did not bring.

        ``plain``: nobody joined those who run, and all of them decode. Else a sequence may be longer by far than any
        that was looked at, and the step after it is looked at as well.

        All that is sized for a batch has room for a smaller one if it has room for this one.
        """
        smaller = tokens <= self._tokens and requests <= self._requests
        if smaller and beat.steps < self._look_at and plain:
            beat.familiar, beat.judge_at = True, self._look_at
        else:
            self._tokens, self._requests = max(tokens, self._tokens), max(requests, self._requests)
            self._look_at = beat.steps + LOOK_EVERY if plain else 0
            self.look()

    def look(self) -> None:
        """Something is to be looked at in the step under way, whatever its batch is."""
        beat.familiar = False
        beat.judge_at = 0

    def within(self, steps: int) -> None:
        """In a step that is looked at: in so many steps something may have come to its limit. Look again by then."""
        self._look_at = min(self._look_at, beat.steps + steps)


novelty = Novelty()
