"""Where in a step a process is: the values of the plain word ``PHASE``."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """Which function of the engine a process is in. The order of the values means nothing."""

    NONE = 0
    SCHEDULE = 1
    EXECUTE = 2
    SAMPLE = 3
    DUMMY_RUN = 4
    PROFILE_RUN = 5
    CAPTURE = 6

    @property
    def is_dummy(self) -> bool:
        """Whether the engine runs a batch of its own, which is no request's work."""
        return self in _DUMMY


_DUMMY = frozenset({Phase.DUMMY_RUN, Phase.PROFILE_RUN, Phase.CAPTURE})
