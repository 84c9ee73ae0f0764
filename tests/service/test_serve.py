"""``ullage serve``, a real one: what Prometheus and a person get from it."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from harness import PROMISE_FACTOR, Sidecar, until
from prometheus import PrometheusServer, static
from prometheus_client.openmetrics.parser import text_string_to_metric_families

STORY = """
import sys, time, ullage
rows = ullage.buffer("rows", capacity=100, unit="rows", limit="max_num_seqs", bytes=409600)
arena = ullage.buffer("arena", capacity=4096, unit="bytes", kind="managed", location="pinned")
table = ullage.buffer("block_table", capacity=8, unit="blocks", kind="fixed")
from ullage.recording.inventory import TensorInfo, inventory
from ullage.host.process import process
inventory(process, "runner", [TensorInfo("input_ids", (512,), "int32", 2048)] * 61)
arena.observe(4000); table.observe(8); rows.observe(10); rows.resize(120)
ullage.step()
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


@pytest.fixture
def told(program):
    """Start the story; then tell it what to do, a line at a time."""

    def start():
        running = program(STORY)
        assert running.line() == "ready"

        def tell(line):
            running.tell(line)

        tell.program = running
        return tell

    return start


# Names, types and labels of DESIGN section 8 that this version has.
FAMILIES = {
    "ullage_build": "info",
    "ullage_process": "info",
    "ullage_process_state": "stateset",
    "ullage_process_exits": "counter",
    "ullage_process_start_time_seconds": "gauge",
    "ullage_process_last_step_timestamp_seconds": "gauge",
    "ullage_process_steps": "counter",
    "ullage_inventory_bytes": "gauge",
    "ullage_buffer": "info",
    "ullage_buffer_capacity_slots": "gauge",
    "ullage_buffer_used_slots": "gauge",
    "ullage_buffer_high_water_slots": "gauge",
    "ullage_buffer_capacity_bytes": "gauge",
    "ullage_buffer_used_bytes": "gauge",
    "ullage_buffer_high_water_bytes": "gauge",
    "ullage_buffer_high_water_ratio": "gauge",
    "ullage_buffer_high_water_timestamp_seconds": "gauge",
    "ullage_buffer_occupancy_ratio": "histogram",
    "ullage_buffer_resizes": "counter",
    "ullage_buffer_exhaustions": "counter",
    "ullage_buffer_deferrals": "counter",
    "ullage_bounds_checks": "counter",
    "ullage_bounds_violations": "counter",
    "ullage_shape_checks": "counter",
    "ullage_shape_violations": "counter",
    "ullage_contract_disagreements": "gauge",
    "ullage_warning_threshold_ratio": "gauge",
    "ullage_warning_active": "gauge",
    "ullage_warnings_raised": "counter",
    "ullage_probe_status": "stateset",
    "ullage_probe_calls": "counter",
    "ullage_hook_errors": "counter",
    "ullage_records_dropped": "counter",
    "ullage_segments": "gauge",
    "ullage_segment_read_errors": "counter",
    "ullage_scrape_duration_seconds": "gauge",
    "ullage_config_last_reload_successful": "gauge",
    "ullage_config_last_reload_success_timestamp_seconds": "gauge",
    "ullage_last_tick_timestamp_seconds": "gauge",
    "ullage_tick_failures": "counter",
    "ullage_rows_dropped": "counter",
}


def test_openmetrics_with_the_names_and_types_of_the_design(told, sidecar):
    told()
    text = sidecar().get("/metrics", Accept="application/openmetrics-text; version=1.0.0").decode()

    families = list(text_string_to_metric_families(text))

    assert {family.name: family.type for family in families} == FAMILIES
    histogram = next(family for family in families if family.name == "ullage_buffer_occupancy_ratio")
    assert {sample.name for sample in histogram.samples} == {"ullage_buffer_occupancy_ratio_bucket"}
    assert [sample.labels["le"] for sample in histogram.samples] == [
        "0.5",
        "0.75",
        "0.9",
        "0.95",
        "0.99",
        "1.0",
        "+Inf",
    ]
    assert {sample.labels["buffer"] for sample in histogram.samples} == {"rows"}


def test_promtool_finds_nothing_to_complain_about(told, sidecar, promtool):
    told()
    text = sidecar().get("/metrics")

    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_a_scrape_shows_the_very_last_store(told, sidecar):
    tell, watching = told(), sidecar()
    for used in (11, 95, 121, 7):
        tell(f"rows.observe({used})")
        assert watching.value("ullage_buffer_used_slots", process="app0/main", buffer="rows") == used

    metrics = {name: value for (name, labels), value in watching.metrics().items() if ("buffer", "rows") in labels}

    assert metrics["ullage_buffer_high_water_slots"] == 121
    assert metrics["ullage_buffer_capacity_slots"] == 120
    assert metrics["ullage_buffer_high_water_ratio"] == pytest.approx(121 / 120)
    assert metrics["ullage_bounds_violations_total"] == 1
    assert metrics["ullage_bounds_checks_total"] == 5
    assert metrics["ullage_warning_threshold_ratio"] == 0.9


