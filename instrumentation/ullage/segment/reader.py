"""Reads a segment, of a living or a dead process, into frozen values.

Reads with ``pread`` only: a file that shrinks or vanishes is a short read, never a signal. This module knows how
records are sealed; ``gate`` decides which values they may have.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ullage.segment import gate, layout
from ullage.segment.gate import RefusedError, admitted
from ullage.segment.header import BadHeaderError, unpack_header
from ullage.segment.layout import SEAL, B, Region
from ullage.segment.snapshot import UNKNOWN, Snapshot
from ullage.segment.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from pathlib import Path

    from ullage.segment.gate import Record
    from ullage.segment.snapshot import Event

Row = TypeVar("Row")
_FLOCK = struct.Struct("hhqqi4x")
_RETRIES = 3
_OPEN_ERRORS = {
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.ELOOP: "not_regular",  # a symbolic link
    errno.ENXIO: "not_regular",  # a socket
}


class UnreadableError(Exception):
    """A file that cannot be read as a segment. ``reason`` is a bounded word, fit for a label; the message is clean."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(clean(message))
        self.reason = reason


def read(path: Path, *, events: bool = True) -> Snapshot:
    """Read the segment at ``path``; without ``events``, leave those out.

    Raises:
        FileNotFoundError: It is gone.
        UnreadableError: It is something else, a copy under another name, damaged, or of another format version; or its
            process says what no hook writes.
    """
    return _open(path, lambda fd: _read(fd, path.name, events=events))


def glance(path: Path) -> Snapshot:
    """Read process and identity alone, a few hundred bytes: a directory may hold thousands of files.

    Raises:
        FileNotFoundError, UnreadableError: As ``read``.
    """
    return _open(path, lambda fd: _Reading(fd, path.name).snapshot())


def _open(path: Path, use: Callable[[int], Snapshot]) -> Snapshot:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableError(_OPEN_ERRORS.get(error.errno or 0, "io"), f"{path}: {error.strerror}") from error
    except ValueError as error:  # a name with a zero byte
        raise UnreadableError("io", f"{path!r}: {error}") from error
    try:
        return use(fd)
    except (BadHeaderError, RefusedError) as error:
        raise UnreadableError(error.reason, f"{path}: {error}") from error
    except OSError as error:
        raise UnreadableError("io", f"{path}: {error.strerror}") from error
    finally:
        os.close(fd)


def relevance(path: Path) -> tuple[bool, int]:
    """Return whether a process holds the file, and when it was last written (ns): the larger, the more telling."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False, 0
    try:
        return is_locked(fd), os.fstat(fd).st_mtime_ns
    except OSError:
        return False, 0
    finally:
        os.close(fd)


def is_locked(fd: int) -> bool:
    """Tell whether a writer holds the segment's lock: the kernel drops it when the process is gone."""
    probe = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    return bool(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, probe))[0] != fcntl.F_UNLCK)


def _read(fd: int, name: str, *, events: bool) -> Snapshot:
    reading = _Reading(fd, name)
    return replace(
        reading.snapshot(),
        probes=reading.rows(layout.PROBES, gate.probe, lambda probe: probe.name),
        buffers=reading.rows(layout.BUFFERS, gate.buffer, lambda buffer: None if buffer.inventory else buffer.name),
        claims=reading.rows(layout.CLAIMS, gate.claim, lambda _claim: None),
        events=tuple(sorted(reading.rows(layout.EVENTS, gate.event, lambda event: event.number), key=_number))
        if events
        else (),
        half_written=reading.half_written,
        refused=reading.refused,
    )


def _number(event: Event) -> int:
    return event.number


