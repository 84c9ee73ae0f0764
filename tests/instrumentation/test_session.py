"""The session: one segment per process, however the process is made and however it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from harness import until

import ullage
from ullage.segment import reader

HEAD = """
import os, sys, signal, time
import ullage
rows = ullage.buffer("rows", capacity=100, unit="rows")
"""


def everything(directory):
    return [reader.read(path) for path in sorted(directory.glob("*.ullage"))]


def only(directory):
    (snapshot,) = everything(directory)
    return snapshot


def test_importing_opens_nothing_and_loads_the_standard_library_only(program, segments):
    out = program("""
        import sys
        before = set(sys.modules)
        import ullage
        new = {name.partition(".")[0] for name in set(sys.modules) - before} - {"ullage"}
        print(sorted(new - sys.stdlib_module_names), sorted(name for name in sys.modules if name.startswith("ullage")))
        """).finish()

    assert out.strip() == "[] ['ullage', 'ullage.errors', 'ullage.inert']"
    assert list(segments.iterdir()) == []


def test_using_it_loads_the_standard_library_only(program):
    out = program("""
        import sys
        before = set(sys.modules)
        import ullage
        ullage.buffer("rows", capacity=10, unit="rows").observe(3)
        ullage.step()
        import ullage.inspect.dump
        new = {name.partition(".")[0] for name in set(sys.modules) - before} - {"ullage"}
        print(sorted(new - sys.stdlib_module_names))
        """).finish()

    assert out.strip() == "[]"


def test_how_the_hook_came_in_stands_in_the_segment_and_no_other_variable(program, segments):
    path = os.environ.get("PYTHONPATH", "") + os.pathsep + "/opt/ümlaut/" + "x" * 300
    variables = {"PYTHONPATH": path, "VLLM_PLUGINS": "lora,ullage", "API_KEY": "a-secret-of-the-pod"}

    program(HEAD, **variables).finish()

    identity = only(segments).identity
    assert identity["hook_path"] == str(Path(ullage.__file__).parent.parent)
    assert identity["pythonpath"] == path.replace("ü", "?")[:200]
    assert identity["plugin_variables"] == "VLLM_PLUGINS=lora,ullage"
    (file,) = segments.glob("*.ullage")
    assert b"a-secret-of-the-pod" not in file.read_bytes()


# -- fork ---------------------------------------------------------------------------------------------------------


@pytest.mark.fault("a fork with bound handles", sees="both processes, apart")
def test_parent_and_child_count_apart_with_handles_bound_before_the_fork(program, segments):
    running = program(
        HEAD
        + """
observe = rows.observe
for used in (10, 20, 95): observe(used)
child = os.fork()
if child == 0:
    for used in (1, 2): observe(used)
    print("child", os.getpid(), flush=True)
    signal.pause()
observe(30)
print("parent", os.getpid(), flush=True)
input()
os.kill(child, signal.SIGKILL)
"""
    )
    pids = dict(running.line().split() for _ in range(2))

    seen = {snapshot.process.pid: snapshot for snapshot in everything(segments)}

    (parent,) = seen[int(pids["parent"])].buffers
    (child,) = seen[int(pids["child"])].buffers
    assert (parent.used, parent.high_water, parent.observations) == (30, 95, 4)
    assert (child.used, child.high_water, child.observations) == (2, 2, 2)
    assert all(snapshot.alive for snapshot in seen.values())
    identities = [snapshot.identity for snapshot in seen.values()]
    assert len({identity["engine_id"] for identity in identities}) == 1


@pytest.mark.fault("a child that holds the files of its dead parent", sees="killed")
def test_the_parents_death_is_seen_though_its_child_lives(program, segments):
    running = program(
        HEAD
        + """
child = os.fork()
if child == 0:
    rows.observe(1)
    print(os.getpid(), flush=True)
    time.sleep(60)  # it lives until the test kills it
    os._exit(0)
signal.pause()
"""
    )
    child = int(running.line())
    running.process.kill()

    try:
        until(lambda: [s.alive for s in everything(segments) if s.process.pid != child] == [False])
        assert [s.alive for s in everything(segments) if s.process.pid == child] == [True]
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.fault("fork and exec", sees="no stray segment")
def test_a_child_that_only_executes_another_program_leaves_nothing(program, segments):
    program(
        HEAD
        + """
import subprocess
subprocess.run(["true"], check=True)
subprocess.run(["true"], check=True, preexec_fn=lambda: None)
child = os.fork()
if child == 0:
    os.execvp("true", ["true"])