def test_a_warning_is_raised_and_cleared_and_each_is_one_log_line(told, sidecar):
    tell, watching = told(), sidecar(ULLAGE_CLEAR_HOLD="100ms")
    assert watching.warnings() == {("arena", "near_capacity"): "info"}
    tell("rows.observe(115)")
    start = time.monotonic()
    until(lambda: ("rows", "near_capacity") in watching.warnings(), 2 * PROMISE_FACTOR, "the warning")
    assert time.monotonic() - start < 2 * PROMISE_FACTOR
    labels = {"process": "app0/main", "buffer": "rows", "contract": "", "reason": "near_capacity"}
    assert watching.value("ullage_warning_active", severity="warning", **labels) == 1

    tell("rows.observe(5)")
    until(lambda: ("rows", "near_capacity") not in watching.warnings(), what="the all-clear")

    assert watching.value("ullage_warning_active", severity="warning", **labels) is None
    assert watching.value("ullage_warnings_raised_total", severity="warning", **labels) == 1
    lines = [line for line in watching.log().splitlines() if "rows" in line]
    assert [re.search(r"(WARNING raised|INFO cleared)", line)[1] for line in lines] == [
        "WARNING raised",
        "INFO cleared",
    ]
    assert "at 96% of 120 rows" in lines[0]
    adopted = [line for line in watching.log().splitlines() if "arena" in line]
    assert len(adopted) == 1
    assert "adopted info near_capacity" in adopted[0]


def test_the_last_values_of_a_killed_process_are_served(told, sidecar):
    tell, watching = told(), sidecar()
    tell("rows.observe(77)")
    tell.program.kill()

    metrics = watching.metrics()

    def value(name, **labels):
        return metrics[name, frozenset({"process": "app0/main", **labels}.items())]

    assert value("ullage_buffer_used_slots", buffer="rows") == 77
    assert value("ullage_process_state", ullage_process_state="killed") == 1
    assert value("ullage_process_state", ullage_process_state="running") == 0
    exits = {"process": "app0/main", "outcome": "killed", "cause": "primary"}
    until(lambda: watching.value("ullage_process_exits_total", **exits) == 1, what="the exit counted by a tick")
    until(lambda: watching.warnings().get(("app0/main", "process_died")) == "warning")


def test_the_api_says_the_same_in_json(told, sidecar):
    tell, watching = told(), sidecar()
    tell("rows.observe(121); arena.exhausted(9)")

    (process,) = watching.json("/v1/processes")
    assert (process["process"], process["state"], process["shown"], process["steps"]) == (
        "app0/main",
        "running",
        True,
        1,
    )
    held = watching.json("/v1/buffers?process=app0/main")
    rows = next(buffer for buffer in held["buffers"] if buffer["buffer"] == "rows")
    assert rows["capacity"] == 120
    assert rows["occupancy"] == {"0.5": 1, "0.75": 0, "0.9": 0, "0.95": 0, "0.99": 0, "1.0": 0}
    assert (rows["beyond"], rows["bounds_violations"], rows["worst_index"]) == (1, 1, 120)
    assert held["inventory"] == [
        {
            "process": "app0/main",
            "name": "runner.input_ids",
            "type": "int32[512]",
            "location": "host",
            "count": 61,
            "bytes": 61 * 2048,
        }
    ]
    assert watching.json("/v1/buffers?process=nobody") == {"buffers": [], "inventory": []}
    events = watching.json("/v1/events")
    assert [(event["kind"], event["subject"]) for event in events] == [
        ("resize", "rows"),
        ("bounds_violation", "rows"),
        ("exhaustion", "arena"),
    ]
    assert watching.json("/v1/events?limit=1") == events[-1:]
    schema = watching.json("/openapi.json")
    assert {"/metrics", "/livez", "/readyz", "/v1/processes", "/v1/warnings"} <= set(schema["paths"])


def test_inventory_is_one_number_in_the_metrics(told, sidecar):
    told()
    names = {name for (name, labels) in sidecar().metrics() if ("buffer", "runner.input_ids") in labels}

    assert names == set()


