"""The first page of a segment: which format it is, and where its regions lie."""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from typing import NamedTuple

from ullage.segment.layout import (
    FILE_BYTES,
    INCARNATION_BYTES,
    MAGIC,
    MAJOR,
    MAX_FILE_BYTES,
    MAX_RECORDS,
    MINOR,
    PAGE,
    REGIONS,
    SEAL,
    Region,
    RegionId,
)

_HEADER = struct.Struct(f"<8sIIQ{INCARNATION_BYTES}sI")
_REGION = struct.Struct("<IIQIII4x")
_CRC = struct.Struct("<I")
MAX_REGIONS = 64


class Header(NamedTuple):
    """What the first page says."""

    major: int
    minor: int
    file_bytes: int
    incarnation: str
    regions: dict[int, Region]


class BadHeaderError(ValueError):
    """A file is no segment, or one that this version cannot read. ``reason`` is a bounded word for a label."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def pack_header(incarnation: bytes) -> bytes:
    """Return the header page of a new segment."""
    head = _HEADER.pack(MAGIC, MAJOR, MINOR, FILE_BYTES, incarnation, len(REGIONS))
    body = head + b"".join(_REGION.pack(*region) for region in REGIONS)
    return body + _CRC.pack(zlib.crc32(body))


def unpack_header(page: bytes) -> Header:
    """Read a header page.

    Raises:
        BadHeaderError: The page is short, not ours, of another major version, or damaged; or its regions cannot be.
    """
    if len(page) < _HEADER.size:
        reason = "truncated" if page else "empty"
        raise BadHeaderError(reason, f"the file ends after {len(page)} bytes, inside the header")
    magic, major, minor, file_bytes, incarnation, count = _HEADER.unpack_from(page)
    if magic != MAGIC:
        raise BadHeaderError("magic", f"not a segment: it starts with {magic!r}, not {MAGIC!r}")
    if major != MAJOR:
        raise BadHeaderError("version", f"format {major}.{minor}; this reader knows {MAJOR}.x")
    end = _HEADER.size + min(count, MAX_REGIONS) * _REGION.size
    if len(page) < end + _CRC.size:
        raise BadHeaderError("truncated", f"the file ends after {len(page)} bytes, inside the region table")
    if count > MAX_REGIONS or _CRC.unpack_from(page, end)[0] != zlib.crc32(page[:end]):
        raise BadHeaderError("checksum", "the header's checksum does not fit its contents")
    return Header(major, minor, file_bytes, incarnation.hex(), _regions(page[_HEADER.size : end], file_bytes))


@lru_cache(maxsize=16)
def _regions(table: bytes, file_bytes: int) -> dict[int, Region]:
    """Read a region table; those of one version are all the same."""
    regions = [Region(*fields) for fields in _REGION.iter_unpack(table)]
    _check_geometry(regions, file_bytes)
    return {region.id: region for region in regions}


def _check_geometry(regions: list[Region], file_bytes: int) -> None:
    """Refuse regions outside the file or over one another, of too many records, or whose records do not fit."""
    if file_bytes > MAX_FILE_BYTES:
        raise BadHeaderError("geometry", f"it states {file_bytes} bytes; a segment has at most {MAX_FILE_BYTES}")
    start = PAGE
    for region in sorted(regions, key=lambda region: region.offset):
        sealed = SEAL.size + region.sealed_bytes if region.id != RegionId.PROCESS else 0
        aligned = not (region.offset % 8 or region.stride % 8 or region.sealed_at % 8)
        fits = start <= region.offset and region.end <= file_bytes and 0 < region.records <= MAX_RECORDS
        if not (aligned and fits and 0 < region.sealed_at + sealed <= region.stride):
            raise BadHeaderError("geometry", f"region {region.id} does not fit the file, or its records their stride")
        start = region.end
    ids = [region.id for region in regions]
    if len(set(ids)) < len(ids) or not {RegionId.PROCESS, RegionId.IDENTITY} <= set(ids):
        raise BadHeaderError("geometry", f"regions {sorted(ids)}: each once, process and identity among them")
