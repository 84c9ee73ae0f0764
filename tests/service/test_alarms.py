"""Alarms: when a warning is raised, at which severity, and when it is cleared."""

from __future__ import annotations

import pytest
from snapshots import SECOND, START, World, buffer, claim, snapshot

from ullage.segment.layout import Kind, ProbeStatus
from ullage.segment.snapshot import Probe
from ullage_sidecar.alarms import Alarms, evaluate
from ullage_sidecar.discovery import Unreadable
from ullage_sidecar.settings import BufferSettings
from ullage_sidecar.state import MAX_GONE


class Alarmed(World):
    """A world whose warnings are judged at each look."""

    def __init__(self, **settings):
        super().__init__(**({"clear_hold": 10} | settings))
        self.alarms = Alarms()
        self.changes = []

    def tick(self, *snapshots, unreadable=(), after=1.0):
        """Look and judge; return {(buffer, reason): severity}."""
        state = self.look(*snapshots, unreadable=unreadable, after=after)
        self.alarms, self.changes = evaluate(self.alarms, state, self.settings)
        return {(key.buffer, key.reason): warning.severity for key, warning in self.alarms.active.items()}

    def holding(self, **fields):
        """Tick with one buffer in one living process."""
        return self.tick(snapshot(buffers=[buffer(**fields)]))


NEAR = ("rows", "near_capacity")


@pytest.fixture
def world():
    """A world that was looked at before anything happened."""
    world = Alarmed()
    world.tick()
    return world


@pytest.mark.parametrize(
    ("kind", "used", "expected"),
    [
        (Kind.HARD, 89, {}),
        (Kind.HARD, 90, {NEAR: "warning"}),
        (Kind.MANAGED, 89, {}),
        (Kind.MANAGED, 90, {NEAR: "info"}),
        (Kind.MANAGED, 100, {NEAR: "info"}),
        (Kind.FIXED, 100, {}),
        (Kind.UNKNOWN, 95, {NEAR: "warning"}),
    ],
)
def test_near_capacity_by_kind(world, kind, used, expected):
    assert world.holding(kind=kind, used=used) == expected


def test_a_buffer_can_have_its_own_ratio_and_severity():
    world = Alarmed(buffers={"rows": BufferSettings(warning_ratio=0.5, severity="critical")})
    world.tick()

    assert world.holding(used=50) == {NEAR: "critical"}
    assert world.holding(name="others", used=50)[NEAR] == "critical"
    assert ("others", "near_capacity") not in world.holding(name="others", used=50)


def test_it_is_cleared_when_it_was_below_the_clear_ratio_for_the_hold_time(world):
    assert world.holding(used=92) == {NEAR: "warning"}
    assert [change.what for change in world.changes] == ["raised"]
    for used in (86, 85, 84, 84):  # at 85 % and above it is kept, however long
        assert world.holding(used=used, high_water=92) == {NEAR: "warning"}
        assert world.changes == []
    world.tick(snapshot(buffers=[buffer(used=84, high_water=92)]), after=6)
    assert NEAR in world.holding(used=84, high_water=92)

    assert world.holding(used=84, high_water=92) == {}
    assert [change.what for change in world.changes] == ["cleared"]


def test_going_up_again_during_the_hold_starts_it_anew(world):
    world.holding(used=92)
    world.tick(snapshot(buffers=[buffer(used=20, high_water=92)]), after=9)
    world.holding(used=91, high_water=92)

    assert world.tick(snapshot(buffers=[buffer(used=20, high_water=92)]), after=9) == {NEAR: "warning"}


def test_a_burst_between_two_looks_is_not_lost(world):
    world.holding(used=20, high_water=95, occupancy=(5, 0, 0, 1, 0, 0))
    assert NEAR in world.holding(used=20, high_water=95, occupancy=(6, 0, 0, 1, 0, 0))
    world.tick(snapshot(buffers=[buffer(used=20, high_water=95, occupancy=(9, 0, 0, 1, 0, 0))]), after=20)
    assert NEAR not in world.holding(used=20, high_water=95, occupancy=(9, 0, 0, 1, 0, 0))

    again = world.holding(used=20, high_water=95, occupancy=(9, 0, 0, 2, 0, 0))

    assert again == {NEAR: "warning"}
    assert "in a burst" in world.changes[0].warning.message