@pytest.mark.parametrize(("path", "status"), [("/v1/nothing", 404), ("/v1/events?limit=0", 422)])
def test_errors_are_problem_documents(sidecar, path, status):
    with pytest.raises(urllib.error.HTTPError) as error:
        sidecar().get(path)

    assert error.value.code == status
    assert error.value.headers["content-type"] == "application/problem+json"
    problem = json.loads(error.value.read())
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]


def test_metrics_are_compressed_where_asked(told, sidecar):
    told()
    watching = sidecar()
    url = f"http://127.0.0.1:{watching.port}/metrics"

    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})) as response:
        assert response.headers["content-encoding"] == "gzip"
        assert b"ullage_buffer_used_slots" in gzip.decompress(response.read())
    with urllib.request.urlopen(url) as response:
        assert response.headers["content-encoding"] is None


@pytest.mark.fault("a sidecar without any hook", sees="no hook found; then the hook")
def test_it_serves_without_any_hook_and_sees_one_that_comes_later(told, sidecar):
    watching = sidecar()
    assert watching.json("/v1/processes") == []
    assert watching.value("ullage_segments", state="readable") == 0

    told()

    assert watching.states() == {"app0/main": "running"}


@pytest.mark.fault("a bad file among good ones", sees="the good ones; segment_unreadable")
def test_one_bad_file_harms_neither_the_others_nor_the_scrape(told, sidecar, segments):
    told()
    (segments / "bad.ullage").write_bytes(b"nonsense, but long enough to look at, whatever it may be")
    watching = sidecar()

    assert watching.value("ullage_segments", state="unreadable") == 1
    assert watching.value("ullage_segment_read_errors_total", reason="magic") == 1
    assert watching.value("ullage_buffer_used_slots", process="app0/main", buffer="rows") == 10
    assert ("", "segment_unreadable") in watching.warnings()


@pytest.mark.fault("bad settings at start", sees="an error line; defaults")
def test_bad_settings_are_reported_and_the_others_are_served(told, sidecar):
    told()
    watching = sidecar(ULLAGE_WARNING_RATIO="150", ULLAGE_CLEAR_HOLD="soon")

    assert watching.value("ullage_warning_threshold_ratio", process="app0/main", buffer="rows") == 0.9
    assert "ERROR setting warning_ratio" in watching.log()
    assert "ERROR setting clear_hold" in watching.log()


def test_it_ends_on_sigterm(sidecar):
    watching = sidecar()
    assert watching.get("/livez") == b"ok\n"

    assert watching.stop() in (0, -15)
    assert "Traceback" not in watching.log()


def test_the_date_of_its_answers_goes_on(sidecar):
    watching = sidecar()

    def date():
        with urllib.request.urlopen(f"http://127.0.0.1:{watching.port}/livez") as answer:
            return answer.headers["Date"]

    first = date()

    until(lambda: date() != first, 2 * PROMISE_FACTOR, "a later date")


def test_a_real_prometheus_scrapes_it(told, sidecar, prometheus, tmp_path):
    tell, watching = told(), sidecar()
    tell("rows.observe(113)")
    server = PrometheusServer(prometheus, tmp_path, [static("ullage", (watching.port, {}))])

    try:
        near = 'ullage_buffer_used_slots{buffer="rows"} / ullage_buffer_capacity_slots > 0.9'
        used = until(lambda: server.query(near), 60, "the sample")
        ((warning, _),) = until(lambda: server.query('ullage_warning_active{buffer="rows"}'), 60, "the warning")
    finally:
        server.end()
    assert [labels["buffer"] for labels, _ in used] == ["rows"]
    assert warning["severity"] == "warning"


CLAIMS = """
import sys, ullage
width = ullage.Contract("block_table.width", dims=("columns",), unit="columns")
width.claim(sys.argv[1], int(sys.argv[2]), inputs={"max_model_len": 350000, "block_size": 64})
class Tensor:
    shape, dtype = (int(sys.argv[2]),), "int32"
width.check(Tensor)
print("ready", flush=True)
input()
Tensor.shape = (4,)
width.check(Tensor)
print("done", flush=True)
input()
"""


COMPARES = """
import ullage
metadata = ullage.Contract("attention.scheduler_metadata", dims=("numbers",), unit="numbers")
planned = {"padded_batch": 4, "varlen": 1, "head_swizzle": 1, "dynamic_split": 0, "semaphore": 1}
metadata.compare(9, 5, inputs=lambda: (planned, planned | {"varlen": 0}), sources=("planner", "kernel"))
print("ready", flush=True)
input()
"""


