"""Buffers: what one needed, what it has. ``observe`` is the hot path; everything else is allowed to be slow.

A handle's numbers live in closure cells and are stored into the segment; the hot path never reads the map.
``observe`` is straight-line code without a call or a loop before its last statement: under the GIL no other
thread runs in between, so no update is lost, without a lock.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from ullage import safety
from ullage.segment import layout
from ullage.segment.layout import COLD_WORDS, HOT_WORDS, B, BufferPayload, EventKind, Kind, Location, P
from ullage.session import SINK, Pending, session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ullage.segment.writer import Segment

_clock = time.time_ns
_PPM = 1_000_000

# The hot path stores by literal index: a global constant would cost as much as the store.
assert [b - B.USED for b in (B.USED, B.HIGH_WATER, B.N50, B.N75, B.N90, B.N95, B.N99, B.N100)] == [*range(8)]
assert (B.BEYOND, B.HIGH_WATER_NS) == (2, 3)
assert COLD_WORDS.start == 0


class Buffer:
    """A handle on one buffer. Made by ``ullage.buffer``; its methods never raise (but see ``ULLAGE_STRICT``).

    Attributes:
        name: As registered.
        unit: What is counted.
        observe: ``observe(used)``: the buffer needs ``used`` units now. A host integer, not a tensor.
        resize: ``resize(capacity)``: the buffer was allocated anew with this capacity.
        exhausted: ``exhausted(needed=0)``: somebody who was running was denied, or an allocation failed.
        deferred: ``deferred()``: somebody who was waiting goes on waiting. Normal.
    """

    __slots__ = (
        "_bind",
        "_capacity",
        "_descriptor",
        "_index",
        "_zero",
        "deferred",
        "exhausted",
        "name",
        "observe",
        "resize",
        "unit",
    )

    def __init__(self, name: str, capacity: int, unit: str, descriptor: BufferPayload) -> None:
        self.name = name
        self.unit = unit
        self._descriptor = descriptor
        self._index: int | None = None
        closures = _closures(name, capacity)
        self.observe, self.resize, self.exhausted, self.deferred = closures[:4]
        self._bind, self._zero, self._capacity = closures[4:]
        if not getattr(sys, "_is_gil_enabled", lambda: True)():
            self.observe = _locked(self.observe)

    @property
    def capacity(self) -> int:
        """The capacity now, in ``unit``."""
        return self._capacity()

    def close(self) -> None:
        """Free the buffer's record: the buffer is gone. Later calls on the handle do nothing."""
        with safety.shield(f"close {self.name}"):
            _registry.remove(self)

    def attach(self, segment: Segment) -> None:
        """Take a record of ``segment``; without one left, count the drop and store nowhere."""
        self._index = segment.allocate(layout.BUFFERS)
        if self._index is None:
            session.drop(P.DROPPED_BUFFERS)
            safety.log_once(f"all {layout.BUFFERS.records} records are taken: later buffers are counted, not recorded")
            self._bind(SINK, SINK)
            return
        words = segment.words(layout.BUFFERS, self._index)
        epoch = words[B.EPOCH] + 1
        words[B.EPOCH_CHECK] = epoch
        for word in range(B.EPOCH + 1, B.EPOCH_CHECK):
            words[word] = 0
        words[B.CAPACITY] = self.capacity
        words[B.EPOCH] = epoch
        self._bind(words[HOT_WORDS], words)
        segment.seal(layout.BUFFERS, self._index, self._descriptor.pack())

    def detach(self) -> None:
        """Store nowhere from now on."""
        self._bind(SINK, SINK)

    def release(self, segment: Segment | None) -> None:
        """Give the record back."""
        self.detach()
        if segment is not None and self._index is not None:
            segment.release(layout.BUFFERS, self._index)
        self._index = None

    def forked(self) -> bool:
        """In a forked child: count from zero, and register in the child's segment at the first store."""

        def attached() -> None:
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
        self._bind(Pending(hot), Pending(cold))
        return False

    def _views(self) -> tuple[memoryview, memoryview]:
        segment = session.open()
        if segment is None or self._index is None:
            return SINK, SINK
        words = segment.words(layout.BUFFERS, self._index)
        return words[HOT_WORDS], words


_Views = memoryview | Pending


class _Closures(NamedTuple):
    observe: Callable[[int], None]
    resize: Callable[[int], None]
    exhausted: Callable[..., None]
    deferred: Callable[[], None]
    bind: Callable[[_Views, _Views], None]
    zero: Callable[[], None]
    capacity: Callable[[], int]


