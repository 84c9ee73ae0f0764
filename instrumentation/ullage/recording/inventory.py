"""The inventory: pre-allocated tensors that are known by their size only, alike ones as one record."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ullage import safety
from ullage.recording.buffers import Buffer, member
from ullage.segment import layout, text
from ullage.segment.layout import BufferPayload, Kind, Location, P

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ullage.host.records import Owner
    from ullage.host.session import Session


class TensorInfo(NamedTuple):
    """One pre-allocated tensor that is known by its size only: an entry of the inventory."""

    attribute: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    location: str = "host"


class Inventory:
    """The inventory of one session, by owner of the tensors."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._entries: dict[str, list[Buffer]] = {}

    def replace(self, holder: str, entries: list[Buffer]) -> None:
        """Record ``entries`` instead of what was recorded of ``holder``; those beyond the room are counted as drops."""
        session = self._session
        with session.lock:
            for old in self._entries.pop(holder, []):
                session.forget(old)
                old.release(session.open())
            room = layout.INVENTORY_MAX - sum(map(len, self._entries.values()))
            self._entries[holder] = entries[:room]
            for entry in entries[:room]:
                session.register(entry)
            for _ in entries[room:]:
                session.drop(P.DROPPED_BUFFERS)


def inventory(owner: Owner, holder: str, held: Iterable[TensorInfo]) -> None:
    """Record what ``holder`` holds, instead of what was recorded of it before.

    ``owner`` is the engine instance. Entries alike in attribute, shape and dtype become one record with a count and
    their bytes in total.
    """
    with safety.shield(f"inventory {holder}"):
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
                name=text.encode(f"{holder}.{entry.attribute}", layout.NAME_BYTES),
            )
            entries.append(Buffer(owner, f"{holder}.{entry.attribute}", descriptor.nbytes, "bytes", descriptor))
        owner.session.part(Inventory).replace(holder, entries)
