"""A segment file that can be changed at will: checksums are computed again, and every change can be undone."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import secrets
import struct
import zlib
from pathlib import Path

from ullage.segment import layout
from ullage.segment.header import _CRC, _HEADER, _REGION, unpack_header
from ullage.segment.layout import SEAL
from ullage.segment.writer import FLOCK

CORPUS = Path(__file__).parent / "corpus"
UNSIGNED = 2**64 - 1


class SegmentFile:
    """A segment on disk. Reads and writes go straight to the file: many of them take no memory.

    Attributes:
        path: Where it is.
        bytes: How long it was at first.
        regions: Where its records are, by id of the region, as its header said at first.
    """

    def __init__(self, path):
        self.path = path
        self._fd = os.open(path, os.O_RDWR)
        self.bytes = os.fstat(self._fd).st_size
        self.regions = unpack_header(self._read(0, layout.PAGE)).regions
        self._undo = []

    # -- reading -------------------------------------------------------------------------------------------------------

    def words(self, region, index):
        """Return the plain words of a record."""
        size = self.regions[region.id].sealed_at
        return struct.unpack(f"<{size // 8}q", self._read(self._at(region, index), size))

    def sequence(self, region, index):
        """Return the sequence number of a record; 0 if it is empty."""
        return SEAL.unpack(self._read(self._seal_at(region, index), SEAL.size))[0]

    def payload(self, region, index):
        """Return the bytes of a record that its checksum covers."""
        return self._read(self._seal_at(region, index) + SEAL.size, self.regions[region.id].sealed_bytes)

    def used(self, region):
        """Return the indices of the records that hold something."""
        own = self.regions[region.id]
        data = self._read(own.offset, own.records * own.stride)
        starts = range(own.sealed_at, len(data), own.stride)
        return [index for index, start in enumerate(starts) if SEAL.unpack_from(data, start)[0]]

    # -- changing ------------------------------------------------------------------------------------------------------

    def store(self, region, index, word, value):
        """Store a plain word: any integer, cut to 64 bits."""
        self.put(self._at(region, index) + 8 * word, (value & UNSIGNED).to_bytes(8, "little"))

    def seal(self, region, index, payload, sequence=None, crc=None):
        """Replace the payload of a record. Its checksum is right unless ``crc`` is given."""
        number = (self.sequence(region, index) or 1) if sequence is None else sequence
        size = self.regions[region.id].sealed_bytes
        padded = payload[:size].ljust(size, b"\0")
        right = layout.checksum(padded, number)
        self.put(self._seal_at(region, index), SEAL.pack(number, right if crc is None else crc) + padded)

    def keep(self, region, most):
        """Empty all used records but the first ``most``."""
        for index in self.used(region)[most:]:
            self.put(self._seal_at(region, index), bytes(SEAL.size))

    def head(self, regions=None, count=None, **fields):
        """Replace fields of the header, and its regions. Its checksum is right."""
        names = ("magic", "major", "minor", "file_bytes", "incarnation", "count")
        now = dict(zip(names, _HEADER.unpack(self._read(0, _HEADER.size)), strict=True))
        listed = list(self.regions.values()) if regions is None else regions
        now |= fields | {"count": len(listed) if count is None else count}
        masks = (2**32 - 1, 2**32 - 1, UNSIGNED, 2**32 - 1, 2**32 - 1, 2**32 - 1)
        table = (_REGION.pack(*(n & mask for n, mask in zip(region, masks, strict=True))) for region in listed)
        body = _HEADER.pack(*now.values()) + b"".join(table)
        self.put(0, body + _CRC.pack(zlib.crc32(body)))

    def put(self, offset, data):
        """Replace bytes."""
        self._undo.append((offset, self._read(offset, len(data))))
        os.pwrite(self._fd, data, offset)

    def resize(self, size):
        """Cut the file, or add a hole to it."""
        os.ftruncate(self._fd, size)

    def undo(self):
        """Take every change back."""
        os.ftruncate(self._fd, self.bytes)
        while self._undo:
            offset, data = self._undo.pop()
            os.pwrite(self._fd, data, offset)

    def settle(self):
        """Let the changes up to now stay."""
        self._undo.clear()

    def lock(self):
        """Hold the lock that a living writer holds."""
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))

    def close(self):
        """Close the file; the changes stay in it."""
        os.close(self._fd)

    def _read(self, offset, size):
        return os.pread(self._fd, size, offset)

    def _at(self, region, index):
        own = self.regions[region.id]
        return own.offset + index * own.stride

    def _seal_at(self, region, index):
        return self._at(region, index) + self.regions[region.id].sealed_at


def corpus():
    """Return the segments that real programs wrote: {name: content}."""
    return {path.name.split(".")[0]: gzip.decompress(path.read_bytes()) for path in sorted(CORPUS.glob("*.gz"))}


def place(directory, content, incarnation=None, **identity):
    """Write a segment into ``directory`` as another process would have; return its file.

    Under a new incarnation (16 bytes) unless it has none of its own, and with other fields of the identity.
    """
    own = unpack_header(content[: layout.PAGE]).incarnation if incarnation is None else incarnation.hex()
    path = directory / f"{own}{layout.SUFFIX}"
    path.write_bytes(content)
    file = SegmentFile(path)
    if incarnation is not None:
        file.head(incarnation=incarnation)
    if identity:
        known = json.loads(file.payload(layout.IDENTITY, 0).rstrip(b"\0"))
        file.seal(layout.IDENTITY, 0, json.dumps(known | identity).encode())
    file.settle()
    return file


def crowd(directory, count):
    """Leave ``count`` dead segments in ``directory``, each of another process name; mostly holes, so they are cheap."""
    template = place(directory, corpus()["vllm-api"], secrets.token_bytes(16))
    end = template.regions[layout.RegionId.IDENTITY].end
    for number in range(count):
        incarnation = secrets.token_bytes(16)
        template.head(incarnation=incarnation)
        template.seal(
            layout.IDENTITY, 0, json.dumps({"process": f"dead{number}/main", "engine_id": str(number)}).encode()
        )
        path = directory / f"{incarnation.hex()}{layout.SUFFIX}"
        with path.open("wb") as file:
            file.write(template.path.read_bytes()[:end])
            file.truncate(template.bytes)
    template.path.unlink()
    template.close()
