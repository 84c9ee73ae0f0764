"""After a death: what is known of it, in the API, in ``inspect``, and in the log that outlives the pod."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from harness import PROMISE_FACTOR, until

from ullage.inspect.postmortem import LINE_BYTES

PROGRAM = """
import sys, ullage
from ullage.host.process import process
from ullage.segment.layout import Phase
process.session.identity.engine = "vllm"
process.session.roles.add(sys.argv[1])
process.session.identify(engine_version=sys.argv[2])
rows = ullage.buffer("rows", capacity=int(sys.argv[3]), unit="rows", limit="max_num_seqs")
arena = ullage.buffer("arena", capacity=100, unit="bytes", kind="managed")
table = ullage.buffer("table", capacity=4, unit="blocks", kind="fixed")
width = ullage.Contract("width")
width.claim("runner", 8, inputs={"max_model_len": int(sys.argv[3])})
table.observe(4); arena.observe(50); rows.observe(9)
ullage.step()
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""
ENGINE = {"ULLAGE_ENGINE_ID": "vllm0:0123456789abcdef"}


@pytest.fixture
def process(program):
    """Start a process of an engine that is not there: its role, the engine's version, a capacity."""

    def start(role, version="1.0", capacity=10):
        one = program(PROGRAM, role, version, capacity, **ENGINE)
        assert one.line() == "ready"
        return one

    return start


def told(sidecar):
    """The post-mortems in the sidecar's log: {process: [document]}."""
    found = {}
    for line in sidecar.log().splitlines():
        if line.startswith("{"):
            assert len(line) <= LINE_BYTES
            document = json.loads(line)
            assert document["ullage"] == "post_mortem"
            found.setdefault(document["process"], []).append(document)
    return found


def test_a_death_inside_a_step_is_told_in_the_log_and_in_the_api(process, sidecar):
    watching, core = sidecar(), process("core")
    core.tell("rows.observe(12)")
    core.tell("process.session.phase.begin(Phase.EXECUTE, tokens=37, requests=4)")

    core.kill()
    until(lambda: told(watching), 2 * PROMISE_FACTOR, "the post-mortem")

    (document,) = told(watching)["vllm0/core"]
    assert (document["outcome"], document["cause"], document["phase"]) == ("killed", "primary", "execute")
    assert (document["batch_requests"], document["batch_tokens"]) == (4, 37)
    assert 0 <= document["step_age_ns"] < 60e9
    assert [(full["buffer"], full["ratio"]) for full in document["nearest"]] == [("rows", 1.2), ("arena", 0.5)]
    assert document["violations"] == [{"what": "rows", "count": 1, "worst_index": 11}]
    assert [event[1] for event in document["events"]] == ["bounds_violation"]
    (shown,) = watching.json("/v1/processes")
    assert shown["post_mortem"]["phase"] == "execute"
    assert shown["post_mortem"]["violations"] == document["violations"]
    assert shown["post_mortem"]["order"][0]["process"] == "vllm0/core"


def test_it_is_told_once_and_again_when_the_sidecar_is_asked_to_end(process, sidecar):
    watching, core = sidecar(), process("core")
    core.kill()
    until(lambda: told(watching), 2 * PROMISE_FACTOR, "the post-mortem")
    other = process("frontend")
    until(lambda: watching.states().get("vllm0/api") == "running", 20, "the other process")
    assert len(told(watching)["vllm0/core"]) == 1

    watching.stop()

    assert len(told(watching)["vllm0/core"]) == 2
    assert "vllm0/api" not in told(watching)
    other.kill()


def test_who_died_first_is_told(process, sidecar):
    watching = sidecar()
    api, core = process("frontend"), process("core")
    core.kill()
    until(lambda: "vllm0/core" in told(watching), 2 * PROMISE_FACTOR, "the core's post-mortem")
    api.tell("from ullage.host.process import process; process.session.note_failure('EngineDeadError')")
    api.kill()

    until(lambda: "vllm0/api" in told(watching), 2 * PROMISE_FACTOR, "the server's post-mortem")

    (document,) = told(watching)["vllm0/api"]
    order = [(died["process"], died["outcome"], died["cause"]) for died in document["order"]]
    assert order == [("vllm0/core", "killed", "primary"), ("vllm0/api", "crashed", "consequential")]


def test_what_differs_from_the_incarnation_before_is_told(process, sidecar, segments):
    watching = sidecar()
    process("core", "1.0", 10).kill()
    until(lambda: told(watching), 2 * PROMISE_FACTOR, "the first post-mortem")
    process("core", "1.1", 20).kill()

    until(lambda: len(told(watching)["vllm0/core"]) == 2, 2 * PROMISE_FACTOR, "the second post-mortem")

    first, second = told(watching)["vllm0/core"]
    assert first["changed"] == []
    assert {change["what"]: (change["before"], change["now"]) for change in second["changed"]} == {
        "engine_version": ("1.0", "1.1"),
        "capacity of rows": ("10 rows", "20 rows"),
        "max_model_len of runner": ("10", "20"),
    }
    shown = subprocess.run(
        [sys.executable, "-m", "ullage_sidecar", "inspect", str(segments)], capture_output=True, text=True, check=True
    ).stdout
    assert "engine_version was 1.0 in the incarnation before, now 1.1" in shown
    assert "rows was at most 45.0% full: 9 of 20 rows" in shown


def test_an_orderly_stop_is_no_death(process, sidecar):
    watching, core = sidecar(), process("core")

    core.tell("process.session.declare_stop('in order')")
    core.finish()
    until(lambda: watching.states() == {"vllm0/core": "stopped"}, 20, "the stop")

    (shown,) = watching.json("/v1/processes")
    assert shown["post_mortem"] is None
    watching.stop()
    assert told(watching) == {}


def test_a_line_stays_short_whatever_there_is_to_tell(process, sidecar):
    watching = sidecar()
    for number in range(2):
        core = process("core")
        core.tell(
            "held = [ullage.buffer('b' * 80 + str(n), capacity=1000, unit='rows') for n in range(200)]\n".strip()
            + f"; [b.resize(2000 + {number}) for b in held]; [b.observe(3000) for b in held]"
        )
        core.kill()

    until(lambda: len(told(watching).get("vllm0/core", ())) == 2, 2 * PROMISE_FACTOR, "both post-mortems")

    second = told(watching)["vllm0/core"][1]
    assert second["left_out"]["changed"] > 100
    assert second["nearest"]
    assert second["violations"]
