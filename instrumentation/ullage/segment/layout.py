"""The segment format: the records, and where they lie. The header page that says so is in ``header``.

Everything is little-endian. A file is a header page that describes regions, and the regions themselves; each
region is an array of records of one stride. A record has two parts:

* *plain* words: aligned 64-bit integers, each stored by one instruction and therefore never torn, but not
  consistent with one another;
* a *seal*: a sequence number, a CRC-32 and a payload. The sequence number is zero while the payload is being
  written and is stored last; the checksum covers the payload and the sequence number. Zero in both: empty.

Compatibility: fields are only appended, to the plain words as to the payload, and the header says where each
seal starts and how many bytes its checksum covers. A reader takes the prefix that it knows and reads zero for
what an older file lacks. Another ``MAJOR`` is another format. ``docs/segment.md`` is this module in prose.
"""

from __future__ import annotations

import re
import struct
import zlib
from enum import IntEnum
from typing import NamedTuple, TypeVar

MAGIC = b"ULLAGE\r\n"
MAJOR = 1
MINOR = 3
SUFFIX = ".ullage"
FILE_NAME = re.compile(r"[0-9a-f]{32}\.ullage")
TEMPORARY_NAME = re.compile(r"\.[0-9a-f]{32}\.tmp")
PAGE = 4096
MAX_FILE_BYTES = 1 << 20
MAX_RECORDS = 1024
"""Of one region, in this minor version or a later one."""
INCARNATION_BYTES = 16


class Region(NamedTuple):
    """Where one array of records lies.

    Attributes:
        id: Which records these are.
        records: How many.
        offset: Of the first record, bytes from the start of the file.
        stride: Bytes from one record to the next.
        sealed_at: Offset of the seal within a record; the plain words end here.
        sealed_bytes: Payload bytes under the checksum; 0 for a record without a seal.
    """

    id: int
    records: int
    offset: int
    stride: int
    sealed_at: int
    sealed_bytes: int

    @property
    def end(self) -> int:
        """Offset of the first byte after the region."""
        return self.offset + self.records * self.stride


class RegionId(IntEnum):
    """The kinds of record."""

    PROCESS = 1
    IDENTITY = 2
    PROBES = 3
    BUFFERS = 4
    CLAIMS = 5
    EVENTS = 6


SEAL = struct.Struct("<qq")  # sequence number, CRC-32

