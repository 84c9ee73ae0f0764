"""A limit on repeated log lines."""

from __future__ import annotations

import time


class RateLimit:
    """Allows an action at once, then again each time ``seconds`` have passed since it was last allowed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = float("-inf")

    def allows(self) -> bool:
        """Return whether the action is due, and count it as done if it is."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True