class _Reading:
    """One file being read.

    Attributes:
        half_written: Records caught in the middle of a write so far.
        refused: Records so far whose values no hook writes.
    """

    def __init__(self, fd: int, name: str) -> None:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError("not_regular", "not a regular file")
        if status.st_size > layout.MAX_FILE_BYTES:
            raise RefusedError(
                "oversized", f"{status.st_size} bytes; a segment has at most {layout.MAX_FILE_BYTES}, so this is none"
            )
        # The lock before the contents: if no process holds it, what is read afterwards is final.
        self._alive = is_locked(fd)
        self._fd = fd
        self._header = unpack_header(os.pread(fd, layout.PAGE, 0))
        if status.st_size < self._header.file_bytes:
            raise RefusedError("truncated", f"shorter than the {self._header.file_bytes} bytes that its header states")
        own = self._header.incarnation + layout.SUFFIX
        if name != own:
            raise RefusedError("copy", f"a copy: the segment in it is {own}; to read it, give it that name")
        self._words = self._plain(layout.PROCESS, len(layout.P))
        self.half_written = self.refused = 0

    def snapshot(self) -> Snapshot:
        """Return process and identity; no records."""
        sealed = next(self._sealed(layout.IDENTITY), None)
        return Snapshot(
            incarnation=self._header.incarnation,
            version=f"{self._header.major}.{self._header.minor}",
            alive=self._alive,
            # A process that died while it published its identity again has left numbers that are worth reading.
            identity=gate.identity(sealed[2]) if sealed is not None else {"process": UNKNOWN},
            process=gate.process(self._words),
            probes=(),
            buffers=(),
            claims=(),
            events=(),
            half_written=self.half_written,
        )

    def rows(self, known: Region, make: Callable[[Record], Row], key: Callable[[Row], Hashable]) -> tuple[Row, ...]:
        """Return the records of one region, as the gate makes them; counts those that it refuses."""
        rows, refused = admitted(self._sealed(known), make, key)
        self.refused += refused
        return rows

    def _plain(self, known: Region, count: int) -> memoryview:
        region = self._header.regions[known.id]
        data = os.pread(self._fd, min(region.sealed_at, count * 8), region.offset)
        return memoryview(data.ljust(count * 8, b"\0")).cast("q")

    def _sealed(self, known: Region) -> Iterator[Record]:
        """Yield (sequence, plain words, payload) of each written record, as far as this version knows it."""
        region = self._header.regions.get(known.id)
        if region is None:
            return
        check = _epochs_match if known.id == layout.RegionId.BUFFERS else None
        end = self._words[layout.ENDS[known.id]] if known.id in layout.ENDS else 0
        plain = struct.Struct(f"<{known.sealed_at // 8}q")
        for record, sequence, payload in _records(self._fd, region, end, check):
            if payload is None:
                self.half_written += 1
                continue
            if region.sealed_at < known.sealed_at:
                record = record[: region.sealed_at].ljust(known.sealed_at, b"\0")  # noqa: PLW2901
            yield sequence, plain.unpack_from(record), payload.ljust(known.sealed_bytes, b"\0")


def _records(
    fd: int, region: Region, end: int, check: Callable[[bytes], bool] | None
) -> Iterator[tuple[bytes, int, bytes | None]]:
    """Yield (record, sequence, payload) of the used records; the payload is None for a half-written one.

    From ``end`` on, none was ever used; 0 if that is not known.
    """
    stride, seal_at, payload_at = region.stride, region.sealed_at, region.sealed_at + SEAL.size
    records = end if 0 < end <= region.records else region.records
    data = os.pread(fd, records * stride, region.offset)
    empty = bytes(SEAL.size)
    for index in range(len(data) // stride):
        start = index * stride
        if data[start + seal_at : start + payload_at] == empty:
            continue
        for attempt in range(_RETRIES):
            if attempt:
                record = os.pread(fd, stride, region.offset + start).ljust(stride, b"\0")
            else:
                record = data[start : start + stride]
            sequence, crc = SEAL.unpack_from(record, seal_at)
            payload = record[payload_at : payload_at + region.sealed_bytes]
            whole = bool(sequence) and layout.checksum(payload, sequence) == crc
            if whole and (check is None or check(record)):
                break
        # Plain words of two epochs are still sound one by one: a writer that died between them is worth reading.
        yield record, sequence, payload if whole else None


def _epochs_match(record: bytes) -> bool:
    epoch = B.EPOCH * 8
    check = B.EPOCH_CHECK * 8
    return record[epoch : epoch + 8] == record[check : check + 8]
