"""The inventory: pre-allocated tensors that are known by their size only, alike ones as one record."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ullage import safety
from ullage.buffers import Buffer, member
from ullage.segment import layout, text
from ullage.segment.layout import BufferPayload, Kind, Location, P
from ullage.session import session

if TYPE_CHECKING:
    from collections.abc import Iterable

_held: dict[str, list[Buffer]] = {}


class TensorInfo(NamedTuple):
    """One pre-allocated tensor that is known by its size only: an entry of the inventory."""

    attribute: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    location: str = "host"


def inventory(owner: str, held: Iterable[TensorInfo]) -> None:
    """Record what ``owner`` holds, instead of what was recorded of it before.

    Entries alike in attribute, shape and dtype become one record with a count and their bytes in total.
    """
    with safety.shield(f"inventory {owner}"):
        alike: dict[TensorInfo, int] = {}
        for entry in held:
            alike[entry] = alike.get(entry, 0) + 1
        entries = []
        for entry, count in alike.items():
            descriptor = BufferPayload(
                nbytes=entry.nbytes * count,
                instances=count,
                kind=Kind.FIXED,
                location=member(Location, "location", entry.location),
                flags=layout.FLAG_INVENTORY,
                unit=b"bytes",
                limit=text.encode(f"{entry.dtype}{list(entry.shape)}".replace(" ", ""), 40),
                name=text.encode(f"{owner}.{entry.attribute}", layout.NAME_BYTES),
            )
            entries.append(Buffer(f"{owner}.{entry.attribute}", descriptor.nbytes, "bytes", descriptor))
        _replace(owner, entries)


def _replace(owner: str, entries: list[Buffer]) -> None:
    with session.lock:
        for old in _held.pop(owner, []):
            session.forget(old)
            old.release(session.open())
        room = layout.INVENTORY_MAX - sum(map(len, _held.values()))
        _held[owner] = entries[:room]
        for entry in entries[:room]:
            session.register(entry)
        for _ in entries[room:]:
            session.drop(P.DROPPED_BUFFERS)
