"""Wraps one attribute of a class, so that the engine cannot tell, whatever our code does."""

from __future__ import annotations

import functools
import inspect
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ullage.engines.probe import Probe
from ullage.segment.layout import ProbeStatus

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "__ullage__"


@dataclass(frozen=True)
class Patch:
    """What to do at one function of an engine.

    The callbacks get the call as the engine made it; ``self`` of the engine's object is ``args[0]``.

    Attributes:
        module: Where the class is defined.
        target: ``Class.function``.
        parameters: Names that the function must have; without one of them the probe is ``changed``.
        before: ``before(args, kwargs)``.
        after: ``after(result, args, kwargs)``.
        failed: ``failed(exception, args, kwargs)``; the exception goes on to the engine unchanged.
        reads: Attributes of the engine's objects that the callbacks cannot do without, as ``Class.attribute`` of the
            module; where they may be missing, the callbacks ask.
        since: The first version of the engine that has the function.
        until: The first version that has it no more.
        shared: The probe of several hooks that are of interest together only.
    """

    module: str
    target: str
    parameters: tuple[str, ...] = ()
    before: Callable[..., object] | None = None
    after: Callable[..., object] | None = None
    failed: Callable[..., object] | None = None
    reads: tuple[str, ...] = ()
    since: tuple[int, int] = (0, 0)
    until: tuple[int, int] = (sys.maxsize, 0)
    shared: Probe | None = None
    probe: Probe = field(init=False)
    _wrapped: WeakSet[type] = field(init=False, default_factory=WeakSet)

    def __post_init__(self) -> None:
        object.__setattr__(self, "probe", self.shared or Probe(self.target))

    def exists_in(self, version: tuple[int, int]) -> bool:
        """Tell whether a version of the engine has the function, as far as was read."""
        return self.since <= version < self.until

    def install(self, module: Any) -> None:
        """Wrap the function in ``module``, or say why not. Wrapping it again is a no-op."""
        self.wrap(getattr(module, self.target.partition(".")[0], None))

    def wrap(self, cls: Any) -> None:
        """Wrap the function where ``cls`` has it from, or say why not. Wrapping it again is a no-op."""
        attribute = self.target.partition(".")[2]
        owner = _definer(cls, attribute)
        if owner is None:
            self.probe.set(ProbeStatus.ABSENT, f"{self.module} has no {self.target}")
            return
        if owner in self._wrapped:
            return  # ours is still there, or another wrapper calls it
        original = owner.__dict__[attribute]
        if hasattr(original, MARK):
            if getattr(original, MARK) is not self.probe:
                self.probe.set(ProbeStatus.DISABLED, "another copy of ullage watches it")
            return
        if not inspect.isfunction(original):
            self.probe.set(ProbeStatus.CHANGED, f"it is a {type(original).__name__}, not a function")
            return
        missing = [name for name in self.parameters if name not in inspect.signature(original).parameters]
        if missing:
            self.probe.set(ProbeStatus.CHANGED, f"no parameter {', '.join(missing)}")
            return
        setattr(owner, attribute, self._wrap(original))
        self._wrapped.add(owner)
        self.probe.set(ProbeStatus.INSTALLED)

    def refresh(self) -> None:
        """Wrap again what the engine replaced: a module that was reloaded has new classes."""
        module = sys.modules.get(self.module)
        if module is not None and self.probe.status is ProbeStatus.INSTALLED:
            self.install(module)

    def expected(self) -> None:
        """A process that should have imported the module by now makes a step: say so if it has not."""
        if self.probe.status is ProbeStatus.UNKNOWN:
            self.probe.set(ProbeStatus.ABSENT, f"{self.module} was not imported")

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return what the engine calls instead."""
        probe, before, after, failed = self.probe, self.before, self.after, self.failed

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not probe.live:
                return original(*args, **kwargs)
            probe.calls += 1
            probe.counted()
            if before is not None:
                probe.attempt(probe.measure, before, args, kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                if failed is not None:
                    probe.attempt(failed, error, args, kwargs)
                raise
            if after is not None:
                probe.attempt(probe.measure, after, result, args, kwargs)
            return result

        setattr(wrapper, MARK, probe)
        return wrapper


def argument(name: str, position: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a call gave for a parameter, by name or at its position (self is 0); None if nothing."""
    return kwargs[name] if name in kwargs else args[position] if position < len(args) else None


def _definer(cls: Any, attribute: str) -> Any:
    """Return the class that defines ``attribute``: wrapped there, it is wrapped once for all subclasses."""
    if not inspect.isclass(cls):
        return None
    return next((base for base in cls.__mro__ if attribute in base.__dict__), None)