def _limits(capacity: int) -> tuple[int, int, int, int, int]:
    """Largest whole numbers that are at most 50, 75, 90, 95 and 99 % of ``capacity``."""
    return (
        capacity * 50 // 100,
        capacity * 75 // 100,
        capacity * 90 // 100,
        capacity * 95 // 100,
        capacity * 99 // 100,
    )


def _closures(name: str, capacity: int) -> _Closures:  # noqa: C901, PLR0915  one set of shared cells
    hot: _Views = SINK
    cold: _Views = SINK
    high_water = n50 = n75 = n90 = n95 = n99 = n100 = beyond = 0
    exhaustions = deferrals = 0
    l50, l75, l90, l95, l99 = _limits(capacity)

    def observe(used: int) -> None:
        nonlocal high_water, n50, n75, n90, n95, n99, n100, beyond
        try:
            if used < 0:
                raise ValueError(f"used is {used}; it cannot be negative")
            hot[0] = used
            if used <= l90:
                if used <= l50:
                    n50 += 1
                    hot[2] = n50
                elif used <= l75:
                    n75 += 1
                    hot[3] = n75
                else:
                    n90 += 1
                    hot[4] = n90
            elif used <= l99:
                if used <= l95:
                    n95 += 1
                    hot[5] = n95
                else:
                    n99 += 1
                    hot[6] = n99
            elif used <= capacity:
                n100 += 1
                hot[7] = n100
            else:
                beyond += 1
                cold[2] = beyond
                if used > high_water:
                    high_water = used
                    hot[1] = used
                overflowed(used, beyond)
                return
            if used > high_water:
                high_water = used
                hot[1] = used
                cold[3] = _clock()
        except Exception as error:
            safety.caught(f"observe {name}", error)

    def overflowed(used: int, count: int) -> None:
        now = _clock()
        cold[B.VIOLATION_NS] = now
        if used == high_water:
            cold[B.HIGH_WATER_NS] = now
            cold[B.WORST_INDEX] = used - 1
        happened(EventKind.BOUNDS_VIOLATION, count, used, capacity)

    def happened(kind: EventKind, count: int, *numbers: int) -> None:
        if cold is not SINK:
            session.emit(kind, name, count=count, numbers=numbers)

    def resize(new: int) -> None:
        nonlocal capacity, high_water, l50, l75, l90, l95, l99
        try:
            limits = _limits(_size("capacity", new))
            with session.lock:
                if new == capacity:
                    return
                old, used = capacity, cold[B.USED]
                direction = B.GROWS if new > old else B.SHRINKS
                epoch = cold[B.EPOCH] + 1
                prior = high_water * _PPM // old if old else 0
                cold[B.EPOCH_CHECK] = epoch
                cold[B.PRIOR_HIGH_WATER] = max(cold[B.PRIOR_HIGH_WATER], high_water)
                cold[B.PRIOR_RATIO_PPM] = max(cold[B.PRIOR_RATIO_PPM], prior)
                cold[B.CAPACITY] = new
                cold[direction] = cold[direction] + 1
                capacity, high_water = new, used
                l50, l75, l90, l95, l99 = limits
                hot[1] = used
                cold[B.EPOCH] = epoch
                count = cold[B.GROWS] + cold[B.SHRINKS]
            happened(EventKind.RESIZE, count, old, new)
        except Exception as error:
            safety.caught(f"resize {name}", error)

    def exhausted(needed: int = 0) -> None:
        nonlocal exhaustions
        try:
            exhaustions += 1
            count = exhaustions
            cold[B.EXHAUSTIONS] = count
            now = _clock()
            if count == 1:
                cold[B.EXHAUSTED_FIRST_NS] = now
            cold[B.EXHAUSTED_LAST_NS] = now
            happened(EventKind.EXHAUSTION, count, needed, capacity)
        except Exception as error:
            safety.caught(f"exhausted {name}", error)

    def deferred() -> None:
        nonlocal deferrals
        try:
            deferrals += 1
            cold[B.DEFERRALS] = deferrals
        except Exception as error:
            safety.caught(f"deferred {name}", error)

    def bind(new_hot: _Views, new_cold: _Views) -> None:
        nonlocal hot, cold
        hot, cold = new_hot, new_cold

    def zero() -> None:
        nonlocal high_water, n50, n75, n90, n95, n99, n100, beyond, exhaustions, deferrals
        high_water = n50 = n75 = n90 = n95 = n99 = n100 = beyond = exhaustions = deferrals = 0

    return _Closures(observe, resize, exhausted, deferred, bind, zero, lambda: capacity)


