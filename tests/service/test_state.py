"""State: who is who, who died first, and what outlives an incarnation."""

from __future__ import annotations

from copy import deepcopy

import pytest
from snapshots import SECOND, START, World, buffer, exits, shown, snapshot

from ullage.segment.layout import ProbeStatus
from ullage.segment.snapshot import Probe
from ullage_sidecar.discovery import Found, Unreadable
from ullage_sidecar.state import MAX_GONE, Tally, observe


def test_the_first_death_of_an_engine_is_primary_and_its_siblings_follow():
    world = World()
    core, worker, api = (snapshot(name, f"vllm0/{name}") for name in ("core", "worker-tp0", "api"))
    world.look(core, worker, api)
    dead = snapshot("worker-tp0", "vllm0/worker-tp0", alive=False)
    world.look(core, dead, api)

    state = world.look(
        snapshot("core", "vllm0/core", alive=False, failure_ns=START + 1),
        dead,
        snapshot("api", "vllm0/api", alive=False, failure_ns=START + 2),
    )

    assert shown(state) == {"vllm0/core": "crashed", "vllm0/worker-tp0": "killed", "vllm0/api": "crashed"}
    assert exits(state) == {
        ("vllm0/worker-tp0", "killed", "primary"): 1,
        ("vllm0/core", "crashed", "consequential"): 1,
        ("vllm0/api", "crashed", "consequential"): 1,
    }


def test_deaths_seen_at_once_are_told_apart_by_who_noticed_a_failure():
    state = World().look(
        snapshot("core", "vllm0/core", alive=False, failure_ns=START + 5),
        snapshot("worker", "vllm0/worker-tp0", alive=False, step_ns=START + 9),
    )

    assert exits(state) == {
        ("vllm0/worker-tp0", "killed", "primary"): 1,
        ("vllm0/core", "crashed", "consequential"): 1,
    }


def test_a_death_long_after_another_is_a_primary_one():
    world = World(sibling_window=30)
    one, two = snapshot("one", "vllm0/core", alive=False), snapshot("two", "vllm0/api")
    world.look(one, two)

    state = world.look(one, snapshot("two", "vllm0/api", alive=False), after=31)

    assert exits(state)["vllm0/api", "killed", "primary"] == 1


def test_an_orderly_stop_is_no_reason_for_anothers_death():
    world = World()
    helper = snapshot("helper", "app0/main", alive=False, stop_ns=START + 1)
    main = snapshot("main", "app0/serve")
    world.look(helper, main)

    state = world.look(helper, snapshot("main", "app0/serve", alive=False, started_ns=START + 2))

    assert exits(state)["app0/serve", "killed", "primary"] == 1


def test_workers_killed_in_a_declared_shutdown_are_stopped():
    state = World().look(
        snapshot("api", "vllm0/api", alive=False, stop_ns=START + 7),
        snapshot("worker", "vllm0/worker-tp0", alive=False),
        snapshot("other", "vllm1/core", alive=False, engine="e2"),
    )

    assert shown(state) == {"vllm0/api": "stopped", "vllm0/worker-tp0": "stopped", "vllm1/core": "killed"}


def test_a_shutdown_before_a_process_started_does_not_excuse_its_death():
    state = World().look(
        snapshot("old", "vllm0/core", alive=False, stop_ns=START + 1),
        snapshot("new", "vllm0/worker-tp0", alive=False, started_ns=START + 2),
    )

    assert shown(state)["vllm0/worker-tp0"] == "killed"


@pytest.mark.parametrize(
    ("words", "condition"),
    [
        ({"running": 3, "step_ns": START, "steps": 9}, "stalled"),
        ({"running": 0, "step_ns": START, "steps": 9}, "running"),
        ({"running": -1, "step_ns": START, "steps": 9}, "running"),
        ({"running": 3, "step_ns": 0}, "running"),
        ({"running": 3, "step_ns": START, "steps": 9, "disabled_ns": START}, "running"),
    ],
)
def test_stalled_is_no_step_although_requests_run(words, condition):
    state = World(stall_after=30).look(snapshot(**words), after=31)

    assert shown(state) == {"vllm0/core": condition}


@pytest.mark.fault("a probe of steps that is off while the engine goes on", sees="running")
def test_an_engine_whose_steps_are_no_longer_counted_is_stalled_only_if_nothing_else_moves():
    off = Probe("Scheduler.schedule", "10 errors", ProbeStatus.DISABLED, calls=9, errors=10, cost_ns=0)
    world = World(stall_after=30)

    def look(observations, after):
        rows = buffer(occupancy=(observations, 0, 0, 0, 0, 0))
        return shown(world.look(snapshot(probes=[off], buffers=[rows], running=3, steps=9), after=after))

    assert look(1, 0) == {"vllm0/core": "running"}
    assert look(2, 31) == {"vllm0/core": "running"}
    assert look(2, 31) == {"vllm0/core": "stalled"}


