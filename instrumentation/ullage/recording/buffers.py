"""Buffers: what one needed, what it has. The handle, and its place in the segment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage import safety
from ullage.exact import size
from ullage.host import compiled
from ullage.host.process import process
from ullage.host.record_views import NULL_RECORD, LazyRecord
from ullage.recording.counting import counting
from ullage.segment import layout, text
from ullage.segment.layout import HOT_WORDS, B, BufferPayload, EventKind, Kind, Location, P

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import SupportsIndex

    from ullage.host.records import Owner
    from ullage.host.session import Session
    from ullage.segment.writer import Segment

MAX_BUFFERS = 2 * layout.BUFFERS.records
"""Handles that are remembered by name. A host that makes names without end gets ones that record nothing."""
_EVIDENCE = (B.BEYOND, B.VIOLATIONS, B.EXHAUSTIONS, B.GROWS, B.SHRINKS)
"""Counts that outlive their buffer: while one is not zero, its record stays after ``close``."""


class Buffer:
    """A handle on one buffer. Made by ``ullage.buffer``; its methods never raise (but see ``ULLAGE_STRICT``).

    Attributes:
        name: As registered.
        unit: What is counted.
        observe: ``observe(used, times=1)``: the buffer needs ``used`` units now, a host integer, not a tensor; it
            stands for ``times`` observations, which may be 0: then it counts in the next one. Called from a compiled
            function it does nothing.
        resize: ``resize(capacity)``: the buffer was allocated again, with this capacity.
        exhausted: ``exhausted(needed=0)``: a running request was denied, or an allocation failed.
        deferred: ``deferred()``: a waiting request goes on waiting. Normal.
        checked: ``checked(count)``: ``count`` indices were compared with the capacity, apart from observations.
        violated: ``violated(index, count=1, detail="")``: ``count`` of them were outside, this one the farthest;
            ``detail`` goes into the event.
    """

    __slots__ = (
        "_bind",
        "_capacity",
        "_descriptor",
        "_index",
        "_owner",
        "_resume",
        "_warn_at",
        "_zero",
        "checked",
        "deferred",
        "exhausted",
        "lasting",
        "name",
        "observe",
        "resize",
        "unit",
        "violated",
    )

    def __init__(self, owner: Owner, name: str, capacity: int, unit: str, descriptor: BufferPayload) -> None:
        self.lasting = owner.lasting
        self._owner = owner
        self.name = name
        self.unit = unit
        self._descriptor = descriptor
        self._index: int | None = None
        functions = counting(name, capacity, owner)
        self.observe, self.resize, self.exhausted, self.deferred, self.checked, self.violated = functions[:6]
        self._bind, self._zero, self._resume, self._capacity = functions[6:]
        self._warn_at = 0

    @property
    def capacity(self) -> int:
        """The capacity now, in ``unit``."""
        return self._capacity()

    @property
    def calls(self) -> tuple[Callable[..., None], ...]:
        """What a host may call from a compiled function."""
        return self.observe, self.resize, self.exhausted, self.deferred, self.checked, self.violated

    def warn_at(self, used: SupportsIndex) -> None:
        """Raise the warning line to ``used`` units: up to there, use is as planned."""
        with safety.shield(f"buffer {self.name}: warn_at"), self._owner.session.lock:
            self._warn_at = size("warn_at", used)
            self._views()[1][B.WARN_AT] = self._warn_at

    def close(self) -> None:
        """Free the buffer: it is gone, and later calls on the handle do nothing.

        Its record stays if it counted a violation, an exhaustion or a resize; the next buffer of its name goes on.
        """
        with safety.shield(f"buffer {self.name}: close"):
            self._owner.session.part(Buffers).remove(self)

    def attach(self, segment: Segment) -> None:
        """Take a record of ``segment``; without one left, count the drop and store nowhere."""
        held = self._descriptor.flags & layout.FLAG_INVENTORY
        buffers = self._owner.session.part(Buffers)
        if not held:
            buffers.remember(self)
        kept, unit = (None, "") if held else buffers.kept(self.name, segment)
        self._index = buffers.allocate(segment) if kept is None else kept
        if self._index is None:
            self._owner.session.drop(P.DROPPED_BUFFERS)
            safety.log_once(
                "records of buffers",
                f"all {layout.BUFFERS.records} records are taken: later buffers are counted, not recorded",
            )
            self._bind(NULL_RECORD, NULL_RECORD)
            return
        words = segment.words(layout.BUFFERS, self._index)
        epoch = words[B.EPOCH] + 1
        words[B.EPOCH_CHECK] = epoch
        if kept is None:
            for word in range(B.EPOCH + 1, B.EPOCH_CHECK):
                words[word] = 0
        else:
            self._resume(words)
            words[B.USED] = words[B.HIGH_WATER] = 0
            if unit != self.unit:
                words[B.PRIOR_HIGH_WATER] = 0  # that was in another unit; its share of the capacity still holds
        words[B.CAPACITY] = self.capacity
        words[B.WARN_AT] = self._warn_at
        words[B.EPOCH] = epoch
        self._bind(words[HOT_WORDS], words)
        segment.seal(layout.BUFFERS, self._index, self._descriptor.pack())

    def detach(self) -> None:
        """Store nowhere from now on."""
        self._bind(NULL_RECORD, NULL_RECORD)

    def release(self, segment: Segment | None) -> None:
        """Give the record back; keep it where it holds counts that must not be lost."""
        self.detach()
        compiled.unskip(*self.calls)
        if segment is not None and self._index is not None:
            words = segment.words(layout.BUFFERS, self._index)
            if any(words[word] for word in _EVIDENCE):
                closed = self._descriptor._replace(flags=self._descriptor.flags | layout.FLAG_CLOSED)
                segment.seal(layout.BUFFERS, self._index, closed.pack())
                self._owner.session.part(Buffers).keep(self, segment, self._index)
            else:
                segment.release(layout.BUFFERS, self._index)
        self._index = None

    def restart(self) -> None:
        """Count from zero, and take a record of another segment at the first store."""

        def attached() -> None:
            session = self._owner.session
            with session.lock:
                if self._index is None:
                    segment = session.open()
                    if segment is None:
                        self.detach()
                    else:
                        self.attach(segment)

        def hot() -> memoryview:
            attached()
            return self._views()[0]

        def cold() -> memoryview:
            attached()
            return self._views()[1]

        self._index = None
        self._zero()
        self._bind(LazyRecord(hot), LazyRecord(cold))

    def _views(self) -> tuple[memoryview, memoryview]:
        segment = self._owner.session.open()
        if segment is None or self._index is None:
            return NULL_RECORD, NULL_RECORD
        words = segment.words(layout.BUFFERS, self._index)
        return words[HOT_WORDS], words


def _word(what: str, value: str, size: int) -> str:
    """Return ``value`` cleaned. Raises ValueError: it has no character, or more than ``size`` bytes."""
    word = text.clean(value)
    length = len(word.encode())
    if not 1 <= length <= size:
        raise ValueError(f"{what} {word[:size]!r} must have 1 to {size} bytes in UTF-8, it has {length}")
    return word


class Buffers:
    """The buffers of one session by name, and the records that closed ones have left."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._buffers: dict[str, Buffer] = {}
        self._kept: dict[str, tuple[Segment, int, str]] = {}

    def add(self, owner: Owner, name: str, capacity: int, unit: str, descriptor: BufferPayload) -> Buffer:
        """Return the buffer of that name, made if need be.

        Raises:
            ValueError: It is counted in another unit.
        """
        session = self._session
        with session.lock:
            known = self._buffers.get(name)
            if known is None:
                if len(self._buffers) >= MAX_BUFFERS:
                    session.drop(P.DROPPED_BUFFERS)
                    return Buffer(owner, name, capacity, unit, descriptor)
                known = self._buffers[name] = Buffer(owner, name, capacity, unit, descriptor)
                compiled.skip(*known.calls)
                session.register(known)
            elif known.unit != unit:
                session.emit(EventKind.CONFLICT, name, detail=f"{known.unit} and {unit}")
                raise ValueError(f"{name} is registered in {known.unit}; it cannot also be in {unit}")
            else:
                known.resize(capacity)
            return known

    def remember(self, buffer: Buffer) -> None:
        """Know a buffer by its name: it may come from a session that ended."""
        self._buffers.setdefault(buffer.name, buffer)

    def remove(self, buffer: Buffer) -> None:
        """Give the record of a buffer back that is closed."""
        session = self._session
        with session.lock:
            if self._buffers.get(buffer.name) is buffer:
                del self._buffers[buffer.name]
                session.forget(buffer)
                buffer.release(session.open())

    def keep(self, buffer: Buffer, segment: Segment, index: int) -> None:
        """A closed buffer has left counts in that record."""
        self._kept[buffer.name] = segment, index, buffer.unit

    def kept(self, name: str, segment: Segment) -> tuple[int | None, str]:
        """Return the record of ``segment`` that a closed buffer of this name has left, and its unit.

        The caller takes it. None, and no unit, if there is none.
        """
        where, index, unit = self._kept.pop(name, (None, None, ""))
        return (index, unit) if where is segment else (None, "")

    def allocate(self, segment: Segment) -> int | None:
        """Return an unused record; without one, that of the buffer that was closed first. None if all are in use."""
        index = segment.allocate(layout.BUFFERS)
        while index is None and self._kept:
            index, _ = self.kept(next(iter(self._kept)), segment)
            if index is not None:
                self._session.drop(P.DROPPED_BUFFERS)
        return index


