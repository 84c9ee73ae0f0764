"""What ullage raises, where its user asked it to refuse."""

from __future__ import annotations


class BoundsViolation(IndexError):  # noqa: N818  it is what happened, not what went wrong in ullage
    """An index is outside [0, capacity); nothing was written.

    Attributes:
        index: The index.
        position: Where in the batch it stands; None if that is not known.
        capacity: How many rows there are.
    """

    def __init__(self, message: str, *, index: int, position: int | None, capacity: int) -> None:
        super().__init__(message)
        self.index = index
        self.position = position
        self.capacity = capacity
