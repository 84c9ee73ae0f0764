"""A record among the claims of a segment: what one source says, or what a contract has counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage import safety
from ullage.exact import MAX
from ullage.host.record_views import NULL_RECORD, LazyRecord
from ullage.segment.layout import CLAIMS, C, P

if TYPE_CHECKING:
    from collections.abc import Callable

    from ullage.host.records import Owner
    from ullage.host.session import Session
    from ullage.segment.layout import ClaimPayload
    from ullage.segment.writer import Segment

Words = memoryview | LazyRecord


class _Kept:
    """Records of one session with counts of violations that contracts have left when they were closed, by name."""

    def __init__(self, session: Session) -> None:
        self.records: dict[str, tuple[Segment, int]] = {}
        self._session = session

    def allocate(self, segment: Segment) -> int | None:
        """Return an unused record; without one, that of the contract that was closed first. None if all are in use."""
        index = segment.allocate(CLAIMS)
        while index is None and self.records:
            where, kept = self.records.pop(next(iter(self.records)))
            if where is segment:
                self._session.drop(P.DROPPED_CLAIMS)
                index = kept
        return index


class ClaimRecord:
    """One record; ``bind`` is given the words to count in, whenever they change.

    ``keeps``: a name under which its counts go on. If there are violations when it is released, the record stays, and
    the next one of that name goes on there.
    """

    def __init__(
        self,
        owner: Owner,
        payload: ClaimPayload,
        bind: Callable[[Words], None] = lambda _words: None,
        *,
        keeps: str = "",
    ) -> None:
        self.lasting = owner.lasting
        self._owner = owner
        self._payload = payload
        self._bind = bind
        self._keeps = keeps
        self._index: int | None = None

    def publish(self, payload: ClaimPayload) -> None:
        """Replace what the record says; its counts go on."""
        self._payload = payload
        segment = self._owner.session.open()
        if segment is not None and self._index is not None:
            segment.seal(CLAIMS, self._index, payload.pack())

    def attach(self, segment: Segment) -> None:
        """Take a record of ``segment``; without one left, count the drop and store nowhere."""
        every = self._owner.session.part(_Kept)
        where, kept = every.records.pop(self._keeps, (None, None))
        self._index = kept if where is segment else every.allocate(segment)
        if self._index is None:
            self._owner.session.drop(P.DROPPED_CLAIMS)
            safety.log_once(
                "records of claims",
                f"all {CLAIMS.records} records of claims are taken: later ones are counted, not recorded",
            )
            self._bind(NULL_RECORD)
            return
        words = segment.words(CLAIMS, self._index)
        if self._index != kept:
            for word in range(len(words)):
                words[word] = 0
        self._bind(words)
        segment.seal(CLAIMS, self._index, self._payload.pack())

    def detach(self) -> None:
        """Store nowhere from now on."""
        self._bind(NULL_RECORD)

    def release(self, segment: Segment | None) -> None:
        """Give the record back."""
        self.detach()
        if segment is not None and self._index is not None:
            words = segment.words(CLAIMS, self._index)
            every = self._owner.session.part(_Kept).records
            where, kept = every.get(self._keeps, (None, None))
            if not (self._keeps and words[C.VIOLATIONS]):
                segment.release(CLAIMS, self._index)
            elif where is segment and kept is not None:  # that of another contract of this name, which was closed, too
                theirs = segment.words(CLAIMS, kept)
                for word in (C.CHECKS, C.VIOLATIONS):
                    theirs[word] = min(theirs[word] + words[word], MAX)
                segment.release(CLAIMS, self._index)
            else:
                every[self._keeps] = segment, self._index
        self._index = None

    def restart(self) -> None:
        """Count from zero, in another segment. What was claimed before stays in the one before."""

        def attached() -> memoryview:
            segment = self._owner.session.open()
            if segment is None:
                return NULL_RECORD
            if self._index is None:
                self.attach(segment)
            return NULL_RECORD if self._index is None else segment.words(CLAIMS, self._index)

        self._index = None
        self._bind(LazyRecord(attached))
