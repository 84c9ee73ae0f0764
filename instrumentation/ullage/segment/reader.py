"""Reads a segment, of a living or a dead process, into frozen values.

Reads with ``pread`` only: a file that shrinks or vanishes is a short read, never a signal.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
from typing import TYPE_CHECKING, Any

from ullage.segment import layout
from ullage.segment.header import BadHeaderError, unpack_header
from ullage.segment.layout import (
    SEAL,
    B,
    BufferPayload,
    ClaimPayload,
    EventKind,
    EventPayload,
    Kind,
    Location,
    ProbePayload,
    ProbeStatus,
    Region,
    Relation,
    Role,
    enum_of,
    untext,
)
from ullage.segment.snapshot import Buffer, Claim, Event, Probe, Process, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_FLOCK = struct.Struct("hhqqi4x")
_RETRIES = 3
_OPEN_ERRORS = {
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.ELOOP: "not_regular",  # a symbolic link
    errno.ENXIO: "not_regular",  # a socket
}


class UnreadableError(Exception):
    """A file that cannot be read as a segment. ``reason`` is a bounded word, fit for a label."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def read(path: Path, *, events: bool = True) -> Snapshot:
    """Read the segment at ``path``; without ``events``, leave those out.

    Raises:
        FileNotFoundError: It is gone.
        UnreadableError: It is something else, damaged, or of another format version.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnreadableError(_OPEN_ERRORS.get(error.errno or 0, "io"), f"{path}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UnreadableError("not_regular", f"{path}: not a regular file")
        return _read(fd, events=events)
    except BadHeaderError as error:
        raise UnreadableError(error.reason, f"{path}: {error}") from error
    except OSError as error:
        raise UnreadableError("io", f"{path}: {error.strerror}") from error
    finally:
        os.close(fd)


def is_locked(fd: int) -> bool:
    """Tell whether a writer holds the segment's lock: the kernel drops it when the process is gone."""
    probe = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    return bool(_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, probe))[0] != fcntl.F_UNLCK)


def _read(fd: int, *, events: bool) -> Snapshot:
    # The lock first: if nobody holds it, what is read afterwards is final.
    alive = is_locked(fd)
    header = unpack_header(os.pread(fd, layout.PAGE, 0))
    if os.fstat(fd).st_size < header.file_bytes:
        raise BadHeaderError("truncated", f"shorter than the {header.file_bytes} bytes its header states")
    words = _plain(fd, header.regions.get(layout.PROCESS.id, layout.PROCESS), len(layout.P))
    half_written = 0

    def sealed(known: Region) -> Iterator[tuple[int, tuple[int, ...], bytes]]:
        """Yield (sequence, plain words, payload) of each written record, as long as this version knows it."""
        nonlocal half_written
        region = header.regions.get(known.id)
        if region is None:
            return
        check = _epochs_match if known.id == layout.RegionId.BUFFERS else None
        end = words[layout.ENDS[known.id]] if known.id in layout.ENDS else 0
        plain = struct.Struct(f"<{known.sealed_at // 8}q")
        for record, sequence, payload in _records(fd, region, end, check):
            if payload is None:
                half_written += 1
            else:
                if region.sealed_at < known.sealed_at:
                    record = record[: region.sealed_at].ljust(known.sealed_at, b"\0")  # noqa: PLW2901
                yield sequence, plain.unpack_from(record), payload.ljust(known.sealed_bytes, b"\0")

    return Snapshot(
        incarnation=header.incarnation,
        version=f"{header.major}.{header.minor}",
        alive=alive,
        identity=next((_json(payload) for _, _, payload in sealed(layout.IDENTITY)), {}),
        process=Process(*words[: len(Process._fields)]),
        probes=tuple(_probe(plain, payload) for _, plain, payload in sealed(layout.PROBES)),
        buffers=tuple(_buffer(plain, payload) for _, plain, payload in sealed(layout.BUFFERS)),
        claims=tuple(_claim(plain, payload) for _, plain, payload in sealed(layout.CLAIMS)),
        events=tuple(sorted((_event(n, payload) for n, _, payload in sealed(layout.EVENTS)), key=lambda e: e.number))
        if events
        else (),
        half_written=half_written,
    )


def _plain(fd: int, region: Region, count: int) -> memoryview:
    data = os.pread(fd, min(region.stride, count * 8), region.offset)
    return memoryview(data.ljust(count * 8, b"\0")).cast("q")


