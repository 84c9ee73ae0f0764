"""vLLM in its default form, each part a process: pressure, and the death of one of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from harness import Sidecar, until

LOAD = {"prompts": 8, "tokens": 24}


@pytest.fixture(scope="module")
def watch():
    """Start a sidecar on an engine's segments."""
    started = []

    def start(engine, **environment):
        started.append(Sidecar(engine.directory, **environment))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture(scope="module")
def healthy(start_offline):
    """An engine with blocks in plenty."""
    return start_offline(256, in_process=False)


def severities(sidecar):
    return set(sidecar.warnings().values())


def test_the_tokens_are_the_same_and_a_healthy_run_raises_nothing_above_info(healthy, start_offline, watch):
    sidecar = watch(healthy)
    plain = start_offline(256, in_process=False, hook=False)
    expected = plain.ask("generate", **LOAD)
    plain.end()

    assert healthy.ask("generate", times=10, **LOAD) == expected

    until(lambda: sidecar.value("ullage_buffer_used_slots", process="vllm0/core", buffer="kv_blocks") == 0)
    assert severities(sidecar) <= {"info"}
    assert "WARNING" not in sidecar.log()
    assert sidecar.states() == {"vllm0/api": "running", "vllm0/core": "running", "vllm0/worker-tp0": "running"}
    assert sidecar.value("ullage_buffer_exhaustions_total", process="vllm0/core", buffer="kv_blocks") == 0
    series = [labels for (_, labels) in sidecar.metrics() if ("process", "vllm0/core") in labels]
    assert len(series) <= 250


@pytest.mark.fault("SIGKILL of a vLLM worker in mid-generation", sees="process_died for the worker alone")
def test_a_worker_killed_in_mid_generation_is_killed_and_its_siblings_are_consequences(healthy, watch):
    sidecar = watch(healthy)
    worker = next(p for p in sidecar.json("/v1/processes") if p["process"] == "vllm0/worker-tp0")
    steps = sidecar.value("ullage_process_steps_total", process="vllm0/worker-tp0")
    healthy.tell("generate", prompts=8, tokens=400, times=50)
    until(lambda: sidecar.value("ullage_process_steps_total", process="vllm0/worker-tp0") > steps + 20, 60)

    os.kill(worker["pid"], 9)
    until(lambda: not _exists(worker["pid"]), what="the end of the worker")

    metrics = sidecar.metrics()
    assert metrics[_state("vllm0/worker-tp0", "killed")] == 1
    assert metrics["ullage_buffer_used_slots", _labels("vllm0/worker-tp0", buffer="request_slots")] == 8
    until(lambda: "running" not in sidecar.states().values(), 60, "the end of its siblings")
    exits = until(lambda: found if len(found := _exits(sidecar)) == 3 else None, what="three exits")
    assert exits == {
        ("vllm0/worker-tp0", "primary"): "killed",
        ("vllm0/core", "consequential"): "crashed",
        ("vllm0/api", "consequential"): exits["vllm0/api", "consequential"],
    }
    assert exits["vllm0/api", "consequential"] in ("crashed", "killed")
    died = until(lambda: [key for key in sidecar.warnings() if key[1] == "process_died"])
    assert died == [("vllm0/worker-tp0", "process_died")]


def _exits(sidecar):
    """Return what was counted: {(process, cause): outcome}."""
    return {
        (dict(labels)["process"], dict(labels)["cause"]): dict(labels)["outcome"]
        for (name, labels), value in sidecar.metrics().items()
        if name == "ullage_process_exits_total" and value
    }


def _labels(process, **labels):
    return frozenset({"process": process, **labels}.items())


def _state(process, state):
    return "ullage_process_state", _labels(process, ullage_process_state=state)


def _exists(pid):
    """Tell whether any thread of a process is left: its leader can be a zombie while others still end."""
    process = Path(f"/proc/{pid}")
    try:
        threads = len(list((process / "task").iterdir()))
        return threads > 1 or (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or before it was read
        return False


def test_pressure_is_info_at_first_then_a_warning_and_both_are_cleared(start_offline, watch):
    engine = start_offline(20, in_process=False)
    sidecar = watch(engine, ULLAGE_EXHAUSTION_HOLD="1s", ULLAGE_CLEAR_HOLD="2s")

    near, exhausted = ("kv_blocks", "near_capacity"), ("kv_blocks", "exhaustion")
    engine.tell("generate", prompts=12, tokens=100, times=15)
    until(lambda: sidecar.warnings().get(near) == "info", 60, "near capacity")
    until(lambda: sidecar.warnings().get(exhausted) == "warning", 60, "exhaustion")
    engine.answer()

    preempted = engine.ask("preemptions")
    assert preempted > 0
    metrics = sidecar.metrics()
    blocks = _labels("vllm0/core", buffer="kv_blocks")
    assert metrics["ullage_buffer_exhaustions_total", blocks] == preempted
    assert metrics["ullage_buffer_deferrals_total", blocks] > 0
    assert metrics["ullage_bounds_violations_total", blocks] == 0
    assert metrics["ullage_buffer_high_water_slots", blocks] <= metrics["ullage_buffer_capacity_slots", blocks] == 19
    until(lambda: not {near, exhausted} & set(sidecar.warnings()), 60, "the all-clear")
    raised = {line.split("raised ")[1].split(":")[0] for line in sidecar.log().splitlines() if "raised" in line}
    assert raised == {
        "info near_capacity",
        "warning exhaustion",
    }

    engine.stop()
    until(lambda: "running" not in sidecar.states().values(), 60)
    assert set(sidecar.states().values()) == {"stopped"}
    assert sidecar.warnings() == {}
