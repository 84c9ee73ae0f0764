"""Hooks at functions that an engine calls in each step: written out for each function, so that they cost little.

In a step, after a model has run, nothing of ours is in the processor's caches: each call and each object that we touch
costs up to a microsecond. So a wrapper has the function's own parameters, which the interpreter passes on without
packing them, and does nothing that this patch does not need.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ullage.engines.patch import MARK, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLBACKS = {
    "unless": (),
    "before": (),
    "when": ("ullage_result",),
    "after": ("ullage_result",),
    "failed": ("ullage_error",),
}
"""What a callback gets before what it names."""

_DEF = """\
def wrapper({parameters}):
"""
_COUNT = """\
    ullage_probe.calls = ullage_calls = ullage_probe.calls + 1
    ullage_measured = ullage_calls >= ullage_probe.due
    if ullage_measured and not ullage_probe.counted():
        return {instead}
"""
_CALLBACK = """\
    try:
        if ullage_measured:
            ullage_probe.measure(ullage_{callback}, {passed})
        else:
            ullage_{callback}({passed})
    except Exception as ullage_error:
        ullage_probe.failed(ullage_error)
"""
_CALL = """\
    ullage_result = {call}
"""
_CALL_THAT_FAILS = """\
    try:
        ullage_result = {call}
    except BaseException as ullage_error:
        ullage_probe.attempt(ullage_failed, {passed})
        raise
"""
_CALL_THAT_ONLY_FAILS = """\
    try:
        return {call}
    except BaseException as ullage_error:
        ullage_probe.calls += 1
        if ullage_probe.counted():
            ullage_probe.attempt(ullage_failed, {passed})
        raise
"""
_UNLESS = """\
    try:
        ullage_skips = ullage_unless({passed_unless})
    except Exception as ullage_error:
        ullage_probe.failed(ullage_error)
        ullage_skips = True
    if ullage_skips:
"""
_LEFT_ALONE = """\
        return {call}
"""
_LEFT_ALONE_THAT_FAILS = """\
        try:
            return {call}
        except BaseException as ullage_error:
            ullage_probe.attempt(ullage_failed, {passed})
            raise
"""
_WHEN = """\
    try:
        if not ({when}):
            return ullage_result
    except Exception as ullage_error:
        ullage_probe.failed(ullage_error)
        return ullage_result
"""
_OUTERMOST = """\
    if ullage_probe.inside is {first}:
        return {call}
"""
_CALL_FROM_OUTSIDE = """\
    ullage_probe.inside = {first}
    try:
        ullage_result = {call}
    finally:
        ullage_probe.inside = None
"""
_RETURN = """\
    return ullage_result
"""


@dataclass(frozen=True)
class StepPatch(Patch):
    """What to do at one function of an engine, in each step.

    Its callbacks name what they want; what has a default is their own. The first parameter of the engine's function,
    ``self``, is given under any name; what follows must have the engine's names: ``before(runner, scheduler_output)``.
    ``after`` has the result before these, ``failed`` the exception. Without one of the names the probe is ``changed``.

    How many calls a probe saw is stored with each call that is measured. With ``failed`` alone, only those count that
    failed.

    Attributes:
        unless: A callback. Calls for which it returns True are left alone, but for exceptions, and do not count.
        when: Calls after which it is not true are left alone, and do not count. An expression, in which the result is
            ``ullage_result``, or a callback, which has the result first. There is no ``before``.
        outermost: Leave calls alone that an object makes of itself from within one: of its base class, or of one
            variant by another, if they share a probe; exceptions are ignored.
    """

    unless: Callable[..., bool] | None = None
    when: str | Callable[..., bool] = ""
    outermost: bool = False

    def __post_init__(self) -> None:
        Patch.__post_init__(self)
        wanted = [name for callback in _CALLBACKS for name in self._wanted(callback)[1:]]
        object.__setattr__(self, "parameters", (*self.parameters, *dict.fromkeys(wanted)))

    def _wanted(self, callback: str) -> list[str]:
        function = getattr(self, callback)
        if not callable(function):
            return []
        parameters = inspect.signature(function).parameters.values()
        return [each.name for each in parameters if each.default is each.empty][len(_CALLBACKS[callback]) :]

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)
        names: dict[str, Any] = {
            "ullage_original": original,
            "ullage_probe": self.probe,
            "ullage_live": self.probe.live,
            **{f"ullage_{callback}": getattr(self, callback) for callback in _CALLBACKS},
            **{f"ullage_default_{name}": each.default for name, each in signature.parameters.items()},
        }
        exec(compile(self._written(signature), f"<ullage at {self.target}>", "exec"), names)  # noqa: S102
        self.probe.tell(names)
        wrapper: Callable[..., Any] = functools.wraps(original)(names["wrapper"])
        setattr(wrapper, MARK, self.probe)
        return wrapper

    def _written(self, signature: inspect.Signature) -> str:
        """Return the wrapper's code. Names of ours begin with ``ullage_``, since the others are the engine's."""
        first, call = next(iter(signature.parameters)), f"ullage_original({_arguments(signature)})"
        parts, called, alone = [_DEF], _CALL, _LEFT_ALONE
        if self.failed is not None:
            called, alone = _CALL_THAT_FAILS, _LEFT_ALONE_THAT_FAILS
        if self.unless:
            parts += [_UNLESS, alone]
        if self.when:
            parts += [called, _WHEN, _COUNT, self._run("after", first)]
        elif self.before is self.after is None:
            parts += [_CALL_THAT_ONLY_FAILS]
        elif self.outermost:
            parts += [_OUTERMOST, _COUNT, self._run("before", first), _CALL_FROM_OUTSIDE, self._run("after", first)]
        else:
            parts += [_COUNT, self._run("before", first), called, self._run("after", first)]
        return "".join((*parts, _RETURN)).format(
            parameters=_parameters(signature),
            first=first,
            call=call,
            instead="ullage_result" if self.when else call,
            passed_unless=self._passed("unless", first),
            when=f"ullage_live and ullage_when({self._passed('when', first)})" if callable(self.when) else self.when,
            passed=self._passed("failed", first),
        )

    def _run(self, callback: str, first: str) -> str:
        if getattr(self, callback) is None:
            return ""
        return _CALLBACK.format(callback=callback, passed=self._passed(callback, first))

    def _passed(self, callback: str, first: str) -> str:
        """Return the arguments of a callback as they are written."""
        wanted = self._wanted(callback)
        return ", ".join((*_CALLBACKS[callback], *([first] if wanted else []), *wanted[1:]))


def _parameters(signature: inspect.Signature) -> str:
    """Return the parameters of a signature as they are written, with names for its defaults."""
    written = [
        each.replace(
            annotation=each.empty,
            default=each.empty if each.default is each.empty else _Name(f"ullage_default_{name}"),
        )
        for name, each in signature.parameters.items()
    ]
    return str(signature.replace(parameters=written, return_annotation=signature.empty))[1:-1]


class _Name:
    """Stands for a value in a signature that is written out."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


def _arguments(signature: inspect.Signature) -> str:
    """Return how the parameters of a signature are passed on."""
    forms: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*{0}",
        inspect.Parameter.KEYWORD_ONLY: "{0}={0}",
        inspect.Parameter.VAR_KEYWORD: "**{0}",
    }
    return ", ".join(forms.get(each.kind, "{0}").format(name) for name, each in signature.parameters.items())
