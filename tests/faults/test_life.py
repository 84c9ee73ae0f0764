"""Processes and sidecars that come and go: nothing counted is lost, and who died first is known."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
import urllib.error

import pytest
from harness import LONG, PROMISE_FACTOR, Sidecar, until

STORY = """
import sys, time, ullage
from ullage.host.process import process
process.session.identity.engine = "vllm"
process.session.roles.add(sys.argv[1])
if len(sys.argv) > 2: process.session.identify(tp_rank=int(sys.argv[2]))
rows = ullage.buffer("rows", capacity=10, unit="rows")
rows.observe(3)
ullage.step()
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
ENGINE = {"ULLAGE_ENGINE_ID": "vllm0:0123456789abcdef"}


@pytest.fixture
def process(program):
    """Start a process of an engine that is not there."""

    def start(*arguments, **environment):
        one = program(STORY, *arguments, **{**ENGINE, **environment})
        assert one.line() == "ready"
        return one

    return start


def exits(sidecar):
    """What was counted: {(process, outcome, cause): count}."""
    found = {}
    for (name, labels), value in sidecar.metrics().items():
        if name == "ullage_process_exits_total" and value:
            labels = dict(labels)  # noqa: PLW2901
            found[labels["process"], labels["outcome"], labels["cause"]] = value
    return found


@pytest.mark.fault("a violation, a kill and a restart within one scrape", sees="both lives in the counters")
def test_a_restart_between_two_scrapes_hides_nothing(process, sidecar):
    watching = sidecar()
    first = process("core")
    first.tell("rows.observe(12); rows.exhausted()")
    first.kill()
    second = process("core")
    second.tell("rows.observe(15)")

    metrics = watching.metrics()

    rows = frozenset({"process": "vllm0/core", "buffer": "rows"}.items())
    assert metrics["ullage_bounds_violations_total", rows] == 2
    assert metrics["ullage_buffer_exhaustions_total", rows] == 1
    assert metrics["ullage_buffer_used_slots", rows] == 15
    until(lambda: exits(watching) == {("vllm0/core", "killed", "primary"): 1})
    assert watching.states() == {"vllm0/core": "running"}


@pytest.mark.fault("two living processes of one name", sees="both, the second as name-2")
def test_two_living_processes_of_one_name(process, sidecar):
    first, second = process("core"), process("core")
    second.tell("rows.observe(7)")
    watching = sidecar()

    assert watching.states() == {"vllm0/core": "running", "vllm0/core-2": "running"}
    assert watching.value("ullage_buffer_used_slots", process="vllm0/core-2", buffer="rows") == 7

    first.kill()

    assert watching.states() == {"vllm0/core": "killed", "vllm0/core-2": "running"}


@pytest.mark.fault("API server, core and four workers die in turn", sees="one primary death, five consequences")
def test_the_processes_of_an_engine_die_in_turn(process, sidecar):
    family = [process("frontend"), process("core"), *(process("worker", rank) for rank in range(4))]
    watching = sidecar()
    assert len(watching.states()) == 6
    order = random.Random(5).sample(range(6), 6)
    names = ["vllm0/api", "vllm0/core", *(f"vllm0/worker-tp{rank}" for rank in range(4))]

    for position in order:
        family[position].kill()
        until(lambda position=position: names[position] in {process for process, _, _ in exits(watching)})

    assert exits(watching) == {
        (names[position], "killed", "primary" if position == order[0] else "consequential"): 1 for position in order
    }
    until(lambda: [key for key in watching.warnings() if key[1] == "process_died"])
    assert [key[0] for key in watching.warnings() if key[1] == "process_died"] == [names[order[0]]]


