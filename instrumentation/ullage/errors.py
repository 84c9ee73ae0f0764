"""What ullage raises, where its user asked it to refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ullage.segment.agreement import Claim


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


class ShapeViolation(RuntimeError):  # noqa: N818  the same
    """A tensor does not satisfy a contract.

    Attributes:
        expected: The claim that it does not satisfy (``ullage.segment.agreement.Claim``): source, shape, inputs.
        actual: What the tensor is, in the same form.
        causes: The likeliest causes in words, the likeliest first; empty where only the hook is installed.
    """

    def __init__(self, message: str, *, expected: Claim, actual: Claim, causes: tuple[str, ...]) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual
        self.causes = causes
