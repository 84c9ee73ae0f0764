"""Which steps bring something new: shapes, and what grows with them, are looked at in those only.

Most steps are like the one before. What a hook costs is not what it does, but that it does it in each of them
(docs/adr/0006-what-is-new.md).
"""

from __future__ import annotations

LOOK_EVERY = 64
"""One step in so many is looked at, although it seems to bring nothing new."""


class Novelty:
    """What was looked at in this process. Use the module's ``novelty``.

    Who sees a batch first says so, and only if that is in the process that runs it: elsewhere nothing is familiar.

    Attributes:
        familiar: The step under way brings nothing that one that was looked at did not bring.
        step: Its number.
        look_at: The number of the step that is looked at whatever it brings; 0 is the next one, and those after it.
    """

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """An engine starts, or starts again after it had nothing to do: nothing was looked at."""
        self.familiar = False
        self.step = self.look_at = 0
        self._tokens = self._requests = -1
        self._near = False

    def judge(self, tokens: int, requests: int, *, grows: bool) -> None:
        """A step has another batch than the one before it, or is to be looked at.

        ``grows``: it has new requests, or more tokens than decoding takes: a sequence may be longer by far than it was.

        All that is sized for a batch has room for a smaller one if it has room for this one.
        """
        self.familiar = tokens <= self._tokens and requests <= self._requests and self.step < self.look_at and not grows
        if not self.familiar:
            self._tokens, self._requests = max(tokens, self._tokens), max(requests, self._requests)
            self.look_at = 0 if grows or self._near else self.step + LOOK_EVERY

    def stay(self) -> None:
        """A limit is near: look at every step, until the engine has nothing to do."""
        self._near = True
        self.look_at = 0


novelty = Novelty()