def test_a_peak_before_the_sidecar_started_is_no_news():
    world = Alarmed()

    assert world.holding(used=20, high_water=95, occupancy=(5, 0, 0, 1, 0, 0)) == {}
    assert world.holding(used=20, high_water=95, occupancy=(6, 0, 0, 1, 0, 0)) == {}


def test_what_holds_at_the_first_look_is_adopted_not_raised():
    world = Alarmed()

    assert world.holding(used=95) == {NEAR: "warning"}
    assert [change.what for change in world.changes] == ["adopted"]
    assert world.changes[0].warning.since_ns == START  # when the segment says that the mark was set
    assert not world.alarms.raised
    world.holding(used=95)
    assert world.changes == []


def test_raised_warnings_are_counted(world):
    for _ in range(2):
        world.holding(used=95)
        world.tick(snapshot(buffers=[buffer(used=1, high_water=95)]), after=20)
        world.tick(snapshot(buffers=[buffer(used=1, high_water=95)]), after=20)

    assert list(world.alarms.raised.values()) == [2]


def test_a_bounds_violation_is_critical_and_stays(world):
    expected = {("rows", "bounds_violation"): "critical"}
    fields = {"used": 5, "high_water": 105, "beyond": 1, "worst_index": 104, "violation_ns": START + 7}
    assert expected.items() <= world.holding(**fields).items()
    dead = snapshot(alive=False, buffers=[buffer(**fields)])
    assert expected.items() <= world.tick(dead, after=3600).items()

    successor = snapshot("b", started_ns=START + 9, buffers=[buffer(used=5)])

    assert world.tick(dead, successor) == {}


def test_beyond_the_capacity_of_a_managed_buffer_is_no_violation(world):
    assert world.holding(kind=Kind.MANAGED, used=105, beyond=1) == {NEAR: "info"}


# -- exhaustion ---------------------------------------------------------------------------------------------------


class Preempting:
    """A pool of blocks; each call is one second with or without preemptions."""

    def __init__(self, hold):
        self.world = Alarmed(exhaustion_hold=hold)
        self.world.tick()
        self.count = self.first = self.last = 0

    def second(self, preemptions, after=1.0):
        """Let time pass; return the severity of the exhaustion warning."""
        if preemptions:
            self.last = self.world.now_ns + int(after * SECOND)
            self.first = self.first or self.last
            self.count += preemptions
        fields = {"exhaustions": self.count, "exhausted_first_ns": self.first, "exhausted_last_ns": self.last}
        blocks = buffer("kv_blocks", kind=Kind.MANAGED, used=10, **fields)
        return self.world.tick(snapshot(buffers=[blocks]), after=after).get(("kv_blocks", "exhaustion"))


def test_exhaustions_that_go_on_are_a_warning_and_cleared_when_they_pause():
    pool = Preempting(hold=600)
    severities = [pool.second(1, after=9) for _ in range(70)]

    assert severities[:66] == [None] * 66
    assert severities[67:] == ["warning"] * 3
    assert pool.second(0, after=10) == "warning"
    assert pool.second(0, after=1) is None
    assert [change.what for change in pool.world.changes] == ["cleared"]


def test_a_single_burst_of_exhaustions_is_no_warning():
    pool = Preempting(hold=600)

    assert [pool.second(50), *(pool.second(0) for _ in range(700))] == [None] * 701


def test_exhaustions_with_long_pauses_are_no_warning():
    pool = Preempting(hold=60)

    assert [pool.second(second % 30 == 0) for second in range(600)] == [None] * 600


def test_exhaustions_long_ago_are_no_news_to_a_new_sidecar():
    world = Alarmed(exhaustion_hold=60)
    fields = {"exhaustions": 9, "exhausted_first_ns": START - 900 * SECOND, "exhausted_last_ns": START - 100 * SECOND}

    assert world.tick(snapshot(buffers=[buffer("kv_blocks", kind=Kind.MANAGED, **fields)])) == {}


# -- processes ----------------------------------------------------------------------------------------------------


def test_only_the_primary_death_is_a_warning_and_a_successor_ends_it(world):
    worker = snapshot("w", "vllm0/worker-tp0", alive=False)
    core = snapshot("c", "vllm0/core", alive=False, failure_ns=START + 1)

    world.tick(worker, core)

    assert [(key.process, key.reason) for key in world.alarms.active] == [("vllm0/worker-tp0", "process_died")]
    world.tick(worker, core, snapshot("w2", "vllm0/worker-tp0", started_ns=START + 9))
    assert world.alarms.active == {}


