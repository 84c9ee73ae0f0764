"""The session: one per process. Opens the segment at the first registration, survives fork, marks stops."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from ullage import __version__, compiled, file_system, safety, signatures, surroundings
from ullage.beat import beat
from ullage.exact import MAX, exact
from ullage.segment import layout, sweep, text
from ullage.segment.gate import IDENTITY_TEXT_MAX
from ullage.segment.layout import EventKind, P
from ullage.segment.text import clean
from ullage.segment.writer import Segment
from ullage.words import SINK, Pending

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ullage.segment.snapshot import Snapshot

MAX_RECORDS = 4 * layout.BUFFERS.records
"""Handles that a session knows; a host can make them without end, and the later ones record nothing."""
_RUNNING = int(P.RUNNING)


class Record(Protocol):
    """Something that stores into a record of the segment through views that it was given."""

    def attach(self, segment: Segment) -> None:
        """Take a record of ``segment`` and store there from now on."""

    def detach(self) -> None:
        """Store nowhere from now on, for good."""

    def forked(self) -> bool:
        """In a forked child: start from zero. True: attach me as soon as there is a segment; False: I will ask."""


class Session:
    """What all handles of one process share. Use the module's ``session``; its methods never raise.

    Attributes:
        engine: The engine's base name: ``vllm``, or ``app`` for a program that is not an engine we know.
        roles: What this process does for its engine: any of frontend, core, worker.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.engine = "app"
        self.roles: set[str] = set()
        self.directory: Path | None = None
        self._segment: Segment | None = None
        self._off = False
        self._hooked = False
        self._records: list[Record] = []
        self._waiting: list[Record] = []
        self._identity: dict[str, Any] = {}
        self._exceptions: Counter[str] = Counter()
        # Of the processes that this one was forked from: unmapped, they would close descriptors that may be others now.
        self._inherited: list[Segment] = []
        self._errors = 0

    @property
    def words(self) -> memoryview | Pending:
        """The plain words of the process, to be stored into."""
        return beat.words

    @words.setter
    def words(self, words: memoryview | Pending) -> None:
        beat.words = words

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

    def expect(self, record: Record) -> None:
        """Have ``record`` attached when somebody else opens the segment."""
        with self.lock:
            self._records.append(record)
            if self._segment is None:
                self._waiting.append(record)
            elif not self._off:
                record.attach(self._segment)

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
        directory = surroundings.directory()
        if directory is None or safety.disabled():
            self._off = True
            return
        self.directory = directory
        neighbours: list[Snapshot] = []
        with safety.shield("sweep"):
            found = sweep.survey(directory)
            neighbours = [snapshot for _, snapshot in found]
            sweep.sweep(directory, found, time.time())
        self._adopt_engine(neighbours)
        with safety.shield("identity"):
            self._identity.update(surroundings.arrival())
        try:
            segment = Segment.create(directory, self._encoded_identity())
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
        """Store into ``segment`` from now on; what waited for one is attached, each by itself."""
        self._segment = segment
        self.words = segment.process
        self.words[P.HOOK_ERRORS] = self._errors
        with safety.shield("end of the process"):
            self._watch_the_end()
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            with safety.shield("attach"):
                record.attach(segment)

    def _adopt_engine(self, neighbours: list[Snapshot]) -> None:
        """Inherit the engine's id and name, or make them and leave them to the processes started from here."""
        name, engine_id = surroundings.inherited_engine()
        given = surroundings.engine_name()
        ours = self.engine in ("app", name.rstrip("0123456789")) or name == given
        if not (name and engine_id) or not ours:
            name = given or surroundings.free_name(self.engine, neighbours)
            engine_id = secrets.token_hex(8)
            with safety.shield("environment"):
                os.environ["ULLAGE_ENGINE_ID"] = f"{name}:{engine_id}"
        self._identity.update(engine_name=name, engine_id=engine_id)

    # -- identity ----------------------------------------------------------------------------------------------

    def identify(self, **fields: str | int) -> None:
        """Add to what the segment says of this process, and publish it again."""
        with self.lock, safety.shield("identity"):
            self._identity.update(
                {key: clean(value) if isinstance(value, str) else exact(key, value) for key, value in fields.items()}
            )
            self._publish()

    def _publish(self) -> None:
        if self._segment is not None:
            self._segment.seal(layout.IDENTITY, 0, self._encoded_identity())

    def _encoded_identity(self) -> bytes:
        identity = {
            "process": f"{self._identity['engine_name']}/{self._process_name()}",
            "role": self._role(),
            "engine": self.engine,
            "hook_version": __version__,
            "python": sys.version.split()[0],
            **self._identity,
        }
        room = IDENTITY_TEXT_MAX
        while len(payload := _encoded(identity, room)) > layout.IDENTITY.sealed_bytes:
            room //= 2
        return payload

    def _role(self) -> str:
        if "core" in self.roles:
            return "main" if "frontend" in self.roles else "core"
        if "worker" in self.roles:
            return "worker"
        return "api" if "frontend" in self.roles else "main"

    def _process_name(self) -> str:
        role, identity = self._role(), self._identity
        parts = [role]
        if role == "worker":
            parts.append(f"tp{identity.get('tp_rank', 0)}")
            parts += [f"pp{identity['pp_rank']}"] if identity.get("pp_size", 1) > 1 else []
        if role in ("worker", "core") and identity.get("dp_size", 1) > 1:
            parts.append(f"dp{identity['dp_rank']}")
        return "-".join(parts)

    # -- what happens ------------------------------------------------------------------------------------------

    def engine_starts(self) -> None:
        """This process starts an engine: how an earlier one of its ended is over."""
        if self._segment is not None:
            self.words[P.STOP_NS] = 0
            self.words[P.FAILURE_NS] = 0

    def set_running(self, running: int) -> None:
        """How many requests need a next step; 0 is idle, and idle is not stalled."""
        self.words[_RUNNING] = running

    def look_for_switch(self) -> None:
        """Stop recording if somebody has left a file ``disable`` in the directory."""
        if self.directory is not None and not self._off and (self.directory / "disable").exists():
            safety.log_once("disable", f"off: {self.directory / 'disable'} exists")
            self.switch_off()

    def switch_off(self) -> None:
        """Stop recording in this process, for good."""
        with self.lock:
            self.words[P.DISABLED_NS] = time.time_ns()
            self._off = True
            self.words = SINK
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
        """An exception of the host passed through a hook. Not its text is recorded: its type, and what is known."""
        if self._segment is not None:
            self.words[P.EXCEPTION_NS] = time.time_ns()
            known = signatures.match(error)
            detail = f"{type(error).__name__} {known.name}".rstrip()
            self._exceptions[where] += 1
            count = self._exceptions[where]
            self.emit(EventKind.HOST_EXCEPTION, where, count=count, numbers=known.numbers, detail=detail)

    def note_failure(self, why: str) -> None:
        """The engine is going down because something failed; a stop declared later is no orderly one."""
        if self._segment is not None and not self._ended():
            self.words[P.FAILURE_NS] = time.time_ns()
            self.emit(EventKind.FAILURE, why)

    def declare_stop(self, why: str) -> None:
        """The engine is being shut down in order. Ignored if a failure started it."""
        if self._segment is None or self._ended():
            return
        if self.words[P.EXCEPTION_NS] > self.words[P.STEP_NS]:
            return
        self.words[P.STOP_NS] = time.time_ns()
        self.emit(EventKind.STOP, why)

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

    def _watch_the_end(self) -> None:
        if not self._hooked:
            self._hooked = True
            os.register_at_fork(after_in_child=lambda: _shielded("fork", self._forked))
            atexit.register(_shielded, "exit", self._at_exit)
        # A child of multiprocessing ends with os._exit: its own finalizers run, atexit does not.
        util = sys.modules.get("multiprocessing.util")
        process = sys.modules.get("multiprocessing.process")
        if util is not None and process is not None and process.parent_process() is not None:
            util.Finalize(None, _shielded, ("exit", self._at_exit), exitpriority=0)

    def _at_exit(self) -> None:
        """Declare the stop of a program that ends in order.

        Not for an engine's core and workers: vLLM ends them in order after a failure, too.
        """
        if self._role() not in ("main", "api"):
            return
        error = sys.exc_info()[1] or getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if error is not None and not isinstance(error, SystemExit) and not hasattr(sys, "ps1"):
            self.note_exception("interpreter", error)
            self.note_failure("uncaught exception")
        else:
            self.declare_stop("interpreter exit")

    def _forked(self) -> None:
        """In a forked child: leave the parent's segment, and have one of our own at the first store."""
        self.lock = threading.RLock()
        segment, self._segment = self._segment, None
        if segment is None:
            return
        self._inherited.append(segment)
        segment.close()
        if self._off:
            return
        self.roles.clear()
        beat.steps = self._errors = 0
        self._exceptions.clear()
        self.words = Pending(self._opened)
        self._waiting = [record for record in self._records if record.forked()]

    def _opened(self) -> memoryview:
        self.open()
        if isinstance(self.words, Pending):
            self.words = SINK
        return self.words


def _shielded(place: str, function: Callable[[], None]) -> None:
    with safety.shield(place):
        function()


def _encoded(identity: dict[str, Any], room: int) -> bytes:
    """Return the identity as JSON, its text cut to ``room`` characters each."""
    cut = {key: value[:room] if isinstance(value, str) else value for key, value in identity.items()}
    return json.dumps(cut, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


session = Session()
beat.at_checks(compiled.check)
beat.at_checks(session.look_for_switch)
safety.on_error(session.count_error)


_step = safety.shield("ullage.step")


def step() -> None:
    """Tell that one iteration of a program is over: it dates the process, so that a stall can be seen."""
    if not _step.off:
        with _step:
            session.open()
            beat.tick()