PROCESS = Region(RegionId.PROCESS, 1, PAGE, 512, 512, 0)
IDENTITY = Region(RegionId.IDENTITY, 1, PROCESS.end, 3584, 0, 3584 - SEAL.size)
PROBES = Region(RegionId.PROBES, 64, IDENTITY.end, 192, 32, 144)
BUFFERS = Region(RegionId.BUFFERS, 512, PROBES.end, 384, 208, 160)
CLAIMS = Region(RegionId.CLAIMS, 256, BUFFERS.end, 1024, 32, 976)
EVENTS = Region(RegionId.EVENTS, 1024, CLAIMS.end, 512, 0, 496)
REGIONS = (PROCESS, IDENTITY, PROBES, BUFFERS, CLAIMS, EVENTS)
FILE_BYTES = -(-EVENTS.end // PAGE) * PAGE
INVENTORY_MAX = BUFFERS.records // 2


class P(IntEnum):
    """Plain words of the process record. Times are nanoseconds since the Unix epoch, 0 for never.

    From its ``END`` on, no record of a region was ever used: a reader can stop there. 0 if that is not known.
    """

    PID = 0
    STARTED_NS = 1
    STEPS = 2
    STEP_NS = 3
    RUNNING = 4
    STOP_NS = 5
    FAILURE_NS = 6
    EXCEPTION_NS = 7
    HOOK_ERRORS = 8
    DROPPED_BUFFERS = 9
    DROPPED_CLAIMS = 10
    DROPPED_PROBES = 11
    EVENTS = 12
    DISABLED_NS = 13
    STEP_BEGIN_NS = 14
    PHASE = 15
    BATCH_TOKENS = 16
    BATCH_REQUESTS = 17
    PROBES_END = 18
    BUFFERS_END = 19
    CLAIMS_END = 20


class Q(IntEnum):
    """Plain words of a probe record."""

    STATUS = 0
    CALLS = 1
    ERRORS = 2
    COST_NS = 3


class B(IntEnum):
    """Plain words of a buffer record: a cold part, the hot cache line (16 to 23), and the epoch once more.

    ``WARN_AT`` is the use from which a warning is due if that is later than the usual share of the capacity.
    ``EPOCH`` and ``EPOCH_CHECK`` bracket the record: a writer that changes several words together (a resize, a
    slot used again) stores ``EPOCH_CHECK`` first and ``EPOCH`` last, so a reader that copies upwards and finds
    them equal has words of one epoch.
    """

    EPOCH = 0
    CAPACITY = 1
    BEYOND = 2
    HIGH_WATER_NS = 3
    EXHAUSTIONS = 4
    EXHAUSTED_FIRST_NS = 5
    EXHAUSTED_LAST_NS = 6
    DEFERRALS = 7
    CHECKS = 8
    VIOLATIONS = 9
    WORST_INDEX = 10
    VIOLATION_NS = 11
    GROWS = 12
    SHRINKS = 13
    PRIOR_HIGH_WATER = 14
    PRIOR_RATIO_PPM = 15
    USED = 16
    HIGH_WATER = 17
    N50 = 18
    N75 = 19
    N90 = 20
    N95 = 21
    N99 = 22
    N100 = 23
    WARN_AT = 24
    EPOCH_CHECK = 25


ENDS = {PROBES.id: P.PROBES_END, BUFFERS.id: P.BUFFERS_END, CLAIMS.id: P.CLAIMS_END}
HOT_WORDS = slice(B.USED, B.N100 + 1)
OCCUPANCY_STEPS = (0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""Upper edges, as shares of the capacity, of the six occupancy counts; ``BEYOND`` counts what is above 1."""


class C(IntEnum):
    """Plain words of a claim record."""

    CHECKS = 0
    VIOLATIONS = 1
    VIOLATION_FIRST_NS = 2
    VIOLATION_LAST_NS = 3


class Kind(IntEnum):
    """What being full means for a buffer."""

    UNKNOWN = 0
    HARD = 1
    MANAGED = 2
    FIXED = 3


class Location(IntEnum):
    """Where a buffer lives."""

    UNKNOWN = 0
    HOST = 1
    PINNED = 2
    DEVICE = 3


class ProbeStatus(IntEnum):
    """Whether a hook point is watched."""

    UNKNOWN = 0
    INSTALLED = 1
    ABSENT = 2
    CHANGED = 3
    DISABLED = 4


class Role(IntEnum):
    """What a claim says of a size."""

    UNKNOWN = 0
    PROVIDES = 1
    REQUIRES = 2
    IS = 3


class Relation(IntEnum):
    """How the claims on one dimension must relate."""

    UNKNOWN = 0
    EQUAL = 1
    AT_LEAST = 2


class Phase(IntEnum):
    """Which function of the engine a process is in, the word ``PHASE``. The order of the values means nothing."""

    NONE = 0
    SCHEDULE = 1
    EXECUTE = 2
    SAMPLE = 3
    DUMMY_RUN = 4
    PROFILE_RUN = 5
    CAPTURE = 6

    @property
    def is_dummy(self) -> bool:
        """Whether the engine runs a batch of its own, which is no request's work."""
        return self in _DUMMY


_DUMMY = frozenset({Phase.DUMMY_RUN, Phase.PROFILE_RUN, Phase.CAPTURE})


class EventKind(IntEnum):
    """What happened."""

    UNKNOWN = 0
    RESIZE = 1
    BOUNDS_VIOLATION = 2
    EXHAUSTION = 3
    HOOK_ERROR = 4
    HOST_EXCEPTION = 5
    FAILURE = 6
    STOP = 7
    PROBE_DISABLED = 8
    CONFLICT = 9
    SHAPE_VIOLATION = 10
    DISAGREEMENT = 11


FLAG_INVENTORY = 1  # of a buffer: known by capacity and bytes only; ``limit`` holds dtype and shape
FLAG_CLOSED = 2  # of a buffer: it was freed; the record stays because of what it counted
FLAG_HISTOGRAM = 4  # of a buffer: its occupancy is worth a histogram, whatever its kind
FLAG_INPUTS_TRUNCATED = 1  # of a claim: not all inputs fitted
FLAG_TALLY, FLAG_PROVIDED, FLAG_REQUIRED = 2, 4, 8  # of no claim: a contract's counts; a side when it was violated
INPUTS_BYTES = 656

_E = TypeVar("_E", bound=IntEnum)


def enum_of(kind: type[_E], value: int) -> _E:
    """Return the member of ``kind`` for ``value``; its ``UNKNOWN`` for a number of a newer writer."""
    try:
        return kind(value)
    except ValueError:
        return kind(0)


def checksum(payload: bytes, sequence: int) -> int:
    """CRC-32 over a payload and its sequence number."""
    return zlib.crc32(sequence.to_bytes(8, "little", signed=True), zlib.crc32(payload))


_BUFFER = struct.Struct("<qIBBH16s40s88s")
NAME_BYTES = 88
_PROBE = struct.Struct("<80s64s")
_EVENT = struct.Struct("<qq4qI96s348s")
MAX_DIMS = 8
_CLAIM = struct.Struct(f"<{MAX_DIMS}qBBH4x8s16s16s48s96s64s656s")
NO_SIZE = -1
"""A dimension of a claim that is not compared."""


class BufferPayload(NamedTuple):
    """The sealed descriptor of a buffer: bytes in total, of ``instances`` alike (61 layers are one record)."""

    nbytes: int
    instances: int
    kind: int
    location: int
    flags: int
    unit: bytes
    limit: bytes
    name: bytes

    def pack(self) -> bytes:
        """Return the payload's bytes."""
        return _BUFFER.pack(*self)

    @classmethod
    def unpack(cls, payload: bytes) -> BufferPayload:
        """Read a payload."""
        return cls._make(_BUFFER.unpack_from(payload))


class ProbePayload(NamedTuple):
    """The sealed descriptor of a probe: its name, and why it is not installed."""

    name: bytes
    detail: bytes

    def pack(self) -> bytes:
        """Return the payload's bytes."""
        return _PROBE.pack(*self)

    @classmethod
    def unpack(cls, payload: bytes) -> ProbePayload:
        """Read a payload."""
        return cls._make(_PROBE.unpack_from(payload))


class EventPayload(NamedTuple):
    """One event. ``total`` is how often this kind happened to this subject; ``numbers`` depend on the kind."""

    time_ns: int
    total: int
    numbers: tuple[int, int, int, int]
    kind: int
    subject: bytes
    detail: bytes

    def pack(self) -> bytes:
        """Return the payload's bytes."""
        return _EVENT.pack(*self[:2], *self.numbers, *self[3:])

    @classmethod
    def unpack(cls, payload: bytes) -> EventPayload:
        """Read a payload."""
        time_ns, total, *numbers, kind, subject, detail = _EVENT.unpack_from(payload)
        return cls(time_ns, total, (numbers[0], numbers[1], numbers[2], numbers[3]), kind, subject, detail)


class ClaimPayload(NamedTuple):
    """One claim: the shape (``NO_SIZE`` where not compared), and its inputs as a JSON object of scalars."""

    shape: tuple[int, ...]
    role: int
    flags: int
    relations: bytes
    dtype: bytes
    unit: bytes
    dims: bytes
    contract: bytes
    source: bytes
    inputs: bytes

    def pack(self) -> bytes:
        """Return the payload's bytes."""
        padding = [0] * (MAX_DIMS - len(self.shape))
        return _CLAIM.pack(*self.shape, *padding, len(self.shape), *self[1:])

    @classmethod
    def unpack(cls, payload: bytes) -> ClaimPayload:
        """Read a payload."""
        values = _CLAIM.unpack_from(payload)
        return cls(values[: min(values[MAX_DIMS], MAX_DIMS)], *values[MAX_DIMS + 1 :])
