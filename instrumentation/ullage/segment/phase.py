"""Where in a step a process is: the values of the plain word ``PHASE``."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """Which function of the engine a process is in. From ``DUMMY_RUN`` on, what runs is no request's work."""

    NONE = 0
    SCHEDULE = 1
    EXECUTE = 2
    SAMPLE = 3
    DUMMY_RUN = 4
    PROFILE_RUN = 5
    CAPTURE = 6