def register(
    owner: Owner,
    name: str,
    *,
    capacity: SupportsIndex,
    unit: str,
    kind: str = "hard",
    location: str = "host",
    limit: str | None = None,
    nbytes: SupportsIndex | None = None,
    histogram: bool = False,
) -> Buffer:
    """Register a buffer of ``owner`` and return its handle; as ``buffer``, which is for the program's own.

    ``histogram``: the sidecar shows how full the buffer was in each observation; of a hard one it does anyway.
    """
    try:
        cleaned, word = _word("name", name, layout.NAME_BYTES), _word("unit", unit, 16)
        descriptor = BufferPayload(
            nbytes=size("bytes", nbytes or 0),
            instances=1,
            kind=member(Kind, "kind", kind),
            location=member(Location, "location", location),
            flags=layout.FLAG_HISTOGRAM if histogram else 0,
            unit=word.encode(),
            limit=text.encode(limit or "", 40),
            name=cleaned.encode(),
        )
        return owner.session.part(Buffers).add(owner, cleaned, size("capacity", capacity), word, descriptor)
    except Exception as error:
        said = safety.told(name)[: layout.NAME_BYTES]
        safety.shield(f"buffer {said}").caught(error)
        return Buffer(owner, said, 0, safety.told(unit), BufferPayload(0, 1, 0, 0, 0, b"", b"", b""))