def test_a_violation_is_explained_from_what_both_sides_had(program, sidecar):
    assert program(COMPARES).line() == "ready"
    watching = sidecar()

    (contract,) = watching.json("/v1/contracts")

    assert contract["claims"] == contract["disagreements"] == []
    (found,) = contract["violations"]
    assert (found["provider"]["source"], found["requirement"]["source"]) == ("planner", "kernel")
    assert found["requirement"]["inputs"]["varlen"] == 0
    assert "varlen is 1 for planner, 0 for kernel" in found["finding"]
    assert "vllm-project/flash-attention#161" in found["reports"]
    assert {reason for _, reason in watching.warnings()} == {"shape_violation"}


def test_claims_of_one_engine_are_joined_across_its_processes(program, sidecar):
    environment = {"ULLAGE_ENGINE_ID": "vllm0:0123456789abcdef"}
    runner = program(CLAIMS, "runner", 5470, **environment)
    assert runner.line() == "ready"
    builder = program(CLAIMS, "indexer builder", 5469, **environment)
    assert builder.line() == "ready"
    stranger = program(CLAIMS, "another engine", 1, ULLAGE_ENGINE="other")
    assert stranger.line() == "ready"
    watching = sidecar()

    contract, other = watching.json("/v1/contracts")

    assert {claim["source"]: claim["shape"] for claim in contract["claims"]} == {
        "runner": [5470],
        "indexer builder": [5469],
    }
    assert other["disagreements"] == []
    (found,) = contract["disagreements"]
    assert {found["provider"]["source"], found["requirement"]["source"]} == {"runner", "indexer builder"}
    assert found["provider"]["inputs"] == {"max_model_len": 350_000, "block_size": 64}
    assert found["rivals"][0]["rule"] == "token alignment"
    assert found["rivals"][0]["share"] > 0.5
    assert found["finding"].startswith("Likeliest: ")
    metrics = watching.metrics()
    disagree = {
        dict(labels)["process"]: value
        for (name, labels), value in metrics.items()
        if name == "ullage_contract_disagreements"
    }
    assert sorted(disagree.values()) == [0, 0, 1]
    until(lambda: "shape_disagreement" in {reason for _, reason in watching.warnings()})
    assert "claims do not fit" in watching.log()

    builder.say("")
    assert builder.line() == "done"

    until(lambda: "critical" in watching.warnings().values())
    process = next(p for p, count in disagree.items() if p != "other/main" and count in (0, 1))
    violations = sum(
        value for (name, _), value in watching.metrics().items() if name == "ullage_shape_violations_total"
    )
    checks = sum(value for (name, _), value in watching.metrics().items() if name == "ullage_shape_checks_total")
    assert (violations, checks) == (1, 4)
    assert process.startswith("vllm0/main")


@pytest.mark.fault("bad settings on SIGHUP", sees="ullage_config_last_reload_successful 0")
def test_settings_are_reloaded_on_sighup_and_bad_ones_change_nothing(told, segments, tmp_path):
    told()
    config = tmp_path / "ullage.yaml"
    config.write_text("warning_ratio: 0.8\n")
    watching = Sidecar(segments, "--config", str(config))
    try:

        def line():
            return watching.value("ullage_warning_threshold_ratio", process="app0/main", buffer="rows")

        assert line() == 0.8
        first = watching.value("ullage_config_last_reload_success_timestamp_seconds")

        config.write_text("warning_ratio: 0.7\nclear_ratio: 0.6\n")
        watching.process.send_signal(signal.SIGHUP)
        until(lambda: line() == 0.7)
        assert watching.value("ullage_config_last_reload_successful") == 1
        assert watching.value("ullage_config_last_reload_success_timestamp_seconds") > first

        config.write_text("warning_ratio: 0.75\nclear_ration: 0.6\n")
        watching.process.send_signal(signal.SIGHUP)
        until(lambda: watching.value("ullage_config_last_reload_successful") == 0)
        assert line() == 0.7
        assert "clear_ration" in watching.log()
        assert "those from before hold" in watching.log()
    finally:
        watching.end()


EARLY_HANGUP = """
import os, pathlib, signal
from ullage_sidecar.watch import Watch
begin = Watch.__init__
def change_the_settings(self, *arguments):
    begin(self, *arguments)
    pathlib.Path({config!r}).write_text("warning_ratio: 0.7\\nclear_ratio: 0.6\\n")
    os.kill(os.getpid(), signal.SIGHUP)
Watch.__init__ = change_the_settings
"""


def test_a_sighup_before_the_server_has_started_reloads_the_settings(told, segments, tmp_path):
    told()
    config = tmp_path / "ullage.yaml"
    config.write_text("warning_ratio: 0.8\n")

    watching = Sidecar(segments, "--config", str(config), code=EARLY_HANGUP.format(config=str(config)))
    try:
        until(
            lambda: watching.value("ullage_warning_threshold_ratio", process="app0/main", buffer="rows") == 0.7,
            what="the new threshold",
        )
    finally:
        watching.end()
