"""A session: what one engine instance records in this process. Opens a segment, survives fork, marks stops."""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from ullage import safety
from ullage.exact import MAX
from ullage.host import environment, signatures
from ullage.host.identity import Identity
from ullage.host.record_views import NULL_RECORD, LazyRecord
from ullage.known_engines import ENGINES
from ullage.progress.step_clock import StepClock
from ullage.progress.step_phase import StepPhase
from ullage.segment import file_system, layout, sweep, text
from ullage.segment.layout import EventKind, P
from ullage.segment.writer import Segment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ullage.host.records import Record, Shared
    from ullage.segment.snapshot import Snapshot

MAX_RECORDS = 4 * layout.BUFFERS.records
"""Handles that a session knows; a host can make them without end, and the later ones record nothing."""
_RUNNING = int(P.RUNNING)
T = TypeVar("T")


class Session:
    """What the handles of one engine instance in this process share. Its methods never raise.

    Attributes:
        lock: Held while records are registered or given back.
        identity: What the segment says of this process.
        clock: The steps of the engine in this process.
        phase: Where this process is in its step.
        directory: Where its segment is; None before it was opened.
    """

    def __init__(self, shared: Shared, engine: str = "app") -> None:
        self.lock = threading.RLock()
        self.identity = Identity(engine)
        self.clock = StepClock(shared.chores)
        self.phase = StepPhase(self.clock)
        self.directory: Path | None = None
        self._shared = shared
        self._segment: Segment | None = None
        self._off = False
        self._records: list[Record] = []
        self._parts: dict[Callable[[Session], Any], Any] = {}
        self._exceptions: Counter[str] = Counter()
        self._errors = 0

    @property
    def roles(self) -> set[str]:
        """What this process does for its engine: any of launcher, frontend, core, worker."""
        return self.identity.roles

    @property
    def words(self) -> memoryview | LazyRecord:
        """The plain words of the process record, to be stored into."""
        return self.clock.words

    @property
    def segment(self) -> Segment | None:
        """The segment, if it is open."""
        return self._segment

    def part(self, kind: Callable[[Session], T]) -> T:
        """Return this session's only ``kind(session)``, made at the first call."""
        with self.lock:
            if kind not in self._parts:
                self._parts[kind] = kind(self)
            part: T = self._parts[kind]
            return part

    # -- opening -----------------------------------------------------------------------------------------------

    def register(self, record: Record) -> None:
        """Have ``record`` attached to the segment, now or when there is one. Opens the segment."""
        with self.lock:
            segment = self.open()
            if len(self._records) >= MAX_RECORDS:
                return
            self._records.append(record)
            if segment is not None:
                record.attach(segment)

    def forget(self, record: Record) -> None:
        """Drop a record that was closed."""
        with self.lock, contextlib.suppress(ValueError):
            self._records.remove(record)

    def open(self) -> Segment | None:
        """Return the segment, opened if need be; None when the hook is off, which was logged once."""
        if self._off:
            return None
        if self._segment is not None:
            return self._segment
        with self.lock:
            if self._segment is None and not self._off:
                self._open()
        return self._segment

    def _open(self) -> None:
        directory = environment.directory()
        if directory is None or safety.disabled():
            self._off = True
            return
        self.directory = directory
        neighbours: list[Snapshot] = []
        with safety.shield("sweep"):
            found = sweep.survey(directory)
            neighbours = [snapshot for _, snapshot in found]
            sweep.sweep(directory, found, time.time())
        self._join_engine(neighbours)
        with safety.shield("identity"):
            self.identity.update(environment.install_info(engine.plugin_variable for engine in ENGINES))
        try:
            segment = Segment.create(directory, self.identity.encode())
        except Exception as error:
            self._off = True
            reason = error.strerror if isinstance(error, OSError) else None
            safety.log_once(
                "segment",
                f"off: no segment in {directory}: {reason or error}. The engine is not "
                f"affected; nothing is recorded. Set ULLAGE_DIR to a writable directory on tmpfs.",
            )
            return
        self._begin(segment)
        with safety.shield("file system"):
            kind = file_system.kind_of(directory)
            if kind is not None and kind not in file_system.IN_MEMORY:
                self.identify(directory=f"{directory} is on {kind}, not tmpfs")
                safety.log_once(
                    "file system", f"{directory} is on {kind}: stores can stall behind writeback; use a tmpfs"
                )

    def _begin(self, segment: Segment) -> None:
        """Store into ``segment`` from now on; each shared record is attached by itself."""
        self._segment = segment
        self.clock.words = segment.process
        self.words[P.HOOK_ERRORS] = self._errors
        with safety.shield("end of the process"):
            self._watch_the_end()
        for record in self._shared.records:
            with safety.shield("attach"):
                record.attach(self)

    def _join_engine(self, neighbours: list[Snapshot]) -> None:
        """Inherit the engine's id and name, or make them and leave them to the processes started from here."""
        names, ids = self._shared.names, self._shared.ids
        name, engine_id = environment.inherited_engine()
        given = environment.engine_name()
        ours = self.identity.engine in ("app", name.rstrip("0123456789")) or name == given
        if not (name and engine_id) or not ours or engine_id in ids:
            name = environment.free_name(self.identity.engine, neighbours, names, given=given)
            engine_id = secrets.token_hex(8)
            with safety.shield("environment"):
                environment.pass_on_engine(name, engine_id)
        names.add(name)
        ids.add(engine_id)
        self.identity.update({"engine_name": name, "engine_id": engine_id})

    # -- what happens ------------------------------------------------------------------------------------------

    def identify(self, **fields: str | int) -> None:
        """Add to what the segment says of this process, and publish it again."""
        with self.lock, safety.shield("identity"):
            self.identity.update(fields)
            if self._segment is not None:
                self._segment.seal(layout.IDENTITY, 0, self.identity.encode())

    def set_running(self, running: int) -> None:
        """Store how many requests need another step; 0 is idle, and idle is not stalled."""
        self.clock.words[_RUNNING] = running

    def look_for_switch(self) -> None:
        """Stop recording if there is a file ``disable`` in the directory."""
        if self.directory is not None and not self._off and (self.directory / "disable").exists():
            safety.log_once("disable", f"off: {self.directory / 'disable'} exists")
            self.switch_off()

    def switch_off(self) -> None:
        """Stop recording in this session, for good."""
        with self.lock:
            self.words[P.DISABLED_NS] = time.time_ns()
            self._off = True
            self.clock.words = NULL_RECORD
            for shared in self._shared.records:
                shared.detach()
            for record in self._records:
                record.detach()

    def emit(
        self,
        kind: EventKind,
        subject: str,
        *,
        count: int = 1,
        numbers: tuple[int, ...] = (),
        detail: str = "",
    ) -> None:
        """Append an event, if its count is a power of two: a storm leaves a dozen records, not a thousand."""
        segment = self._segment
        if segment is None or self._off or count & (count - 1):
            return
        a, b, c, d = (max(-MAX, min(number, MAX)) for number in (*numbers, 0, 0, 0, 0)[:4])
        name, words = text.encode(subject, 96), text.encode(detail, 348)
        segment.emit(layout.EventPayload(time.time_ns(), count, (a, b, c, d), kind, name, words))

    def note_exception(self, where: str, error: BaseException) -> None:
        """Record that an exception of the host passed through a hook: its type and known numbers, not its text."""
        if self._segment is not None:
            self.words[P.EXCEPTION_NS] = time.time_ns()
            known = signatures.match(error)
            detail = f"{type(error).__name__} {known.name}".rstrip()
            self._exceptions[where] += 1
            count = self._exceptions[where]
            self.emit(EventKind.HOST_EXCEPTION, where, count=count, numbers=known.numbers, detail=detail)

    def note_failure(self, why: str) -> None:
        """Record that the engine is going down because something failed; a stop declared later is no orderly one."""
        if self._segment is not None and not self._ended():
            self.words[P.FAILURE_NS] = time.time_ns()
            self.emit(EventKind.FAILURE, why)

    def declare_stop(self, why: str) -> None:
        """Record that the engine is being shut down in order. Ignored if a failure started it."""
        if self._segment is None or self._ended():
            return
        if self.words[P.EXCEPTION_NS] > self.words[P.STEP_NS]:
            return
        self.words[P.STOP_NS] = time.time_ns()
        self.emit(EventKind.STOP, why)

    @property
    def stopped(self) -> bool:
        """Whether the engine was shut down in order."""
        return self._segment is not None and bool(self.words[P.STOP_NS])

    def _ended(self) -> bool:
        return bool(self.words[P.STOP_NS] or self.words[P.FAILURE_NS])

    def drop(self, word: P) -> None:
        """Count something that did not fit."""
        words = self.words
        if self._segment is not None:
            words[word] = words[word] + 1

    def count_error(self, where: str, error: BaseException) -> None:
        """Account for an error of ours."""
        self._errors += 1
        if self._segment is not None:
            self.words[P.HOOK_ERRORS] = self._errors
            self.emit(EventKind.HOOK_ERROR, where, count=self._errors, detail=type(error).__name__)

    # -- ends --------------------------------------------------------------------------------------------------

    def end(self) -> tuple[Path | None, list[Record]]:
        """Let go of the segment while the process goes on, so that it reads as ended; record nothing more.

        Returns:
            The file, and the records that belong to the program: they must be restarted in another session.
        """
        with self.lock:
            segment, records = self._segment, self._records
            for shared in self._shared.records:
                shared.leave(self)
            self._segment, self._records, self._off = None, [], True
            self.clock.words = NULL_RECORD
            self._parts.clear()
            for record in records:
                record.detach()
            if segment is None:
                return None, [record for record in records if record.lasting]
            if not segment.close():
                self._shared.kept.append(segment)
            return segment.path, [record for record in records if record.lasting]

    def take(self, records: list[Record]) -> None:
        """Register records of a session that ended; they start from zero."""
        for record in records:
            with safety.shield("restart"):
                record.restart()
                self.register(record)

    def _watch_the_end(self) -> None:
        # A child of multiprocessing ends with os._exit: its own finalizers run, atexit does not.
        util = sys.modules.get("multiprocessing.util")
        process = sys.modules.get("multiprocessing.process")
        if util is not None and process is not None and process.parent_process() is not None:
            util.Finalize(None, safety.shielded, ("exit", self.at_exit), exitpriority=0)

    def at_exit(self) -> None:
        """Declare the stop of a program that ends in order.

        Not for an engine's core and workers: an engine may end them in order after a failure, too.
        """
        if self.identity.role not in ("main", "launcher", "api"):
            return
        error = sys.exc_info()[1] or getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if error is not None and not isinstance(error, SystemExit) and not hasattr(sys, "ps1"):
            self.note_exception("interpreter", error)
            self.note_failure("uncaught exception")
        else:
            self.declare_stop("interpreter exit")

    def forked(self) -> None:
        """In a forked child: leave the parent's segment, and have one of our own at the first store."""
        self.lock = threading.RLock()
        segment, self._segment = self._segment, None
        if segment is None:
            return
        self._shared.kept.append(segment)
        segment.close()
        if self._off:
            return
        self.identity.forked()
        self.clock.steps = self._errors = 0
        self._exceptions.clear()
        self.clock.words = LazyRecord(self._opened)
        for record in self._records:
            record.restart()

    def _opened(self) -> memoryview:
        self.open()
        if isinstance(self.clock.words, LazyRecord):
            self.clock.words = NULL_RECORD
        return self.clock.words
