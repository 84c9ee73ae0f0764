"""The files that once took the sidecar or its pod's page down, each with the smallest input that did."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
from pathlib import Path

import pytest
from harness import PROMISE_FACTOR, until
from memory import peak_mib
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from sealing import corpus, crowd, place

from ullage.segment.layout import BUFFERS, CLAIMS, IDENTITY, B, ClaimPayload

PAGES = ("/metrics", "/v1/processes", "/v1/buffers", "/v1/contracts", "/v1/events", "/v1/warnings", "/livez", "/readyz")
SIDECAR_MIB = 256  # the limit in the deploy files
HOST_MIB = 100
CONTRACT_PAGE_BYTES = 200_000
CONTRACT_PAGE_S = 1
TICK_CPU_S = 0.05
HEALTHY = """
import sys, ullage
rows = ullage.buffer("rows", capacity=100, unit="rows")
rows.observe(42)
ullage.step()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def healthy(program):
    """A program that is alive and well."""
    one = program(HEALTHY, ULLAGE_ENGINE="healthy")
    assert one.line() == "ready"
    return one


@pytest.fixture
def forged(segments):
    """Leave a segment in the directory, as a dead program wrote it, with other fields of the identity."""

    with contextlib.ExitStack() as opened:

        def forge(**identity):
            file = place(segments, corpus()["program"], secrets.token_bytes(16), **identity)
            return opened.enter_context(contextlib.closing(file))

        yield forge


def check_pages(watching):
    """Ask for every page; the healthy program must be on it, and no traceback in the log."""
    for path in PAGES:
        try:
            assert watching.get(path)
        except urllib.error.HTTPError as error:
            pytest.fail(f"{path}: {error.status}\n{watching.log()[-3000:]}")
    openmetrics = watching.get("/metrics", Accept="application/openmetrics-text").decode()
    assert list(text_string_to_metric_families(openmetrics))
    assert watching.states()["healthy/main"] == "running"
    assert watching.value("ullage_buffer_used_slots", process="healthy/main", buffer="rows") == 42
    assert "Traceback" not in watching.log()


def reasons(watching):
    """Return how many files and records were refused, by reason."""
    errors = [item for item in watching.metrics().items() if item[0][0] == "ullage_segment_read_errors_total"]
    return {dict(labels)["reason"]: count for (_, labels), count in errors if count}