@pytest.mark.fault("SIGSTOP of an engine with running requests", sees="stalled, not dead")
def test_a_stopped_process_is_stalled_and_not_dead(process, sidecar):
    watching = sidecar(ULLAGE_STALL_AFTER="1s")
    core = process("core")
    core.tell("from ullage.host.process import process; process.session.clock.tick(3)")
    core.process.send_signal(signal.SIGSTOP)
    try:
        until(lambda: watching.states() == {"vllm0/core": "stalled"})
        until(lambda: ("vllm0/core", "engine_stalled") in watching.warnings())
    finally:
        core.process.send_signal(signal.SIGCONT)
    core.tell("from ullage.host.process import process; process.session.clock.tick(3)")
    assert watching.states() == {"vllm0/core": "running"}
    assert exits(watching) == {}


@pytest.mark.fault("an engine asleep or idle", sees="running")
def test_an_idle_engine_is_not_stalled(process, sidecar):
    watching = sidecar(ULLAGE_STALL_AFTER="200ms")
    core = process("core")
    core.tell("from ullage.host.process import process; process.session.clock.tick(3); process.session.set_running(0)")

    end = time.monotonic() + 2
    while time.monotonic() < end:
        assert watching.states() == {"vllm0/core": "running"}


@pytest.mark.fault("SIGKILL and restart of the sidecar under load", sees="counters that do not go back")
def test_a_sidecar_that_is_killed_and_started_again_loses_nothing(process, segments, tried):
    core = process("core")
    core.say(  # a load that leaves the sidecar a core
        "import threading; threading.Thread(target=lambda: [rows.observe(n % 13) or time.sleep(1e-4) "
        "for n in range(10**7)], daemon=True).start()"
    )
    assert core.line() == "done"
    dead = process("worker", 0)
    dead.tell("rows.observe(12)")
    dead.kill()
    last = 0.0
    times = 50 if LONG else 5
    for _ in range(times):
        watching = Sidecar(segments)
        try:
            violations = watching.value("ullage_bounds_violations_total", process="vllm0/core", buffer="rows")
            assert violations >= last
            last = violations
            assert exits(watching) == {("vllm0/worker-tp0", "killed", "primary"): 1}
            until(lambda w=watching: ("rows", "bounds_violation") in w.warnings(), 2 * PROMISE_FACTOR)
            found = {(w["reason"], w["adopted"]) for w in watching.json("/v1/warnings")}
            assert ("bounds_violation", True) in found
            assert "raised critical bounds_violation" not in watching.log()
            assert watching.log().count("adopted critical bounds_violation: vllm0/core rows") == 1
        finally:
            watching.end()
    tried(times)


@pytest.mark.fault("a client that sends nothing, or half a request", sees="answers to all others")
def test_slow_clients_and_half_open_connections_hold_nobody_up(process, sidecar):
    process("core")
    watching = sidecar()
    idle = [socket.create_connection(("127.0.0.1", watching.port)) for _ in range(50)]
    for one in idle[::2]:
        one.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Half: ")
    try:
        start = time.monotonic()
        for _ in range(5):
            assert watching.states() == {"vllm0/core": "running"}
        assert time.monotonic() - start < 30
    finally:
        for one in idle:
            one.close()


@pytest.mark.fault("an oversized request", sees="an error to its sender, answers to all others")
def test_an_oversized_request_is_refused(process, sidecar):
    process("core")
    watching = sidecar()

    with pytest.raises((urllib.error.HTTPError, ConnectionError, urllib.error.URLError)):
        watching.get("/v1/events?process=" + "x" * 200_000)

    assert watching.get("/livez") == b"ok\n"
    assert watching.states() == {"vllm0/core": "running"}


@pytest.mark.fault("SIGKILL of a process that forked", sees="its death, though the child lives")
def test_a_child_that_outlives_its_parent_does_not_hide_its_death(process, sidecar):
    watching = sidecar()
    core = process("core")
    # The child lives until the test kills it; the minute bounds it if the test does not.
    core.say("import os; print(os.fork() or (time.sleep(60), os._exit(0)), flush=True)")
    child = int(core.line())
    core.process.kill()
    try:
        until(lambda: watching.states() == {"vllm0/core": "killed"})
    finally:
        os.kill(child, signal.SIGKILL)