def test_a_declared_stop_is_no_warning_and_ends_those_of_its_buffers(world):
    world.holding(used=95)

    stopped = snapshot(alive=False, stop_ns=START + 9, buffers=[buffer(used=95)])

    assert world.tick(stopped) == {}


def test_an_engine_that_stalls_is_a_warning(world):
    stalled = snapshot(running=3, step_ns=START, steps=7)

    assert world.tick(stalled, after=10) == {}
    assert world.tick(stalled, after=30) == {("", "engine_stalled"): "warning"}
    assert world.tick(snapshot(running=3, step_ns=world.now_ns, steps=8)) == {}


def test_our_own_troubles_are_warnings(world):
    off = snapshot(hook_errors=3)
    object.__setattr__(off, "probes", (Probe("Scheduler.schedule", "mean cost 60 us", ProbeStatus.DISABLED, 10, 0, 0),))

    found = world.tick(off, unreadable=[Unreadable("x.ullage", "magic", "x.ullage: not a segment")])

    assert found == {
        ("", "hook_errors"): "warning",
        ("", "probe_disabled"): "warning",
        ("", "segment_unreadable"): "warning",
    }


def test_an_idle_hour_raises_nothing():
    world = Alarmed()
    blocks = buffer("kv_blocks", kind=Kind.MANAGED, used=0, high_water=100, exhaustions=3, deferrals=90)
    for _ in range(60):
        assert world.tick(snapshot(running=0, steps=9, buffers=[blocks]), after=60) == {}


def test_a_rollout_and_a_scale_down_raise_nothing(world):
    old = snapshot("old", steps=9)
    world.tick(old)
    stopped = snapshot("old", steps=9, alive=False, stop_ns=world.now_ns)
    assert world.tick(stopped) == {}
    new = snapshot("new", started_ns=world.now_ns)
    assert world.tick(stopped, new) == {}
    assert world.tick(stopped, snapshot("new", alive=False, started_ns=new.process.started_ns, stop_ns=1)) == {}


# -- bounds -------------------------------------------------------------------------------------------------------


def test_a_message_about_thousands_of_files_is_short_and_says_how_many_there_are(world):
    unreadable = [Unreadable(f"{n}.ullage", "magic", f"{n}.ullage: not a segment") for n in range(3_000)]

    world.tick(unreadable=unreadable)

    (warning,) = world.alarms.active.values()
    assert len(warning.message) <= 1_000
    assert warning.message.startswith("0.ullage: not a segment; 1.ullage: not a segment; ")
    shown = warning.message.count("not a segment")
    assert warning.message.endswith(f"; and {3_000 - shown:,} more")


def test_a_message_with_one_long_part_is_cut(world):
    world.tick(unreadable=[Unreadable("x.ullage", "magic", "x" * 5_000)])

    (warning,) = world.alarms.active.values()
    assert 500 < len(warning.message) <= 1_000


def test_every_disagreement_of_many_sizes_is_counted_in_a_short_message(world):
    def one(name, sizes):
        return snapshot(name, f"vllm0/{name}", claims=[claim(f"{name} {n}", n) for n in sizes])

    world.tick(one("core", range(1, 200)), one("worker", [500]))

    messages = {key.process: one.message for key, one in world.alarms.active.items()}
    assert all(len(message) <= 1_000 for message in messages.values())
    assert "more; 136 other sizes are not compared" in messages["vllm0/core"]


def test_counts_of_warnings_are_forgotten_with_the_process_name():
    world = Alarmed(retention=3600)
    world.tick()
    for number in range(600):
        world.tick(snapshot(f"{number}", f"app0/{number}", buffers=[buffer(used=95)]))
    assert len(world.alarms.raised) == MAX_GONE + 1

    world.tick()
    world.tick(after=3601)

    assert world.alarms.raised == {}
    assert world.alarms.seen == {}


def test_a_buffer_that_was_freed_warns_of_its_violations_only(world):
    freed = {"used": 95, "high_water": 105, "beyond": 1, "worst_index": 104, "violation_ns": START, "exhaustions": 9}

    assert world.holding(closed=True, **freed) == {("rows", "bounds_violation"): "critical"}
