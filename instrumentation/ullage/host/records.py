"""What records in a session: handles with a record each, their owners, and what the sessions of a process share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ullage.progress.step_clock import Chores

if TYPE_CHECKING:
    from ullage.host.session import Session
    from ullage.segment.writer import Segment


class Record(Protocol):
    """Something that stores into a record of the segment through views that it was given."""

    @property
    def lasting(self) -> bool:
        """Whether it belongs to the program: it goes on in another segment when the engine of this one ends."""

    def attach(self, segment: Segment) -> None:
        """Take a record of ``segment`` and store there from now on."""

    def detach(self) -> None:
        """Store nowhere from now on, for good."""

    def restart(self) -> None:
        """Start from zero, and ask for a record of another segment at the first store."""


class SharedRecord(Protocol):
    """Something of the Python process, not of an engine: it has a record in each segment that the process opens."""

    def attach(self, session: Session) -> None:
        """Take a record of the segment of ``session`` too, which was just opened."""

    def leave(self, session: Session) -> None:
        """Store nothing more into that segment."""

    def detach(self) -> None:
        """Store nowhere from now on, for good."""

    def restart(self) -> None:
        """In a forked child: start from zero, and wait for its segments."""


class Owner(Protocol):
    """What handles belong to: an engine instance, or the program.

    Attributes:
        lasting: Its handles outlive the engine instance in whose session they record.
    """

    lasting: bool

    @property
    def session(self) -> Session:
        """Where its handles record."""


class Shared:
    """What the sessions of one Python process share.

    Attributes:
        chores: What their steps do between their own work.
        records: What has a record in each of their segments.
        names: Engine names that they had.
        ids: Engine ids that they had: an id in the environment that is not among them is inherited.
        kept: Segments that must stay mapped: to unmap one closes a descriptor, which may be another file's by now.
    """

    def __init__(self) -> None:
        self.chores = Chores()
        self.records: list[SharedRecord] = []
        self.names: set[str] = set()
        self.ids: set[str] = set()
        self.kept: list[Segment] = []
