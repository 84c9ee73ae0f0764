"""The Python process: its own session, those of its engine instances, and what they share."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import deque
from typing import TYPE_CHECKING

from ullage import safety
from ullage.host import compiled, environment
from ullage.host.identity import Identity
from ullage.host.records import Shared, SharedRecord
from ullage.host.session import Session
from ullage.segment.sweep import KEEP_NEWEST

if TYPE_CHECKING:
    from pathlib import Path


class Process:
    """The sessions of one Python process. Use the module's ``process``.

    The program's own handles record in ``session``. The first engine instance takes that session over, so that the
    buffers of a model's code are found with the engine that runs it; each later one has a session of its own.

    Attributes:
        session: Where the program's own handles record.
        lasting: They outlive the engine instance that took the session over.
        chores: What is done between steps.
    """

    lasting = True

    def __init__(self) -> None:
        self._shared = Shared()
        self._lock = threading.RLock()
        self._engines: list[Session] = []
        self._versions: dict[str, str] = {}
        self._building = threading.local()
        self._over: deque[tuple[Session, bool]] = deque()
        self._ended: list[tuple[Path, bool]] = []
        self.session = Session(self._shared)
        self.chores = self._shared.chores
        self.chores.at_checks(compiled.check)
        self.chores.at_checks(self.look_for_switch)
        safety.on_error(self._count_error)
        os.register_at_fork(after_in_child=lambda: safety.shielded("fork", self._forked))
        atexit.register(safety.shielded, "exit", self._at_exit)

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All sessions, the program's own first."""
        return (self.session, *(each for each in self._engines if each is not self.session))

    def share(self, record: SharedRecord) -> None:
        """Give ``record`` a place in each segment, now and when one is opened."""
        with self._lock:
            self._shared.records.append(record)
            for session in self.sessions:
                if session.segment is not None:
                    record.attach(session)

    # -- engine instances ------------------------------------------------------------------------------------------

    def announce(self, engine: str, version: str) -> None:
        """Note that engine instances of this kind and version may begin here."""
        with self._lock:
            self._versions[engine] = version
            if self._may_take_over(engine):
                self.session.identity.engine = engine
                self.session.identify(engine_version=version)

    def begin(self, engine: str) -> Session:
        """Return the session of a new engine instance of a kind such as ``vllm``, and open it."""
        with self._lock:
            self._end_what_is_over()
            session = self.session if self._may_take_over(engine) else Session(self._shared, engine)
            session.identity.engine = engine
            if engine in self._versions:
                session.identify(engine_version=self._versions[engine])
            self._engines.append(session)
            session.open()
            return session

    def _may_take_over(self, engine: str) -> bool:
        if self.session in self._engines:
            return False
        name = self.session.identity.engine_name
        return self.session.segment is None or name.startswith(engine) or name == environment.engine_name()

    def construct(self, engine: str) -> Session:
        """Begin an engine instance: what this thread makes before ``constructed`` belongs to it."""
        stack = self._stack()
        session = stack[-1] if stack else self.begin(engine)
        stack.append(session)
        return session

    def constructed(self) -> Session | None:
        """Return the session that this thread constructed last, if it is complete now: not within another one."""
        stack = self._stack()
        session = stack.pop() if stack else None
        return None if stack else session

    def constructs(self, session: Session) -> bool:
        """Tell whether this thread is constructing the engine instance of ``session``."""
        return session in self._stack()

    def current(self, engine: str) -> Session:
        """Return the session of the engine instance that this thread constructs, else of the newest one."""
        stack = self._stack()
        if stack:
            return stack[-1]
        with self._lock:
            living = [session for session in self._engines if session.identity.engine == engine]
            return living[-1] if living else self.begin(engine)

    def _stack(self) -> list[Session]:
        stack: list[Session] = self._building.__dict__.setdefault("stack", [])
        return stack

    def end(self, session: Session, *, failed: bool) -> None:
        """End the session of an engine instance; the process goes on. The program's own handles start from zero."""
        with self._lock:
            self._over.append((session, failed))
            self._end_what_is_over()

    def end_from_finalizer(self, session: Session, *, failed: bool) -> None:
        """End a session without waiting: a finalizer runs anywhere, also where this thread holds a lock of ours.

        If another thread is at work here, that is left to the next beginning, end or check.
        """
        self._over.append((session, failed))
        self._try_to_end_what_is_over()

    def _try_to_end_what_is_over(self) -> None:
        if self._over and self._lock.acquire(blocking=False):
            try:
                self._end_what_is_over()
            finally:
                self._lock.release()

    def _end_what_is_over(self) -> None:
        while self._over:
            session, failed = self._over.popleft()
            if session not in self._engines:
                continue
            self._engines.remove(session)
            path, lasting = session.end()
            self._pass_on_another(session.identity)
            if session is self.session:
                self.session = Session(self._shared)
            self.session.take(lasting)
            if path is not None:
                self._ended.append((path, failed))
                self._unlink_older()

    def _pass_on_another(self, ended: Identity) -> None:
        """Have the processes that are started from here join no engine that ended."""
        if environment.inherited_engine()[1] == ended.engine_id:
            heir = self._engines[-1].identity if self._engines else Identity("")
            environment.pass_on_engine(heir.engine_name, heir.engine_id)

    def _unlink_older(self) -> None:
        """Keep, of the files of engines that ended, the first failure and the newest two, as the sweep does."""
        older, newest = self._ended[:-KEEP_NEWEST], self._ended[-KEEP_NEWEST:]
        first_failure = [each for each in older if each[1]][:1]
        for ended in older:
            if ended not in first_failure:
                with contextlib.suppress(OSError):
                    ended[0].unlink()
        self._ended = first_failure + newest

    # -- all sessions ----------------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Sample the step under way of each engine instance, whatever its batch is."""
        for session in self.sessions:
            session.clock.sample()

    def look_for_switch(self) -> None:
        """Stop recording if there is a file ``disable`` in the directory."""
        self._try_to_end_what_is_over()
        for session in self.sessions:
            session.look_for_switch()

    def _count_error(self, where: str, error: BaseException) -> None:
        for session in self.sessions:
            session.count_error(where, error)

    def _at_exit(self) -> None:
        for session in self.sessions:
            session.at_exit()

    def _forked(self) -> None:
        """In a child: no engine instance lives here, and the next one is of the engine that started the child."""
        self._lock = threading.RLock()
        engines, self._engines = self._engines, []
        self._building = threading.local()
        self._ended.clear()
        self._over.clear()
        self._shared.ids.clear()
        for record in self._shared.records:
            record.restart()
        self.session.forked()
        for session in engines:
            if session is not self.session:
                session.forked()
                session.end()


process = Process()
_step = safety.shield("ullage.step")


def step() -> None:
    """Tell that one iteration of a program is over: it dates the process, so that a stall can be seen."""
    if not _step.off:
        with _step:
            process.session.open()
            process.session.clock.tick()
