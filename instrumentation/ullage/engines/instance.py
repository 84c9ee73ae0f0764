"""Engine instances: the state of one engine object in this process, and which of the engine's objects belong to it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ullage.host.process import process
from ullage.progress.sampler import StepSampler
from ullage.recording.buffers import register

if TYPE_CHECKING:
    from collections.abc import Callable

    from ullage.host.session import Session
    from ullage.recording.buffers import Buffer

T = TypeVar("T")


class Ranks:
    """Which of its engine's processes this is, where there are several.

    Attributes:
        data: Among the data-parallel ones, such as ``dp1``: each has limits of its own.
        own: Among all workers, such as ``dp1-tp0``.
    """

    data = ""
    own = ""


class EngineInstance:
    """One engine object in this process: what it records, and where.

    Attributes:
        session: Where it records.
        clock: Its steps.
        phase: Where this process is in its step.
        sampler: Which of its steps are sampled.
        ranks: Which of the engine's processes this is.
        lasting: Its handles do not outlive it.
    """

    lasting = False

    def __init__(self, session: Session) -> None:
        self.session = session
        self.clock = session.clock
        self.phase = session.phase
        self.sampler = StepSampler(session.clock)
        self.ranks = Ranks()
        self._parts: dict[Callable[[EngineInstance], Any], Any] = {}

    def part(self, kind: Callable[[EngineInstance], T]) -> T:
        """Return this instance's only ``kind(instance)``, made at the first call."""
        if kind not in self._parts:
            self._parts[kind] = kind(self)
        part: T = self._parts[kind]
        return part

    def buffer(self, name: str, **given: Any) -> Buffer:
        """Register a buffer of this instance; arguments as for ``ullage.buffer``, but ``nbytes`` for ``bytes``."""
        return register(self, name, **given)

    def observe(self, buffer: Buffer, used: int) -> None:
        """Observe a buffer; during a dummy run, only look for an overflow."""
        if not self.phase.dummy:
            buffer.observe(used)
        elif used > buffer.capacity:
            buffer.violated(used - 1, detail=self.phase.current.name.lower().replace("_", " "))


class Bindings(Generic[T]):
    """State by the object of the engine that it is about; forgotten when the object is collected.

    Attributes:
        states: By ``id`` of the object, for those who cannot afford a call.
    """

    def __init__(self) -> None:
        self.states: dict[int, T] = {}
        self._references: dict[int, weakref.ref[Any]] = {}

    def bind(self, thing: object, state: T) -> T:
        """Keep ``state`` as long as ``thing`` lives, and return it."""
        number = id(thing)

        def collected(reference: weakref.ref[Any]) -> None:
            if self._references.get(number) is reference:
                del self._references[number], self.states[number]

        self._references[number] = weakref.ref(thing, collected)
        self.states[number] = state
        return state

    def get(self, thing: object) -> T | None:
        """Return the state of ``thing``; None if it has none."""
        return self.states.get(id(thing))


_engines: Bindings[EngineInstance] = Bindings()


def bind(thing: object, instance: EngineInstance) -> None:
    """Note that an object of an engine belongs to ``instance``."""
    _engines.bind(thing, instance)


class Instances:
    """The engine instances of one kind in this process.

    Attributes:
        engine: The kind, such as ``vllm``.
    """

    def __init__(self, engine: str) -> None:
        self.engine = engine

    def current(self) -> EngineInstance:
        """Return the instance that this thread constructs, else the newest one; it begins if there is none."""
        return process.current(self.engine).part(EngineInstance)

    def of(self, thing: object) -> EngineInstance:
        """Return the instance that an object of the engine belongs to: at its first sight, the current one."""
        known = _engines.get(thing)
        if known is None:
            known = self.current()
            bind(thing, known)
        return known


def steady(thing: object, states: dict[int, EngineInstance] = _engines.states) -> bool:
    """Tell whether the step under way of the engine of ``thing`` brings nothing that must be sampled."""
    instance = states.get(id(thing))
    return instance is not None and instance.clock.steady