os.waitpid(child, 0)
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""
    ).finish()

    assert len(everything(segments)) == 1


@pytest.mark.fault("forks while threads observe", sees="every update")
def test_forks_in_the_middle_of_use_by_threads_lose_nothing(program, segments):
    out = program(
        HEAD
        + """
import threading
from ullage.segment import reader
from ullage.host.process import process
stop = threading.Event()
def work():
    i = 0
    while not stop.is_set():
        rows.observe(i % 120); i += 1
threads = [threading.Thread(target=work) for _ in range(2)]
[t.start() for t in threads]
wrong = 0
for _ in range(40):
    child = os.fork()
    if child == 0:
        for used in range(50): rows.observe(used)
        (seen,) = reader.read(process.session.open().path).buffers
        os._exit(0 if (seen.observations, seen.high_water) == (50, 49) else 1)
    wrong += os.waitpid(child, 0)[1] != 0
stop.set(); [t.join() for t in threads]
print(wrong)
"""
    ).finish()

    assert out.strip() == "0"


def test_a_fork_may_register_buffers_of_its_own(program, segments):
    program(
        HEAD
        + """
rows.observe(5)
child = os.fork()
if child == 0:
    ullage.buffer("own", capacity=3, unit="rows").observe(2)
    os._exit(0)
os.waitpid(child, 0)
"""
    ).finish()

    assert sorted([b.name for b in s.buffers] for s in everything(segments)) == [["own"], ["rows"]]


# -- how it ended -------------------------------------------------------------------------------------------------

ENDS = {
    "returns": ("", "stopped"),
    "sys.exit(3)": ("sys.exit(3)", "stopped"),
    "uncaught exception": ("raise RuntimeError('no')", "crashed"),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", "killed"),
    "os._exit": ("os._exit(0)", "killed"),
}


@pytest.mark.fault("each way to end a process", sees="stopped, crashed or killed; the last values")
@pytest.mark.parametrize("end", ENDS)
def test_how_a_process_ended_is_read_from_its_segment(program, segments, end):
    code, outcome = ENDS[end]
    program(HEAD + "rows.observe(97)\nullage.step()\n" + code).failure()

    snapshot = only(segments)

    assert not snapshot.alive
    assert snapshot.outcome() == outcome
    assert snapshot.buffers[0].high_water == 97  # nothing is lost that was stored


@pytest.mark.fault("each way to end a multiprocessing child", sees="stopped or crashed")
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize(("code", "outcome"), [("pass", "stopped"), ("raise RuntimeError('no')", "crashed")])
def test_a_child_of_multiprocessing_says_how_it_ended(program, segments, tmp_path, method, code, outcome):
    (tmp_path / "work.py").write_text(
        f"import ullage\ndef work():\n    ullage.buffer('mine', capacity=10, unit='rows').observe(3)\n    {code}\n"
    )
    program(
        """
        import multiprocessing, sys
        sys.path.insert(0, sys.argv[1])
        import work
        if __name__ == "__main__":
            context = multiprocessing.get_context(sys.argv[2])
            child = context.Process(target=work.work)
            child.start()
            child.join()
        """,
        tmp_path,
        method,
    ).failure()

    assert only(segments).outcome() == outcome


def test_steps_date_the_process(program, segments):
    program(HEAD + "for _ in range(3): ullage.step()").finish()

    process = only(segments).process

    assert process.steps == 3
    assert process.started_ns <= process.step_ns
    assert process.running == -1


# -- names --------------------------------------------------------------------------------------------------------


def test_a_program_is_named_after_its_engine_and_a_second_engine_gets_the_next_number(program, segments):
    code = HEAD + "print(1, flush=True); input()"
    first, second = program(code), program(code)
    first.line()
    second.line()

    names = sorted(snapshot.name for snapshot in everything(segments))

    # Both may have looked for a free number at once; the sidecar then tells them apart.
    assert names in (["app0/main", "app1/main"], ["app0/main", "app0/main"])


def test_a_name_is_free_again_after_its_process_died(program, segments):
    program(HEAD).finish()
    program(HEAD).finish()

    assert [snapshot.name for snapshot in everything(segments)] == ["app0/main", "app0/main"]


def test_the_engine_can_be_named(program, segments):
    program(HEAD, ULLAGE_ENGINE="draft").finish()

    assert only(segments).name == "draft/main"


