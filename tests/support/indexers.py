"""What tests of indexers share: what was recorded of one, without a file, and how to hide indices from the host."""

from __future__ import annotations

import itertools

from ullage.segment import gate
from ullage.segment.layout import HOT_WORDS, B, BufferPayload

_numbers = itertools.count()


def name():
    """A name that no other indexer of this process has."""
    return f"rows {next(_numbers)}"


def recorded(indexer):
    """Record what happens to ``indexer`` from now on; return a function that reads it as the sidecar would."""
    words = memoryview(bytearray(8 * 64)).cast("q")
    words[B.CAPACITY] = indexer.capacity
    indexer._handle._zero()
    indexer._handle._bind(words[HOT_WORDS], words)
    descriptor = BufferPayload(0, 1, 1, 1, 0, b"rows", b"", b"rows").pack()
    return lambda: gate.buffer((1, tuple(words[: len(B)]), descriptor))


def unseen(indexer):
    """Have a CPU indexer treat all indices as if only a device knew them."""
    indexer._host_sees = False
    return indexer