@pytest.mark.fault("a lock that is lost", sees="running, with lock_lost")
def test_a_process_that_goes_on_without_its_lock_lives():
    world = World()
    world.look(snapshot(steps=1))
    assert shown(world.look(snapshot(alive=False, steps=2))) == {"vllm0/core": "killed"}

    (life,) = world.look(snapshot(alive=False, steps=3)).shown

    assert (life.condition, life.lock_lost) == ("running", True)
    (life,) = world.look(snapshot(alive=False, steps=3), after=20).shown
    assert life.lock_lost
    assert shown(world.look(snapshot(alive=False, steps=3), after=20)) == {"vllm0/core": "killed"}


def test_two_living_processes_of_one_name_are_told_apart_and_keep_their_names():
    world = World()
    one, two = snapshot("one", started_ns=START), snapshot("two", started_ns=START + 1)
    assert shown(world.look(two, one)) == {"vllm0/core": "running", "vllm0/core-2": "running"}

    state = world.look(snapshot("one", alive=False), two)

    assert shown(state) == {"vllm0/core": "killed", "vllm0/core-2": "running"}


def test_a_death_and_a_restart_between_two_looks_keep_the_name():
    world = World()
    world.look(snapshot("first"))

    state = world.look(snapshot("first", alive=False), snapshot("second", started_ns=START + 1))

    assert shown(state) == {"vllm0/core": "running"}
    assert exits(state) == {("vllm0/core", "killed", "primary"): 1}


def test_a_process_that_learns_its_name_is_renamed():
    world = World()
    world.look(snapshot("one", "vllm0/main"))

    assert shown(world.look(snapshot("one", "vllm0/worker-tp1"))) == {"vllm0/worker-tp1": "running"}


def test_the_newest_living_incarnation_is_shown_else_the_newest_dead_one():
    old = snapshot("old", alive=False, started_ns=START)
    new = snapshot("new", alive=True, started_ns=START + 5)
    dead = snapshot("dead", alive=False, started_ns=START + 9)
    world = World()
    assert world.look(old, new).shown[0].snapshot.incarnation == "new"
    assert world.look(old, new, dead).shown[0].snapshot.incarnation == "new"
    assert World().look(old, dead).shown[0].snapshot.incarnation == "dead"


def test_a_dead_process_is_shown_for_a_day():
    world = World(retention=86400)
    dead = snapshot(alive=False)
    world.look(dead)

    assert shown(world.look(dead, after=86399)) == {"vllm0/core": "killed"}
    assert shown(world.look(dead, after=2)) == {}


@pytest.mark.fault("files of the dead are swept", sees="their violations in the counters")
def test_violations_of_dead_incarnations_stay_in_the_totals_even_when_their_files_are_gone():
    world = World()
    first = snapshot("first", alive=False, buffers=[buffer(beyond=3, grows=1)])
    world.look(first)
    second = snapshot("second", started_ns=START + 5, buffers=[buffer(beyond=2, exhaustions=1)])
    both = world.look(first, second).totals["vllm0/core"]

    swept = world.look(second).totals["vllm0/core"]

    assert both == swept
    assert swept[Tally("rows", "violations")] == 5
    assert swept[Tally("rows", "grows")] == 1
    assert swept[Tally("rows", "exhaustions")] == 1


@pytest.mark.fault("a file that cannot be read for a while", sees="each violation once")
def test_a_file_that_cannot_be_read_for_a_while_is_not_counted_twice():
    world = World()
    one = snapshot("abc", buffers=[buffer(beyond=3)])
    world.look(one)
    world.look(unreadable=[Unreadable("abc.ullage", "io", "abc.ullage: busy")])

    state = world.look(one)

    assert state.totals["vllm0/core"][Tally("rows", "violations")] == 3
    assert state.read_errors == {"io": 1}


def test_each_bad_file_is_counted_once():
    world = World()
    bad = Unreadable("x.ullage", "magic", "x.ullage: not a segment")

    for _ in range(3):
        state = world.look(unreadable=[bad])

    assert state.read_errors == {"magic": 1}


@pytest.mark.parametrize(("field", "reason"), [("half_written", "half_written"), ("refused", "refused")])
def test_of_the_records_that_are_skipped_those_more_than_at_the_last_look_are_counted(field, reason):
    world = World()

    def skipped(count, **more):
        return world.look(snapshot("live", **{field: count}, **more)).read_errors[reason]

    assert [skipped(1) for _ in range(5)] == [1] * 5
    assert [skipped(3), skipped(0), skipped(2)] == [3, 3, 5]
    assert skipped(2, alive=False) == 5


