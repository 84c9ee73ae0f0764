"""Wrapping a function of an engine: it cannot tell, whatever our code does. A fake engine stands for it."""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType

import pytest

from ullage import safety
from ullage.engines import probe as probes
from ullage.engines.patch import Patch
from ullage.imports import ImportWatch
from ullage.segment import reader
from ullage.segment.layout import ProbeStatus


@pytest.fixture
def engine():
    """A module with a class like an engine's."""
    module = ModuleType("fake_engine")

    class Scheduler:
        def schedule(self, budget, *, throttle=False):
            """Schedule."""
            if budget < 0:
                raise KeyError("the engine's own")
            return None if throttle else budget * 2

        limit = 7

    class Fast(Scheduler):
        pass

    module.Scheduler, module.Fast = Scheduler, Fast
    return module


@pytest.fixture
def lenient(monkeypatch):
    """Production: our errors are swallowed."""
    monkeypatch.setenv("ULLAGE_STRICT", "0")


def boom(*_args):
    raise RuntimeError("ours")


def test_a_wrapped_function_keeps_name_signature_and_result(engine):
    seen = []
    original = engine.Scheduler.schedule
    Patch(
        "fake_engine",
        "Scheduler.schedule",
        ("budget",),
        before=lambda args, kwargs: seen.append(("before", args[1:], kwargs)),
        after=lambda result, args, kwargs: seen.append(("after", result, args[1:], kwargs)),
    ).install(engine)

    result = engine.Scheduler().schedule(4, throttle=False)

    assert result == 8
    assert seen == [("before", (4,), {"throttle": False}), ("after", 8, (4,), {"throttle": False})]
    wrapped = engine.Scheduler.schedule
    assert inspect.signature(wrapped) == inspect.signature(original)
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__qualname__) == (
        original.__name__,
        original.__doc__,
        original.__qualname__,
    )


@pytest.mark.fault("an exception of the engine", sees="the same exception; an event")
def test_the_engines_own_exception_passes_unchanged_after_it_was_seen(engine):
    seen = []
    Patch("fake_engine", "Scheduler.schedule", failed=lambda error, *_: seen.append(error)).install(engine)

    with pytest.raises(KeyError, match="the engine's own") as raised:
        engine.Scheduler().schedule(-1)

    assert seen == [raised.value]
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None


@pytest.mark.fault("an error in a probe", sees="ullage_hook_errors_total")
@pytest.mark.parametrize("where", ["before", "after", "failed"])
def test_errors_of_ours_change_no_result_and_no_exception_and_are_counted(engine, lenient, where):
    hook = Patch("fake_engine", "Scheduler.schedule", **{where: boom})
    hook.install(engine)
    scheduler = engine.Scheduler()

    assert scheduler.schedule(4) == 8
    with pytest.raises(KeyError, match="the engine's own") as raised:
        scheduler.schedule(-1)

    assert raised.value.__cause__ is None
    assert hook.probe._errors >= 1


@pytest.mark.fault("ten errors in a probe", sees="probe_disabled")
def test_after_ten_errors_the_probe_switches_itself_off(engine, lenient):
    hook = Patch("fake_engine", "Scheduler.schedule", after=boom)
    hook.install(engine)
    scheduler = engine.Scheduler()

    results = [scheduler.schedule(n) for n in range(30)]

    assert results == [n * 2 for n in range(30)]
    assert hook.probe._errors == safety.MAX_ERRORS
    assert hook.probe.status is ProbeStatus.DISABLED
    assert hook.probe.calls == safety.MAX_ERRORS


@pytest.mark.fault("a probe that costs too much", sees="probe_disabled")
def test_a_probe_that_costs_too_much_switches_itself_off(engine, monkeypatch):
    clock = iter(range(0, 10**12, 60_000))  # each reading 60 us after the last
    monkeypatch.setattr(probes, "_clock", lambda: next(clock))
    hook = Patch("fake_engine", "Scheduler.schedule", after=lambda *_: None)
    hook.install(engine)
    scheduler = engine.Scheduler()

    for _ in range(probes.COST_WINDOW_CALLS - 1):
        scheduler.schedule(1)
    assert hook.probe.live
    scheduler.schedule(1)

    assert hook.probe.status is ProbeStatus.DISABLED
    assert "60 us" in hook.probe._detail