def buffer(
    name: str,
    *,
    capacity: SupportsIndex,
    unit: str,
    kind: str = "hard",
    location: str = "host",
    limit: str | None = None,
    bytes: SupportsIndex | None = None,  # noqa: A002  the word for it
) -> Buffer:
    """Register a buffer and return its handle.

    The same name and unit again is the same buffer; another capacity then is a resize.

    Args:
        name: Unique in this process; at most 88 bytes. What is not printable in a text is replaced.
        capacity: How much it holds, in ``unit``. Like all numbers here, whatever has ``__index__`` and fits 63 bits.
        unit: A plural: tokens, blocks, rows, requests, bytes. At most 16 bytes.
        kind: ``hard`` (overflow is damage), ``managed`` (the engine applies back-pressure, full is normal) or
            ``fixed`` (a ratio means nothing).
        location: ``host``, ``pinned`` or ``device``.
        limit: The configuration that sets the capacity, by name.
        bytes: Its size in memory.

    Returns:
        A handle. If the arguments are wrong, or nothing can be recorded, one that records nothing: the error is
        counted and logged once, and raised (ValueError) only under ``ULLAGE_STRICT=1``.
    """
    return register(
        process, name, capacity=capacity, unit=unit, kind=kind, location=location, limit=limit, nbytes=bytes
    )


def member(enum: type[Kind | Location], what: str, value: str) -> int:
    """Return the number of ``value`` in ``enum``.

    Raises:
        ValueError: There is none.
    """
    names = [member.name.lower() for member in enum if member]
    if value not in names:
        raise ValueError(f"{what} is {value!r}; it must be one of {', '.join(names)}")
    return enum[value.upper()]