def test_a_look_leaves_the_history_as_it_is():
    """A GET looks, and forgets: what is counted must not depend on how often it is asked for."""
    world = World()
    world.look(snapshot("a", buffers=[buffer(beyond=1)]), snapshot("gone", "vllm0/gone", buffers=[buffer(beyond=1)]))
    before = deepcopy(world.history)
    dead = snapshot("a", alive=False, half_written=2, buffers=[buffer(beyond=4)])
    found = Found((dead, snapshot("new", "vllm0/new")), (Unreadable("x.ullage", "magic", "not a segment"),))

    looks = [observe(found, world.history, world.settings, world.now_ns + SECOND)[0] for _ in range(3)]

    assert world.history == before
    assert looks[0] == looks[1] == looks[2]
    assert looks[0].read_errors == {"magic": 1, "half_written": 2}
    assert exits(looks[0]) == {("vllm0/core", "killed", "primary"): 1}


# -- files that are away for a moment --------------------------------------------------------------------------------


@pytest.mark.fault("a directory that cannot be listed for a while", sees="each violation and each end once")
@pytest.mark.parametrize("away", [[Unreadable("/run/ullage", "directory", "too many open files")], []])
def test_a_directory_that_is_away_for_a_moment_doubles_nothing(away):
    world = World()
    dead = snapshot("dead", alive=False, buffers=[buffer(beyond=1)])
    world.look(dead)
    for _ in range(3):
        gone = world.look(unreadable=away)
        back = world.look(dead)

        assert gone.totals == back.totals
        assert back.totals["vllm0/core"][Tally("rows", "violations")] == 1
        assert exits(back) == {("vllm0/core", "killed", "primary"): 1}


def test_a_process_whose_identity_is_caught_half_written_keeps_its_name():
    world = World()
    world.look(snapshot("a"))

    state = world.look(snapshot("a", "unknown", half_written=1))

    assert shown(state) == {"vllm0/core": "running"}


# -- what is remembered of processes that are gone -----------------------------------------------------------------


def _one_after_the_other(world, count):
    """Let ``count`` processes of different names die, each alone in the directory."""
    for number in range(count):
        state = world.look(
            snapshot(f"{number}", f"app0/{number}", alive=False, engine=f"e{number}", buffers=[buffer(beyond=1)])
        )
    return state


def test_names_of_the_gone_are_forgotten_after_the_retention():
    world = World(retention=3600)
    fresh = World(retention=3600)
    _one_after_the_other(world, 20)
    assert len(world.look().totals) == 20

    state = world.look(after=3601)

    assert (state.totals, state.exits, state.names) == ({}, {}, set())
    fresh.look()
    assert world.history == fresh.history


def test_a_name_that_has_a_file_is_not_forgotten():
    world = World(retention=3600)
    world.look(snapshot("first", alive=False, buffers=[buffer(beyond=3)]))
    for _ in range(3):
        state = world.look(snapshot("second", buffers=[buffer()]), after=3000)

    assert state.totals["vllm0/core"][Tally("rows", "violations")] == 3
    assert exits(state) == {("vllm0/core", "killed", "primary"): 1}


def test_at_most_256_names_of_the_gone_are_remembered_the_latest_ones():
    state = _one_after_the_other(World(), 600)

    assert len(state.totals) == MAX_GONE + 1
    assert "app0/599" in state.totals
    assert "app0/343" in state.totals
    assert "app0/342" not in state.totals
    assert {process for process, _, _ in state.exits} == state.totals.keys() == state.names


@pytest.mark.fault("a wall clock that jumps", sees="no warning")
def test_a_clock_that_jumps_makes_nobody_stall():
    world = World(stall_after=30)
    world.look(snapshot(running=3, steps=0))  # a first look has nothing but the date
    for second in range(40):
        jump = 10**15 if second % 2 else -(10**15)
        state = world.look(snapshot(running=3, steps=second + 1, step_ns=world.now_ns + jump))

        assert shown(state) == {"vllm0/core": "running"}


def test_names_of_buffers_without_end_do_not_make_a_process_larger_without_end():
    world = World()
    for life in range(6):
        buffers = [buffer(f"rows {life} {number}", grows=1) for number in range(400)]
        state = world.look(
            snapshot(f"life {life}", alive=False, buffers=[*buffers, buffer("bad", beyond=1)]), after=100
        )

    state = world.look(snapshot("now"), after=100)
    state = world.look(snapshot("now"), after=100)

    assert len(state.totals["vllm0/core"]) <= 512
    assert state.totals["vllm0/core"][Tally("bad", "violations")] == 6