@pytest.mark.fault("a probe that costs too much after a while", sees="probe_disabled")
def test_a_probe_that_gets_dear_later_switches_itself_off_as_soon(engine, monkeypatch):
    costs = iter([2_000] * 100 + [60_000] * 10**6)
    now = [0]

    def clock():
        now[0] += next(costs)
        return now[0]

    monkeypatch.setattr(probes, "_clock", clock)
    hook = Patch("fake_engine", "Scheduler.schedule", after=lambda *_: None)
    hook.install(engine)
    scheduler = engine.Scheduler()

    for _ in range(50 * probes.MEASURED):
        scheduler.schedule(1)
    assert hook.probe.live
    for _ in range(probes.COST_WINDOW_CALLS + probes.MEASURED):
        scheduler.schedule(1)

    assert hook.probe.status is ProbeStatus.DISABLED


@pytest.mark.fault("a process that the kernel leaves waiting inside a probe", sees="nothing")
def test_a_process_that_was_not_running_for_a_while_does_not_switch_a_probe_off(engine, monkeypatch):
    readings = iter(range(0, 10**12, 2_000))  # each reading 2 us after the last
    waited = iter([0] * 41 + [300_000_000] * 100_000)  # but once 300 ms
    monkeypatch.setattr(probes, "_clock", lambda: next(readings) + next(waited))
    hook = Patch("fake_engine", "Scheduler.schedule", after=lambda *_: None)
    hook.install(engine)
    scheduler = engine.Scheduler()

    for _ in range(2 * probes.COST_WINDOW_CALLS * probes.MEASURED):
        scheduler.schedule(1)

    assert hook.probe.live


TICKING = """
from types import ModuleType
import ullage
from ullage.engines.patch import Patch
from ullage.host.process import process
engine = ModuleType("fake_engine")
class Scheduler:
    steps = 0
    def schedule(self):
        self.steps += 1
engine.Scheduler = Scheduler
def tick(_result, args, _kwargs):
    if args[0].steps > 3:
        raise RuntimeError("ours")
    process.session.clock.tick(running=3)
Patch("fake_engine", "Scheduler.schedule", after=tick).install(engine)
ullage.buffer("rows", capacity=1, unit="rows")
scheduler = Scheduler()
for steps in (3, 10):
    for _ in range(steps): scheduler.schedule()
    print("done", flush=True)
    input()
"""


def test_when_the_probe_of_steps_goes_off_requests_are_no_longer_said_to_run(program, segments):
    host = program(TICKING, ULLAGE_STRICT="0")

    def running():
        assert host.line() == "done"
        (path,) = segments.glob("*.ullage")
        return reader.read(path).process.running

    assert running() == 3
    host.say("")
    assert running() == -1
    host.say("")


def test_an_inherited_function_is_wrapped_where_it_is_defined_and_seen_once(engine):
    seen = []
    for target in ("Fast.schedule", "Scheduler.schedule"):
        Patch("fake_engine", target, after=lambda *_: seen.append(1)).install(engine)

    engine.Fast().schedule(1)

    assert seen == [1]
    assert "schedule" not in engine.Fast.__dict__


@pytest.mark.fault("a function that is gone or changed", sees="probe status absent or changed, and why")
@pytest.mark.parametrize(
    ("target", "parameters", "status", "detail"),
    [
        ("Scheduler.plan", (), ProbeStatus.ABSENT, "has no Scheduler.plan"),
        ("Planner.schedule", (), ProbeStatus.ABSENT, "has no Planner.schedule"),
        ("Scheduler.limit", (), ProbeStatus.CHANGED, "it is a int"),
        ("Scheduler.schedule", ("budget", "deadline"), ProbeStatus.CHANGED, "no parameter deadline"),
    ],
)
def test_what_cannot_be_watched_is_left_alone_and_says_why(engine, target, parameters, status, detail):
    before = dict(vars(engine.Scheduler))
    hook = Patch("fake_engine", target, parameters, after=boom)

    hook.install(engine)

    assert hook.probe.status is status
    assert detail in hook.probe._detail
    assert dict(vars(engine.Scheduler)) == before


@pytest.mark.fault("two copies of the hook", sees="the first; the second is disabled")
def test_installing_twice_wraps_once_and_another_copy_of_the_hook_keeps_off(engine):
    seen = []
    hook = Patch("fake_engine", "Scheduler.schedule", after=lambda *_: seen.append("first"))
    hook.install(engine)
    hook.install(engine)
    other = Patch("fake_engine", "Scheduler.schedule", after=lambda *_: seen.append("second"))
    other.install(engine)

    engine.Scheduler().schedule(1)

    assert seen == ["first"]
    assert other.probe.status is ProbeStatus.DISABLED


