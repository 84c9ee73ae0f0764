"""Hooks at what an engine calls in each step: as careful as the others, and written out for each function."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from ullage import safety
from ullage.engines import probe as probes
from ullage.engines.instance import EngineInstance, bind, steady
from ullage.engines.step_patch import StepPatch
from ullage.host.records import Shared
from ullage.host.session import Session
from ullage.segment.layout import ProbeStatus


@pytest.fixture
def engine():
    """A module with a class like an engine's."""
    module = ModuleType("fake_engine")

    class Builder:
        def build(self, budget, sizes=(1, 2), *more, throttle=False, **rest):
            """Build."""
            if budget < 0:
                raise KeyError("the engine's own")
            return None if throttle else (budget, sizes, more, rest)

        def variant(self, budget):
            return self.build(budget)

        def forwarded(self, *args, **kwargs):
            return args, kwargs

    class Fast(Builder):
        def build(self, budget, *more):
            return super().build(budget, *more)

    module.Builder, module.Fast = Builder, Fast
    return module


@pytest.fixture
def lenient(monkeypatch):
    """Production: our errors are swallowed."""
    monkeypatch.setenv("ULLAGE_STRICT", "0")


@pytest.fixture
def instance():
    """An engine instance whose step brings nothing that must be sampled."""
    made = EngineInstance(Session(Shared()))
    made.clock.steady = True
    return made


def watched(engine, target="Builder.build", **hook):
    made = StepPatch("fake_engine", target, **hook)
    made.install(engine)
    return made


def boom(*_args):
    raise RuntimeError("ours")


def test_callbacks_get_what_they_name_and_the_engine_gets_its_call(engine):
    seen, original = [], engine.Builder.build
    builder = engine.Builder()

    def before(it, throttle, rest):
        seen.append((it, throttle, rest))

    def after(result, _it, more, sizes):
        seen.append((result, more, sizes))

    watched(engine, before=before, after=after)
    result = builder.build(4, [3], 5, 6, why=7)

    assert result == (4, [3], (5, 6), {"why": 7})
    assert seen == [(builder, False, {"why": 7}), (result, (5, 6), [3])]
    assert builder.build(budget=1) == (1, (1, 2), (), {})
    assert builder.build(1, throttle=True) is None
    wrapped = engine.Builder.build
    assert inspect.signature(wrapped) == inspect.signature(original)
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__qualname__) == (
        original.__name__,
        original.__doc__,
        original.__qualname__,
    )


@pytest.mark.parametrize("is_steady", [False, True])
@pytest.mark.parametrize("others", [{}, {"before": lambda: None}, {"after": lambda _result: None, "unless": steady}])
def test_the_engines_own_exception_passes_unchanged_after_it_was_seen(engine, instance, others, is_steady):
    seen, builder = [], engine.Builder()
    bind(builder, instance)
    instance.clock.steady = is_steady
    watched(engine, failed=lambda error, _it, budget: seen.append((error, budget)), **others)

    with pytest.raises(KeyError, match="the engine's own") as raised:
        builder.build(-1)

    assert seen == [(raised.value, -1)]
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None


@pytest.mark.fault("an error in a probe of a step", sees="ullage_hook_errors_total")
@pytest.mark.parametrize("where", ["before", "after", "failed"])
@pytest.mark.parametrize("calls", [1, 5 * probes.MEASURED])
def test_errors_of_ours_change_no_result_and_no_exception_and_are_counted(engine, lenient, monkeypatch, where, calls):
    monkeypatch.setattr(safety, "MAX_ERRORS", 10**6)
    hook = watched(engine, **{where: boom})
    builder = engine.Builder()

    assert [builder.build(n)[0] for n in range(calls)] == [*range(calls)]
    with pytest.raises(KeyError, match="the engine's own") as raised:
        builder.build(-1)

    assert raised.value.__cause__ is None
    assert hook.probe._errors == {"before": calls + 1, "after": calls, "failed": 1}[where]


@pytest.mark.fault("ten errors in a probe of a step", sees="probe_disabled")
def test_after_ten_errors_the_probe_switches_itself_off(engine, lenient):
    hook = watched(engine, after=boom)
    builder = engine.Builder()

    assert [builder.build(n)[0] for n in range(30)] == [*range(30)]
    assert (hook.probe._errors, hook.probe.status) == (safety.MAX_ERRORS, ProbeStatus.DISABLED)


@pytest.mark.fault("a probe of a step that costs too much after a while", sees="probe_disabled")
def test_a_probe_that_gets_dear_switches_itself_off(engine, monkeypatch):
    costs, now = iter([2_000] * 100 + [60_000] * 10**6), [0]

    def clock():
        now[0] += next(costs)
        return now[0]

    monkeypatch.setattr(probes, "_clock", clock)
    hook = watched(engine, after=lambda _result: None)
    builder = engine.Builder()

    for _ in range(50 * probes.MEASURED):
        builder.build(1)
    assert hook.probe.live
    for _ in range(probes.COST_WINDOW_CALLS + probes.MEASURED):
        builder.build(1)

    assert hook.probe.status is ProbeStatus.DISABLED