def inspect(directory):
    """Return what ``ullage inspect`` prints."""
    command = [sys.executable, "-m", "ullage_sidecar", "inspect", str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def cpu_s(pid):
    """Return the seconds of CPU that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.fault("a region of records outside the file", sees="segment_unreadable, reason geometry")
def test_a_region_beyond_the_file_is_refused(forged, program, sidecar, segments):
    file = forged()
    file.head([r._replace(offset=2**63 + 5) if r.id == BUFFERS.id else r for r in file.regions.values()])

    host = program(HEALTHY + "for _ in range(50): ullage.step()\n", ULLAGE_ENGINE="healthy", ULLAGE_STRICT="1")
    assert host.line() == "ready"
    watching = sidecar()

    check_pages(watching)
    assert reasons(watching) == {"geometry": 1}
    shown = inspect(segments)
    assert "healthy/main  running" in shown.stdout
    assert file.path.name in shown.stdout
    assert "Traceback" not in shown.stderr
    host.finish()


@pytest.mark.fault("a segment without a process name", sees="segment_unreadable, reason identity")
@pytest.mark.parametrize("identity", [b'{"process":""}', b"{}", b"[]", b'{"process":null}', b"{"])
def test_a_process_without_a_name_is_refused(forged, healthy, sidecar, identity):
    forged().seal(IDENTITY, 0, identity)

    watching = sidecar()

    check_pages(watching)
    assert reasons(watching) == {"identity": 1}


@pytest.mark.fault("text that is not UTF-8", sees="a replacement for what cannot be printed")
def test_text_that_is_not_utf_8_is_cleaned(forged, healthy, sidecar, segments):
    forged(process="dead/path", model_name="/models/caf\udce9")
    raw = forged(process="dead/raw")
    raw.seal(IDENTITY, 0, raw.payload(IDENTITY, 0).replace(b'"app0"', b'"caf\xe9"'))
    claim = forged(process="dead/inputs")
    payload = ClaimPayload.unpack(claim.payload(CLAIMS, 0))
    claim.seal(CLAIMS, 0, payload._replace(inputs=b'{"backend":"\\udce9","block_size":64}').pack())
    Path(os.fsdecode(os.fsencode(segments) + b"/caf\xe9.ullage")).write_bytes(b"not a segment")

    watching = sidecar()

    check_pages(watching)
    models = {p["process"]: p["identity"].get("model_name") for p in watching.json("/v1/processes")}
    assert models["dead/path"] == "/models/caf\ufffd"
    (unreadable,) = [w for w in watching.json("/v1/warnings") if w["reason"] == "segment_unreadable"]
    assert "caf" in unreadable["message"]


@pytest.mark.fault("a model path that is not UTF-8", sees="a replacement for what cannot be printed")
def test_a_host_may_use_a_model_path_that_is_not_utf_8(healthy, program, sidecar):
    code = "from ullage.host.process import process; "
    code += "process.session.identify(model_name='/models/caf\\udce9', surplus='x' * 4000)"
    assert program(HEALTHY.replace("print", f"{code}\nprint", 1), ULLAGE_ENGINE="other").line() == "ready"

    watching = sidecar()

    check_pages(watching)
    (other,) = [p for p in watching.json("/v1/processes") if p["process"] == "other/main"]
    assert other["identity"]["model_name"] == "/models/caf\ufffd"


@pytest.mark.fault("a process name of 1,700 characters", sees="segment_unreadable, or its name cut")
def test_a_long_name_does_not_keep_the_sidecar_from_judging_and_ending(forged, healthy, program, sidecar):
    watching = sidecar()
    forged(process="é" * 1700)

    late = program("import ullage; ullage.buffer('late', capacity=9, unit='rows').observe(99); input()")
    until(lambda: ("late", "bounds_violation") in watching.warnings(), 60, "the warning of a process that came later")

    check_pages(watching)
    assert late.process.poll() is None
    assert watching.stop() == 0


@pytest.mark.fault("a sparse file of 4 GiB", sees="segment_unreadable, reason oversized")
def test_a_file_larger_than_the_format_allows_is_not_read(forged, program, sidecar, segments):
    file = forged()
    sizes = {BUFFERS.id: {"records": 6 << 20, "offset": 1 << 20}}
    file.head([r._replace(**sizes.get(r.id, {})) for r in file.regions.values()], file_bytes=4 << 30)
    file.resize(4 << 30)

    begun = time.monotonic()
    host = program(HEALTHY, ULLAGE_ENGINE="healthy")
    assert host.line() == "ready"
    took = time.monotonic() - begun

    assert took < PROMISE_FACTOR
    assert peak_mib(host.process.pid) < HOST_MIB
    watching = sidecar()
    check_pages(watching)
    assert peak_mib(watching.process.pid) < SIDECAR_MIB / 2
    assert reasons(watching) == {"oversized": 1}


@pytest.mark.fault("temporary files of other programs", sees="nothing: they stay")
def test_temporary_files_of_others_are_left_alone(program, segments):
    others = [segments / name for name in (".editor-autosave.tmp", ".model-download.tmp", f".{'g' * 32}.tmp", "a.tmp")]
    own = segments / f".{secrets.token_hex(16)}.tmp"
    for path in (*others, own):
        path.touch()
        os.utime(path, (time.time() - 3600,) * 2)

    assert program(HEALTHY).line() == "ready"

    assert [path for path in others if not path.exists()] == []
    assert not own.exists()


@pytest.mark.fault("a copy of a live segment", sees="segment_unreadable, reason copy; the process as it is")
def test_a_copy_of_a_live_segment_is_no_process(healthy, sidecar, segments):
    (live,) = segments.glob("*.ullage")
    watching = sidecar(ULLAGE_CLEAR_HOLD="0s")
    shutil.copy(live, segments / "backup.ullage")

    until(lambda: ("", "segment_unreadable") in watching.warnings(), 60, "the warning of the copy")

    check_pages(watching)
    assert reasons(watching) == {"copy": 1}
    assert "process_died" not in watching.log()
    healthy.kill()
    until(lambda: ("healthy/main", "process_died") in watching.warnings(), 60, "the real death")


@pytest.mark.fault("inputs of other types", sees="the contract; inputs that are no scalars are left out")
def test_inputs_of_other_types_are_served_and_compared(forged, program, healthy, sidecar):
    code = """
    import ullage
    width = ullage.Contract("width", dims=("columns",), relation=("==",), unit="columns")
    width.claim("runner", (9,), role="is", inputs={"max_model_len": "auto", "block_size": 64})
    width.claim("builder", (4,), role="is", inputs={"max_model_len": 4096, "block_size": 64})
    print("ready", flush=True)
    input()
    """
    assert program(code, ULLAGE_ENGINE="typed").line() == "ready"
    for inputs in (b'{"a":[1]}', b'{"a":null}', b'{"a":NaN}', b'{"a":1e999}', b'{"a":{"b":1}}', b"[]", b"{"):
        file = forged(process=f"dead/{secrets.token_hex(4)}", engine_id=secrets.token_hex(8))
        for index in file.used(CLAIMS):
            payload = ClaimPayload.unpack(file.payload(CLAIMS, index))
            file.seal(CLAIMS, index, payload._replace(inputs=inputs).pack())

    watching = sidecar()

    check_pages(watching)
    (contract,) = [one for one in watching.json("/v1/contracts") if one["contract"] == "width"]
    (disagreement,) = contract["disagreements"]
    sides = [disagreement["provider"], disagreement["requirement"]]
    assert {side["source"]: side["inputs"]["max_model_len"] for side in sides} == {"runner": "auto", "builder": 4096}
    for process in watching.json("/v1/processes"):
        assert all(type(value) in (str, int) for value in process["identity"].values())


@pytest.mark.fault("control characters in a name", sees="a replacement for each")
def test_control_characters_reach_neither_log_nor_terminal(forged, healthy, sidecar, segments):
    attack = "evil\n2026-01-01 00:00:00,000 CRITICAL forged\x1b[31m\x07\u202e"
    watching = sidecar()
    forged(process=attack, model_name=attack)
    until(lambda: any("evil" in process for process in watching.states()), 60, "the process, or what is left of it")
    until(lambda: "evil" in watching.log(), 60, "its death in the log")

    shown = inspect(segments)

    check_pages(watching)
    for text in (watching.log(), shown.stdout):
        assert "evil" in text
        assert re.findall(r"[^\n]*[\x00-\x09\x0b-\x1f\x7f\u202e][^\n]*", text) == []
        assert not any(line.startswith("2026-01-01 00:00:00,000 CRITICAL") for line in text.splitlines())


@pytest.mark.fault("244 claims on a size, by two formulas", sees="one disagreement")
def test_two_formulas_in_many_layers_are_one_disagreement(program, healthy, sidecar, capsys):
    code = """
    import sys, ullage
    rank = int(sys.argv[1])
    width = ullage.Contract("width", dims=("columns",), relation=("==",), unit="columns")
    for layer in range(61):
        columns = 3126 if layer % 2 else 3125
        width.claim(f"layer {layer}", (columns,), role="is", inputs={"max_model_len": 200000, "block_size": 64})
    print("ready", flush=True)
    input()
    """
    shared = {"ULLAGE_ENGINE": "wide", "ULLAGE_ENGINE_ID": f"wide:{secrets.token_hex(8)}"}
    for rank in range(4):
        assert program(code, rank, **shared).line() == "ready"
    watching = sidecar()
    until(lambda: [key for key in watching.warnings() if key[1] == "shape_disagreement"], 120, "the warning")

    begun = time.monotonic()
    page = watching.get("/v1/contracts")
    took = time.monotonic() - begun
    before, since = cpu_s(watching.process.pid), time.monotonic()
    time.sleep(3)  # three ticks, whose CPU time is measured
    each = (cpu_s(watching.process.pid) - before) / (time.monotonic() - since)

    with capsys.disabled():
        print(f"\n/v1/contracts: {took:.2f} s, {len(page)} bytes; a tick: {each * 1000:.0f} ms of CPU")
    (contract,) = [one for one in json.loads(page) if one["contract"] == "width"]
    assert len(contract["disagreements"]) == 1
    assert took < CONTRACT_PAGE_S * PROMISE_FACTOR
    assert len(page) < CONTRACT_PAGE_BYTES
    assert each < TICK_CPU_S * PROMISE_FACTOR
    assert max(len(warning["message"]) for warning in watching.json("/v1/warnings")) < 2000
    check_pages(watching)


@pytest.mark.fault("600 process names in succession", sees="those of the retention time")
def test_what_is_known_of_names_that_are_gone_expires(healthy, sidecar, segments):
    (live,) = segments.glob("*.ullage")
    content = corpus()["program"]
    watching = sidecar(ULLAGE_RETENTION="2s", ULLAGE_CLEAR_HOLD="1s")
    quiet = watching.get("/metrics").count(b"\n")
    for batch in range(10):
        names = [f"gone{batch}-{number}/main" for number in range(60)]
        for name in names:
            place(segments, content, secrets.token_bytes(16), process=name).close()
        until(lambda names=names: names[-1] in watching.states(), 60, "the names of this batch")
        for path in set(segments.glob("*.ullage")) - {live}:
            path.unlink()
    peak = watching.get("/metrics").count(b"\n")

    def settled():
        return watching.get("/metrics").count(b"\n") <= quiet + 20

    until(settled, 60, f"the end of {peak - quiet} lines more than at first")
    check_pages(watching)


@pytest.mark.fault("counts below zero", sees="the other records; reason refused")
def test_a_record_with_negative_counts_is_left_out(forged, healthy, sidecar):
    file = forged(process="dead/negative")
    first, *others = file.used(BUFFERS)
    for word in (B.N50, B.N75, B.EXHAUSTIONS):
        file.store(BUFFERS, first, word, -5)

    watching = sidecar()

    check_pages(watching)
    shown = [b for b in watching.json("/v1/buffers")["buffers"] if b["process"] == "dead/negative"]
    assert len(shown) == len(others)
    assert reasons(watching)["refused"] >= 1


@pytest.mark.fault("3,000 dead segments in the sidecar's directory", sees="every page, and an end on SIGTERM")
def test_thousands_of_dead_segments_do_not_stop_the_sidecar(healthy, sidecar, segments, capsys):
    crowd(segments, 3000)

    watching = sidecar()

    until(lambda: _served(watching), 120, "every page")
    with capsys.disabled():
        print(f"\n3,000 dead segments: {cpu_s(watching.process.pid):.1f} s of CPU until every page was served")
    assert peak_mib(watching.process.pid) < SIDECAR_MIB
    assert watching.stop() == 0


def _served(watching):
    with contextlib.suppress(urllib.error.URLError, TimeoutError):
        check_pages(watching)
        return True
    return False
