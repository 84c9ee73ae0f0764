"""ullage: what a pre-allocated buffer needed, and how much it has, before it overflows.

    kv = ullage.buffer("kv_blocks", capacity=8191, unit="blocks", kind="managed")
    kv.observe(used)

Importing this module does nothing: it opens no file, starts no thread, and loads the standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["BoundsViolation", "Buffer", "buffer", "step"]

if TYPE_CHECKING:
    from ullage.buffers import Buffer, buffer
    from ullage.errors import BoundsViolation
    from ullage.session import step

_HOME = {
    "BoundsViolation": "ullage.errors",
    "Buffer": "ullage.buffers",
    "buffer": "ullage.buffers",
    "step": "ullage.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ullage' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  an import of ullage costs nothing until it is used

    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
