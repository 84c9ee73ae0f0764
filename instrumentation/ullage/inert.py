"""What stands in for a public name whose module cannot be imported: it does nothing, and the host goes on.

A process without a free descriptor cannot import. ``SchedulerMetadata`` has no stand-in: its host needs the sizes.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

_said: set[str] = set()


class InertBuffer:
    """Takes every call of a buffer, and records nothing."""

    def __init__(self, name: str = "", *, capacity: int = 0, unit: str = "", **_: Any) -> None:
        self.name, self.capacity, self.unit = name, capacity, unit

    def observe(self, *_: Any, **__: Any) -> None:
        """Do nothing, like all other functions of a buffer."""

    resize = exhausted = deferred = checked = violated = warn_at = close = observe


class InertContract:
    """Takes every call of a contract; all that it is shown satisfies it."""

    claims = relations = ()

    def __init__(self, name: str = "", *, dims: Any = ("size",), unit: str = "", dtype: str = "", **_: Any) -> None:
        self.name, self.dims, self.unit, self.dtype = name, tuple(dims), unit, dtype

    def claim(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def check(self, *_: Any, **__: Any) -> bool:
        """Return True."""
        return True

    compare = check
    require = close = claim


class InertWatched(InertBuffer):
    """A tensor that is not watched; its slices are what they would be."""

    def __init__(self, name: str, tensor: Any, dim: int = 0, unit: str = "rows", **_: Any) -> None:
        super().__init__(name, unit=unit)
        self._tensor, self._dim = tensor, dim

    def slice(self, n: int) -> Any:
        """Return the first ``n`` of the tensor along the dimension."""
        dims = len(getattr(self._tensor, "shape", (1,)))
        return self._tensor[(slice(None),) * (self._dim % dims) + (slice(None, n),) if dims > 1 else slice(None, n)]

    def rebind(self, tensor: Any) -> None:
        """Take another tensor in its place."""
        self._tensor = tensor


def step() -> None:
    """Do nothing."""


STAND_INS = {
    "Buffer": InertBuffer,
    "Contract": InertContract,
    "buffer": InertBuffer,
    "step": step,
    "watch": InertWatched,
}


def say_once(name: str, error: Exception) -> None:
    """Say in one line of stderr that ``name`` is not there; logging may need an import of its own."""
    if name in _said:
        return
    _said.add(name)
    with suppress(Exception):  # it may be closed, or not there
        sys.stderr.write(f"ullage.{name}: {type(error).__name__}: {error} (nothing is recorded, the host goes on)\n")
