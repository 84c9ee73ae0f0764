"""ullage: what a pre-allocated buffer needed, and how much it has, before it overflows.

    kv = ullage.buffer("kv_blocks", capacity=8191, unit="blocks", kind="managed")
    kv.observe(used)

Importing this module does nothing: it opens no file, starts no thread, and loads the standard library only.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ullage.errors import BoundsViolation, ShapeViolation
from ullage.inert import STAND_INS, say_once

__version__ = "0.1.0"
__all__ = [
    "BoundsViolation",
    "Buffer",
    "Contract",
    "SchedulerMetadata",
    "ShapeViolation",
    "buffer",
    "step",
    "watch",
]

if TYPE_CHECKING:
    from ullage.host.process import step
    from ullage.recording.buffers import Buffer, buffer
    from ullage.recording.contracts import Contract
    from ullage.recording.scheduler_metadata import SchedulerMetadata
    from ullage.recording.watching import watch

_HOME = {
    "Buffer": "ullage.recording.buffers",
    "Contract": "ullage.recording.contracts",
    "SchedulerMetadata": "ullage.recording.scheduler_metadata",
    "buffer": "ullage.recording.buffers",
    "step": "ullage.host.process",
    "watch": "ullage.recording.watching",
}


_MAX_ERRORS = 10
_errors: dict[str, int] = {}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ullage' has no attribute {name!r}")
    try:
        from importlib import import_module  # noqa: PLC0415  an import of ullage costs nothing until it is used

        value = getattr(import_module(_HOME[name]), name)
    except Exception as error:
        if name not in STAND_INS or os.environ.get("ULLAGE_STRICT") == "1":
            raise
        value = STAND_INS[name]
        say_once(name, error)
        _errors[name] = _errors.get(name, 0) + 1
        if _errors[name] < _MAX_ERRORS:
            return value  # the next use tries again
    globals()[name] = value
    return value