def _records(
    fd: int, region: Region, end: int, check: Callable[[bytes], bool] | None
) -> Iterator[tuple[bytes, int, bytes | None]]:
    """Yield (record, sequence, payload) of the used records; the payload is None for a half-written one.

    From ``end`` on, none was ever used; 0 if that is not known.
    """
    stride, seal_at, payload_at = region.stride, region.sealed_at, region.sealed_at + SEAL.size
    if payload_at + region.sealed_bytes > stride:
        raise BadHeaderError("checksum", f"region {region.id}: the seal does not fit its record")
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


def _json(payload: bytes) -> dict[str, Any]:
    try:
        value = json.loads(untext(payload))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _probe(plain: tuple[int, ...], payload: bytes) -> Probe:
    sealed = ProbePayload.unpack(payload)
    status, calls, errors, cost_ns = plain[:4]
    return Probe(
        untext(sealed.name),
        untext(sealed.detail),
        enum_of(ProbeStatus, status),
        calls,
        errors,
        cost_ns,
    )


def _buffer(plain: tuple[int, ...], payload: bytes) -> Buffer:
    sealed = BufferPayload.unpack(payload)
    # In the order of ``layout.B``: to look its names up for each buffer takes as long as all the rest.
    _, capacity, beyond, high_water_ns, exhaustions, exhausted_first_ns, exhausted_last_ns, deferrals = plain[:8]
    checks, violations, worst_index, violation_ns, grows, shrinks, prior_high_water, prior_ratio_ppm = plain[8:16]
    used, high_water, *occupancy, warn_at, _ = plain[16:]
    high_water = max(high_water, used)  # the peak is stored after the value that made it: a reader may see that first
    ratios = [prior_ratio_ppm / 1e6, *([high_water / capacity] if capacity else [])]
    return Buffer(
        name=untext(sealed.name),
        unit=untext(sealed.unit),
        kind=enum_of(Kind, sealed.kind),
        location=enum_of(Location, sealed.location),
        limit=untext(sealed.limit),
        nbytes=sealed.nbytes,
        instances=sealed.instances,
        inventory=bool(sealed.flags & layout.FLAG_INVENTORY),
        capacity=capacity,
        used=used,
        high_water=max(high_water, prior_high_water),
        high_water_ns=high_water_ns,
        high_water_ratio=max(ratios) if capacity or ratios[0] else None,
        warn_at=warn_at,
        occupancy=tuple(occupancy),
        beyond=beyond,
        exhaustions=exhaustions,
        exhausted_first_ns=exhausted_first_ns,
        exhausted_last_ns=exhausted_last_ns,
        deferrals=deferrals,
        checks=checks,
        violations=violations,
        worst_index=worst_index,
        violation_ns=violation_ns,
        grows=grows,
        shrinks=shrinks,
    )


_WITNESSES = {layout.FLAG_PROVIDED: "provided", layout.FLAG_REQUIRED: "required"}


def _claim(plain: tuple[int, ...], payload: bytes) -> Claim:
    sealed = ClaimPayload.unpack(payload)
    checks, violations, first_ns, last_ns = plain[:4]
    return Claim(
        contract=untext(sealed.contract),
        source=untext(sealed.source),
        tally=bool(sealed.flags & layout.FLAG_TALLY),
        witness=next((side for flag, side in _WITNESSES.items() if sealed.flags & flag), ""),
        dims=tuple(filter(None, untext(sealed.dims).split(","))),
        role=enum_of(Role, sealed.role),
        shape=tuple(None if size == layout.NO_SIZE else size for size in sealed.shape),
        relations=tuple(enum_of(Relation, code) for code in sealed.relations.rstrip(b"\0")),
        dtype=untext(sealed.dtype),
        unit=untext(sealed.unit),
        inputs=_json(sealed.inputs),
        inputs_truncated=bool(sealed.flags & layout.FLAG_INPUTS_TRUNCATED),
        checks=checks,
        violations=violations,
        violation_first_ns=first_ns,
        violation_last_ns=last_ns,
    )


def _event(number: int, payload: bytes) -> Event:
    sealed = EventPayload.unpack(payload)
    return Event(
        number=number,
        time_ns=sealed.time_ns,
        kind=enum_of(EventKind, sealed.kind),
        subject=untext(sealed.subject),
        count=sealed.total,
        numbers=sealed.numbers,
        detail=untext(sealed.detail),
    )