@pytest.mark.fault("a module of the engine is reloaded", sees="the probe, at the next check")
def test_a_reloaded_class_is_wrapped_again_and_seen_once(engine, monkeypatch):
    seen = []
    hook = Patch("fake_engine", "Scheduler.schedule", after=lambda *_: seen.append(1))
    hook.install(engine)
    monkeypatch.setitem(sys.modules, "fake_engine", engine)
    hook.refresh()
    engine.Scheduler().schedule(1)
    assert seen == [1]

    class Scheduler:
        def schedule(self, budget):
            return budget * 3

    engine.Scheduler = Scheduler
    hook.refresh()

    assert engine.Scheduler().schedule(1) == 3
    assert seen == [1, 1]


@pytest.mark.fault("a function that another tool wraps after the hook", sees="each call once")
def test_a_function_that_somebody_wrapped_over_ours_is_seen_once(engine, monkeypatch):
    seen = []
    hook = Patch("fake_engine", "Scheduler.schedule", after=lambda *_: seen.append(1))
    hook.install(engine)
    ours = engine.Scheduler.schedule

    def theirs(self, budget):
        return ours(self, budget)

    engine.Scheduler.schedule = theirs
    monkeypatch.setitem(sys.modules, "fake_engine", engine)

    hook.refresh()
    engine.Scheduler().schedule(1)

    assert seen == [1]


def test_hooks_that_share_a_probe_are_counted_together_and_go_on_without_one_of_them(engine):
    seen, probe = [], probes.SharedProbe("lifecycle")
    for target in ("Scheduler.schedule", "Scheduler.plan", "Fast.schedule"):
        Patch("fake_engine", target, after=lambda *_: seen.append(1), shared=probe).install(engine)

    engine.Fast().schedule(1)

    assert (probe.status, probe.calls, seen) == (ProbeStatus.ABSENT, 1, [1])
    assert "Scheduler.plan" in probe._detail


# -- imports ------------------------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Write a module that can be imported once, and watch imports."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    names = []

    def write(name, code=""):
        (tmp_path / f"{name}.py").write_text(code)
        names.append(name)
        return name

    yield write
    for name in names:
        sys.modules.pop(name, None)


def test_a_module_is_reported_when_the_engine_imports_it_and_not_before(package):
    name, seen = package("late_one", "value = 3"), []
    ImportWatch().when_imported(name, seen.append)
    assert seen == []
    assert name not in sys.modules

    module = importlib.import_module(name)

    assert seen == [module]
    assert module.value == 3
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"


def test_a_module_that_is_loaded_already_is_reported_at_once(package):
    module, seen = importlib.import_module(package("early_one")), []

    ImportWatch().when_imported("early_one", seen.append)

    assert seen == [module]


@pytest.mark.fault("another import hook in front", sees="the probe, at the next check")
def test_a_module_that_came_in_past_us_is_found_at_the_next_check(package):
    name, seen = package("past_us"), []
    watch = ImportWatch()
    watch.when_imported(name, seen.append)
    sys.meta_path.remove(watch)

    module = importlib.import_module(name)
    assert seen == []
    watch.check()

    assert seen == [module]


@pytest.mark.fault("a half-initialised module", sees="the probe, when it is whole")
def test_a_module_in_the_middle_of_its_import_is_reported_when_it_is_whole(package):
    name, seen = package("half_done", "import sys; sys.half_done_watch(); whole = True"), []
    watch = ImportWatch()
    sys.half_done_watch = lambda: watch.when_imported(name, lambda module: seen.append(hasattr(module, "whole")))
    try:
        importlib.import_module(name)
    finally:
        del sys.half_done_watch
    assert seen == []

    watch.check()

    assert seen == [True]


@pytest.mark.fault("an error at import", sees="the module")
def test_an_error_of_ours_does_not_break_the_import(package, lenient):
    name = package("fine", "value = 1")
    ImportWatch().when_imported(name, boom)

    assert importlib.import_module(name).value == 1


@pytest.mark.fault("a module that fails to import", sees="its own exception")
def test_a_module_that_fails_to_import_fails_as_it_would_and_can_be_tried_again(package):
    name, seen = package("fails", "raise ZeroDivisionError('its own')"), []
    ImportWatch().when_imported(name, seen.append)

    with pytest.raises(ZeroDivisionError, match="its own"):
        importlib.import_module(name)
    package("fails", "value = 1")
    importlib.invalidate_caches()
    module = importlib.import_module(name)

    assert seen == [module]