def test_the_cost_of_calls_that_were_not_measured_is_that_of_the_one_after_them(engine, monkeypatch):
    readings = iter(range(0, 10**12, 2_000))  # each reading 2 us after the last
    monkeypatch.setattr(probes, "_clock", lambda: next(readings))
    hook = watched(engine, after=lambda _result: None)
    builder = engine.Builder()

    for _ in range(20 * probes.MEASURED):
        builder.build(1)

    assert hook.probe._cost_ns == 20 * probes.MEASURED * 2_000


def test_a_function_that_is_called_a_lot_runs_our_code_only_when_it_denies(engine):
    seen = []
    hook = watched(
        engine, after=lambda result, _it, budget: seen.append((result, budget)), when="ullage_result is None"
    )
    builder = engine.Builder()

    builder.build(1)
    builder.build(2, throttle=True)

    assert (seen, hook.probe.calls) == ([(None, 2)], 1)


def test_a_callback_can_say_which_calls_are_of_interest_and_is_asked_no_more_once_its_probe_is_off(engine):
    seen, asked = [], []

    def when(result, _it, budget, mine=asked):
        mine.append(budget)
        return result[0] > 1

    hook = watched(engine, when=when, after=lambda result: seen.append(result[0]))
    builder = engine.Builder()

    assert [builder.build(budget)[0] for budget in (1, 2, 3)] == [1, 2, 3]
    assert (asked, seen, hook.probe.calls) == ([1, 2, 3], [2, 3], 2)
    hook.probe.set(ProbeStatus.DISABLED)
    assert builder.build(4)[0] == 4
    assert (asked, seen) == ([1, 2, 3], [2, 3])


def test_a_callback_can_say_which_calls_are_left_alone(engine):
    seen = []
    hook = watched(engine, before=lambda _it, budget: seen.append(budget), unless=lambda _it, budget: budget < 2)
    builder = engine.Builder()

    assert [builder.build(budget)[0] for budget in (1, 2, 3)] == [1, 2, 3]
    assert (seen, hook.probe.calls) == ([2, 3], 2)


@pytest.mark.parametrize(
    "asked",
    [
        {"before": lambda: None, "unless": boom},
        {"after": lambda _result: None, "when": "self.no_longer_there"},
        {"after": lambda _result: None, "when": boom},
    ],
)
def test_what_cannot_be_asked_costs_the_engine_nothing_and_the_probe_its_life(engine, lenient, asked):
    hook = watched(engine, **asked)
    builder = engine.Builder()

    results = [builder.build(1) for _ in range(safety.MAX_ERRORS + 1)]

    assert results == [(1, (1, 2), (), {})] * len(results)
    assert (hook.probe.status, hook.probe.calls) == (ProbeStatus.DISABLED, 0)


def test_a_function_that_only_fails_counts_when_it_fails(engine):
    hook = watched(engine, failed=lambda _error: None)
    builder = engine.Builder()

    builder.build(1)
    with pytest.raises(KeyError):
        builder.build(-1)

    assert hook.probe.calls == 1


def test_only_the_outermost_call_of_an_object_is_seen(engine):
    seen, probe = [], probes.SharedProbe("Builder.build")
    for target in ("Fast.build", "Builder.build", "Builder.variant"):
        watched(engine, target, before=lambda _it, budget: seen.append(budget), outermost=True, shared=probe)
    fast, other = engine.Fast(), engine.Builder()

    fast.variant(1)
    with pytest.raises(KeyError):
        fast.variant(-1)
    other.variant(3)

    assert seen == [1, -1, 3]


def test_calls_in_a_steady_step_of_the_same_engine_instance_are_left_alone(engine, instance):
    seen, builder, another = [], engine.Builder(), engine.Builder()
    bind(builder, instance)
    bind(another, EngineInstance(Session(Shared())))
    hook = watched(engine, before=lambda: seen.append(1), after=lambda _result: seen.append(2), unless=steady)

    assert builder.build(5)[0] == 5
    assert (seen, hook.probe.calls) == ([], 0)
    assert another.build(5)[0] == 5
    assert (seen, hook.probe.calls) == ([1, 2], 1)


@pytest.mark.fault("a function without a parameter that a probe reads", sees="probe status changed, and why")
@pytest.mark.parametrize("target", ["Builder.build", "Builder.forwarded"])
def test_a_function_without_what_a_callback_names_is_left_alone_and_says_which(engine, target):
    before = dict(vars(engine.Builder))
    hook = watched(engine, target, before=lambda _it, deadline: seen.append(deadline))  # noqa: F821  never runs

    assert hook.probe.status is ProbeStatus.CHANGED
    assert "no parameter deadline" in hook.probe._detail
    assert dict(vars(engine.Builder)) == before


def test_a_callback_that_names_nothing_fits_every_function(engine):
    seen = []
    watched(engine, "Builder.forwarded", before=lambda: seen.append(1), after=seen.append)

    assert engine.Builder().forwarded(1, a=2) == ((1,), {"a": 2})
    assert seen == [1, ((1,), {"a": 2})]
