"""A tensor as a buffer: its capacity is what it has, and a slice beyond it is seen."""

from __future__ import annotations

import weakref
from typing import Any

from ullage import safety
from ullage.inert import InertWatched
from ullage.recording.buffers import Buffer, buffer


class Watched:
    """A handle on one dimension of a tensor, which it does not keep alive.

    Attributes:
        observe: ``observe(n)``: so much of the dimension is needed now.
    """

    __slots__ = ("_buffer", "_dim", "_place", "_tensor", "observe")

    def __init__(self, name: str, tensor: Any, dim: int, buffer: Buffer) -> None:
        self._dim = dim
        self._buffer = buffer
        self._tensor = weakref.ref(tensor)
        self._place = safety.Place(f"watch {name}")
        self.observe = buffer.observe

    @property
    def capacity(self) -> int:
        """The size of the dimension."""
        return self._buffer.capacity

    def slice(self, n: int) -> Any:
        """Observe ``n``, and return the first ``n`` of the tensor along the dimension.

        Python clamps a slice that is too long, silently, and so does this; but it is counted.

        Raises:
            ReferenceError: The tensor is gone.
        """
        self._buffer.observe(n)
        tensor = self._tensor()
        if tensor is None:
            raise ReferenceError(f"the tensor that {self._buffer.name} watched is gone; rebind another")
        dims = len(tensor.shape)
        return tensor[(slice(None),) * (self._dim % dims) + (slice(None, n),)]

    def rebind(self, tensor: Any) -> None:
        """Watch another tensor in its place; another size is a resize."""
        with self._place:
            self._tensor = weakref.ref(tensor)
            self._buffer.resize(tensor.shape[self._dim])

    def close(self) -> None:
        """Free the record."""
        self._buffer.close()


def watch(name: str, tensor: Any, dim: int = 0, unit: str = "rows", *, kind: str = "hard") -> Watched | InertWatched:
    """Watch one dimension of a tensor (torch or numpy); reads its shape, never its contents.

    Args:
        name: As for ``ullage.buffer``.
        tensor: Held weakly.
        dim: Which dimension.
        unit: What it counts.
        kind: As for ``ullage.buffer``.

    Returns:
        A handle. If ``tensor`` has no such dimension, or cannot be held weakly, one that records nothing and slices
        all the same: the error is counted and logged once, and raised only under ``ULLAGE_STRICT=1``.
    """
    try:
        location = "host" if str(getattr(tensor, "device", "cpu")) == "cpu" else "device"
        nbytes = getattr(tensor, "nbytes", 0)
        capacity = tensor.shape[dim]
        weakref.ref(tensor)
        handle = buffer(name, capacity=capacity, unit=unit, kind=kind, location=location, bytes=nbytes)
        return Watched(name, tensor, dim, handle)
    except Exception as error:
        safety.shield(f"watch {safety.told(name)}").caught(error)
        return InertWatched(name, tensor, dim, unit)