def _locked(observe: Callable[[int], None]) -> Callable[[int], None]:
    """Without a GIL, straight-line code is not atomic."""
    lock = threading.Lock()

    def locked(used: int) -> None:
        with lock:
            observe(used)

    return locked


def _size(what: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{what} is {value!r}; it must be a whole number, 0 or more")
    return value


def _word(what: str, value: str, size: int) -> bytes:
    data = value.encode()
    if not data or len(data) > size:
        raise ValueError(f"{what} {value!r} must have 1 to {size} bytes in UTF-8, it has {len(data)}")
    return data


class _Registry:
    """The buffers of this process by name, and the inventory by owner."""

    def __init__(self) -> None:
        self._buffers: dict[str, Buffer] = {}
        self._inventory: dict[str, list[Buffer]] = {}

    def add(self, name: str, capacity: int, unit: str, descriptor: BufferPayload) -> Buffer:
        with session.lock:
            known = self._buffers.get(name)
            if known is None:
                known = self._buffers[name] = Buffer(name, capacity, unit, descriptor)
                session.register(known)
            elif known.unit != unit:
                session.emit(EventKind.CONFLICT, name, detail=f"{known.unit} and {unit}")
                raise ValueError(f"{name} is registered in {known.unit}; it cannot also be in {unit}")
            else:
                known.resize(capacity)
            return known

    def remove(self, buffer: Buffer) -> None:
        with session.lock:
            if self._buffers.get(buffer.name) is buffer:
                del self._buffers[buffer.name]
                session.forget(buffer)
                buffer.release(session.open())

    def replace_inventory(self, owner: str, entries: list[Buffer]) -> None:
        with session.lock:
            for old in self._inventory.pop(owner, []):
                session.forget(old)
                old.release(session.open())
            room = layout.INVENTORY_MAX - sum(map(len, self._inventory.values()))
            self._inventory[owner] = entries[:room]
            for entry in entries[:room]:
                session.register(entry)
            for _ in entries[room:]:
                session.drop(P.DROPPED_BUFFERS)


_registry = _Registry()


def buffer(
    name: str,
    *,
    capacity: int,
    unit: str,
    kind: str = "hard",
    location: str = "host",
    limit: str | None = None,
    bytes: int | None = None,  # noqa: A002  the word for it
) -> Buffer:
    """Register a buffer and return its handle.

    The same name and unit again is the same buffer; another capacity then is a resize.

    Args:
        name: Unique in this process; at most 96 bytes.
        capacity: How much it holds, in ``unit``.
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
    try:
        descriptor = BufferPayload(
            nbytes=_size("bytes", bytes or 0),
            instances=1,
            kind=_member(Kind, "kind", kind),
            location=_member(Location, "location", location),
            flags=0,
            unit=_word("unit", unit, 16),
            limit=layout.text(limit or "", 40),
            name=_word("name", name, 96),
        )
        return _registry.add(name, _size("capacity", capacity), unit, descriptor)
    except Exception as error:
        safety.caught(f"buffer {name!r}", error)
        return Buffer(str(name), 0, str(unit), BufferPayload(0, 1, 0, 0, 0, b"", b"", b""))


class Held(NamedTuple):
    """One pre-allocated tensor that is known by its size only: an entry of the inventory."""

    attribute: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    location: str = "host"


def inventory(owner: str, held: Iterable[Held]) -> None:
    """Record what ``owner`` holds, instead of what was recorded of it before.

    Entries alike in attribute, shape and dtype become one record with a count and their bytes in total.
    """
    with safety.shield(f"inventory {owner}"):
        alike: dict[Held, int] = {}
        for entry in held:
            alike[entry] = alike.get(entry, 0) + 1
        entries = []
        for entry, count in alike.items():
            descriptor = BufferPayload(
                nbytes=entry.nbytes * count,
                instances=count,
                kind=Kind.FIXED,
                location=_member(Location, "location", entry.location),
                flags=layout.FLAG_INVENTORY,
                unit=b"bytes",
                limit=layout.text(f"{entry.dtype}{list(entry.shape)}".replace(" ", ""), 40),
                name=layout.text(f"{owner}.{entry.attribute}", 96),
            )
            entries.append(Buffer(f"{owner}.{entry.attribute}", descriptor.nbytes, "bytes", descriptor))
        _registry.replace_inventory(owner, entries)


def _member(enum: type[Kind | Location], what: str, value: str) -> int:
    names = [member.name.lower() for member in enum if member]
    if value not in names:
        raise ValueError(f"{what} is {value!r}; it must be one of {', '.join(names)}")
    return enum[value.upper()]
