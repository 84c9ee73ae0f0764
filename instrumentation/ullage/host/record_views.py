"""Where stores go: words of the segment, or what stands for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

NULL_RECORD = memoryview(bytearray(8 * 64)).cast("q")
"""Where stores go when there is no segment: the same code runs, and the result is not read."""

EMPTY_RECORD = memoryview(bytes(8 * 64)).cast("q")
"""A record that counted nothing."""


class LazyRecord:
    """Stands for words in a forked child until it stores for the first time."""

    __slots__ = ("_attach",)

    def __init__(self, attach: Callable[[], memoryview]) -> None:
        self._attach = attach

    def __setitem__(self, index: int, value: int) -> None:
        self._attach()[index] = value

    def __getitem__(self, index: int) -> int:
        return self._attach()[index]
