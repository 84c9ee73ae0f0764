"""Creates a segment and stores into it. One per incarnation of a process; nothing here is on the hot path."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import mmap
import os
import secrets
import struct
import sys
import time
from typing import TYPE_CHECKING

from ullage.segment import layout
from ullage.segment.header import pack_header
from ullage.segment.layout import SEAL, Region

if TYPE_CHECKING:
    from pathlib import Path

FLOCK = struct.Struct("hhqqi4x")
"""``struct flock`` on 64-bit Linux: type, whence, start, length, pid."""


class Segment:
    """One mapped file, and the descriptor whose lock says that its writer lives.

    The lock is an open-file-description lock on an ``open()`` of its own: ``mmap`` keeps a duplicate of the
    descriptor that it is given, and a lock on that one would outlive its owner in a forked child.
    """

    def __init__(self, path: Path, mapping: mmap.mmap, lock_fd: int, incarnation: str) -> None:
        self.path = path
        self.incarnation = incarnation
        self._mapping = mapping
        self._lock_fd = lock_fd
        self._file = os.fstat(lock_fd)[1:3]  # inode and device
        self._bytes = memoryview(mapping)
        self._words = self._bytes.cast("q")
        self._sequences = itertools.count(1)
        self._event_numbers = itertools.count(1)
        regions = (layout.PROBES, layout.BUFFERS, layout.CLAIMS)
        self._free = {region.id: itertools.chain(range(region.records)) for region in regions}
        self._ends = dict.fromkeys(self._free, 0)
        self.process = self.words(layout.PROCESS, 0)

    @classmethod
    def create(cls, directory: Path, identity: bytes = b"") -> Segment:
        """Create a segment in ``directory`` with that identity, a JSON object, and hold its lock.

        The file appears under its name only when it is whole: made under a temporary name, its blocks
        allocated (a full disk must be an exception, not a signal at the first store), then renamed.

        Raises:
            OSError: The directory is missing, not writable, full, or its file system knows no such lock.
        """
        if sys.byteorder != "little":
            raise OSError("the segment format is little-endian; this machine is not")
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise OSError("this platform has no open-file-description locks (Linux has)")
        incarnation = secrets.token_bytes(layout.INCARNATION_BYTES)
        temporary = directory / f".{incarnation.hex()}.tmp"
        path = directory / f"{incarnation.hex()}{layout.SUFFIX}"
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        with contextlib.ExitStack() as undo:
            fd = os.open(temporary, flags | os.O_CREAT | os.O_EXCL, 0o644)
            undo.callback(_unlink, temporary)
            try:
                os.fchmod(fd, 0o644)
                os.posix_fallocate(fd, 0, layout.FILE_BYTES)
                lock_fd = os.open(temporary, flags)
                undo.callback(os.close, lock_fd)
                fcntl.fcntl(lock_fd, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
                mapping = mmap.mmap(fd, layout.FILE_BYTES)
            finally:
                os.close(fd)
            header = pack_header(incarnation)
            mapping[: len(header)] = header
            segment = cls(path, mapping, lock_fd, incarnation.hex())
            segment.process[layout.P.PID] = os.getpid()
            segment.process[layout.P.STARTED_NS] = time.time_ns()
            segment.process[layout.P.RUNNING] = -1
            if identity:
                segment.seal(layout.IDENTITY, 0, identity)
            temporary.rename(path)
            undo.pop_all()
        return segment

    def words(self, region: Region, index: int) -> memoryview:
        """Return the plain words of one record, to be stored into directly."""
        start = (region.offset + index * region.stride) // 8
        return self._words[start : start + region.sealed_at // 8]

    def allocate(self, region: Region) -> int | None:
        """Return the index of an unused record, or None when all are taken."""
        index = next(self._free[region.id], None)
        if index is not None and index >= self._ends[region.id]:
            self._ends[region.id] = self.process[layout.ENDS[region.id]] = index + 1
        return index

    def release(self, region: Region, index: int) -> None:
        """Make a record empty and give its index back."""
        self._store_seal(region, index, 0, 0)
        self._free[region.id] = itertools.chain([index], self._free[region.id])

    def seal(self, region: Region, index: int, payload: bytes, sequence: int | None = None) -> None:
        """Write a record's payload so that a reader sees all of it or counts it as half-written."""
        number = next(self._sequences) if sequence is None else sequence
        start = region.offset + index * region.stride + region.sealed_at
        padded = payload.ljust(region.sealed_bytes, b"\0")
        self._words[start // 8] = 0
        self._bytes[start + SEAL.size : start + SEAL.size + region.sealed_bytes] = padded
        self._store_seal(region, index, number, layout.checksum(padded, number))

    def emit(self, event: layout.EventPayload) -> None:
        """Append an event to the ring. Needs no lock: every event has a record of its own."""
        number = next(self._event_numbers)
        region = layout.EVENTS
        self.seal(region, (number - 1) % region.records, event.pack(), number)
        self.process[layout.P.EVENTS] = number

    def close(self) -> bool:
        """Let go of the lock, as the end of the process would; the file stays for its readers.

        In a forked child this closes the child's copy only: the parent holds its lock, and goes on storing. A host that
        closes all descriptors may have another file under the number by now, which is left alone.

        Returns:
            The descriptor was still ours, so that of the mapping is, too: the segment may be dropped.
        """
        with contextlib.suppress(OSError):
            if os.fstat(self._lock_fd)[1:3] == self._file:
                os.close(self._lock_fd)
                return True
        return False

    def _store_seal(self, region: Region, index: int, sequence: int, crc: int) -> None:
        start = (region.offset + index * region.stride + region.sealed_at) // 8
        if not sequence:
            self._words[start] = 0
        self._words[start + 1] = crc
        self._words[start] = sequence


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