def test_processes_started_from_here_are_of_the_same_engine(program, segments):
    program(
        HEAD
        + """
import subprocess
subprocess.run([sys.executable, "-c", "import ullage; ullage.buffer('b', capacity=1, unit='rows')"], check=True)
"""
    ).finish()

    first, second = everything(segments)

    assert first.engine_id == second.engine_id
    assert first.incarnation != second.incarnation


# -- switches and sweeping ----------------------------------------------------------------------------------------


@pytest.mark.fault("a file named disable", sees="disabled, the values up to then")
def test_a_file_named_disable_switches_everything_off_at_the_next_check(program, segments):
    running = program(
        HEAD
        + """
from ullage.host.process import process
rows.observe(7); ullage.step()
print("ready", flush=True); input()
clock = process.session.clock; clock.due_ns = clock._check_ns = 0   # ten seconds later
ullage.step(); rows.observe(9); ullage.buffer("new", capacity=1, unit="rows"); ullage.step()
print("done", flush=True); input()
"""
    )
    running.line()
    (segments / "disable").touch()
    running.say("")
    running.line()

    snapshot = only(segments)

    assert snapshot.process.disabled_ns > 0
    assert [(buffer.name, buffer.used) for buffer in snapshot.buffers] == [("rows", 7)]
    assert snapshot.process.steps == 2


def test_dead_files_are_swept_but_the_first_crash_and_the_newest_two_stay(program, segments):
    for end in ("", "raise RuntimeError", "", "", "", ""):
        program(HEAD + end).failure()

    kept = sorted(everything(segments), key=lambda s: s.process.started_ns)

    # The last program swept when it started, before it was dead itself.
    assert [snapshot.outcome() for snapshot in kept] == ["crashed", "stopped", "stopped", "stopped"]


@pytest.mark.fault("a second hook sweeps", sees="the living, and what is not ours")
def test_sweeping_leaves_the_living_and_strangers_alone(program, segments):
    running = program(HEAD + "print(1, flush=True); input()")
    running.line()
    stranger = segments / "notes.txt"
    stranger.write_text("mine")
    saved = segments / ".editor-autosave.tmp"
    saved.touch()
    os.utime(saved, (0, 0))
    (segments / "broken.ullage").write_bytes(b"?")
    old = segments / f".{'0' * 32}.tmp"
    old.touch()
    os.utime(old, (0, 0))
    fresh = segments / f".{'1' * 32}.tmp"
    fresh.touch()
    for _ in range(4):
        program(HEAD).finish()

    names = {path.name for path in segments.iterdir()}

    assert {"notes.txt", "broken.ullage", saved.name, fresh.name} <= names
    assert old.name not in names
    assert sum(reader.read(path).alive for path in segments.glob("*.ullage") if path.name != "broken.ullage") == 1


# -- hosts that close what is not theirs --------------------------------------------------------------------------


@pytest.mark.fault("a host that closes all descriptors, then forks", sees="both processes, apart")
def test_a_host_that_closed_our_descriptors_keeps_its_own_in_a_forked_child(program, segments):
    out = program(
        HEAD
        + """
rows.observe(99)
os.closerange(3, 64)
pipes = [os.pipe() for _ in range(8)]
child = os.fork()
if child == 0:
    rows.observe(2)
    for reading, writing in pipes:
        os.write(writing, b"x")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(len([os.read(reading, 1) for reading, _ in pipes]))
"""
    ).finish()

    assert out.strip() == "8"
    assert sorted(s.buffers[0].used for s in everything(segments)) == [2, 99]


def test_an_engine_with_a_colon_in_its_name_stays_one_engine(program, segments):
    program(
        HEAD
        + """
import subprocess
subprocess.run([sys.executable, "-c", "import ullage; ullage.step()"], check=True)
""",
        ULLAGE_ENGINE="a:b",
    ).finish()

    assert {(s.name, s.engine_id) for s in everything(segments)} == {("a:b/main", everything(segments)[0].engine_id)}


def test_a_child_of_a_process_that_is_off_does_not_keep_it_alive(program, segments):
    running = program(
        HEAD
        + """
from ullage.host.process import process
process.session.switch_off()
child = os.fork()
if child == 0:
    signal.pause()  # it must outlive its parent; the test kills it
print(child, flush=True)
signal.pause()
"""
    )
    child = int(running.line())
    running.process.kill()

    try:
        until(lambda: not only(segments).alive)
    finally:
        os.kill(child, signal.SIGKILL)
