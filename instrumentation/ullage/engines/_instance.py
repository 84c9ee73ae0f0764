"""Engine instances: the state of one engine object in this process, and which of the engine's objects belong to it."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ullage.buffers import register
from ullage.engines._sampler import StepSampler
from ullage.process import process

if TYPE_CHECKING:
    from collections.abc import Callable

    from ullage.buffers import Buffer
    from ullage.session import Session

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


def current(engine: str) -> EngineInstance:
    """Return the instance of a kind of engine that this thread constructs, else the newest one."""
    return process.current(engine).part(EngineInstance)


def bind(thing: object, instance: EngineInstance) -> None:
    """Note that an object of an engine belongs to ``instance``."""
    _engines.bind(thing, instance)


def bound(thing: object) -> EngineInstance | None:
    """Return the instance that ``thing`` belongs to; None if that is not known."""
    return _engines.get(thing)


def steady(thing: object, states: dict[int, EngineInstance] = _engines.states) -> bool:
    """Tell whether the step under way of the engine of ``thing`` brings nothing that must be sampled."""
    instance = states.get(id(thing))
    return instance is not None and instance.clock.steady
