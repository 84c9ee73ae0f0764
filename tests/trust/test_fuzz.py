"""Mutated segments with valid checksums: the reader refuses them or keeps its promises, and every page is served."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from harness import LONG
from mutate import KINDS
from promises import broken
from sealing import corpus, place

from ullage.segment import reader

pytestmark = pytest.mark.timeout(7200 if LONG else 900)
HERE = Path(__file__).parent
SEED = "ullage"
READ = 200_000 if LONG else 20_000
SERVED = 20_000 if LONG else 5_000
MEMORY_MIB = 100
GROWTH_MIB = 20
SEES = "the record is left out and counted, or segment_unreadable with the reason"
HEALTHY = """
import sys, ullage
rows = ullage.buffer("rows", capacity=100, unit="rows")
for used in (50, 95, 103):
    rows.observe(used)
rows.resize(200)
blocks = ullage.buffer("kv_blocks", capacity=1000, unit="blocks", kind="managed")
blocks.observe(930)
blocks.exhausted()
width = ullage.Contract("width", dims=("columns",), relation=("==",), unit="columns")
width.claim("runner", (3126,), role="is", inputs={"max_model_len": 200000, "block_size": 64})
width.claim("builder", (3125,), role="is", inputs={"max_model_len": 200000, "block_size": 64})
width.compare((4,), (5,), inputs=lambda: ({"batch": 4}, {"batch": 5}))
ullage.step()
print("ready", flush=True)
sys.stdin.read()
"""


def start(script, *arguments):
    """Start a fuzzer in a process of its own."""
    command = [sys.executable, HERE / script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(fuzzer):
    """Wait for a fuzzer; return its report."""
    out, err = fuzzer.communicate()
    assert out, err[-5000:]
    return json.loads(out)


@pytest.fixture(scope="module", autouse=True)
def reading():
    """The fuzzer of the reader, which runs while the application is fuzzed: each takes a core."""
    fuzzer = start("fuzz_reader.py", READ, SEED)
    yield fuzzer
    fuzzer.kill()
    fuzzer.communicate()


@pytest.fixture(scope="module")
def report(reading):
    """What the reader made of all mutated segments."""
    return finished(reading)


@pytest.mark.fault("mutated segments next to a healthy process", sees="every page; the healthy process as it is")
def test_every_page_is_served_and_a_healthy_process_is_shown_as_it_is(program, segments, tried, capsys):
    assert program(HEALTHY, ULLAGE_ENGINE="healthy").line() == "ready"

    said = finished(start("fuzz_app.py", SERVED, SEED, segments))

    assert not said["failures"], "\n".join(
        f"{failure['wrong'][0][-800:]}\n  {failure['inputs']}; seed {failure['seed']}" for failure in said["failures"]
    )
    with capsys.disabled():
        print(f"\n{SERVED} mutated segments served; peak {said['peak_mib']:.0f} MiB; rows left out: {said['left_out']}")
    assert said["peak_mib"] < MEMORY_MIB
    assert said["peak_mib"] - said["warm_mib"] < GROWTH_MIB
    tried(SERVED, repaired=said["repaired"])


def test_the_segments_that_real_programs_wrote_keep_every_promise(tmp_path):
    for name, content in corpus().items():
        with closing(place(tmp_path, content)) as file:
            snapshot = reader.read(file.path)

        assert list(broken(snapshot)) == [], name
        assert snapshot.half_written == snapshot.refused == 0
        assert snapshot.probes or snapshot.buffers


def test_the_reader_refuses_a_mutated_segment_or_keeps_its_promises(report):
    assert sum(tried for tried, _ in report["kinds"].values()) == READ
    assert not report["failures"], "\n".join(
        f"{failure['wrong'][-1]}\n  {failure['kinds']} of {failure['base']}; "
        f"again: tests/trust/fuzz_reader.py 1 {failure['seed']} {failure['number']}"
        for failure in report["failures"]
    )


def test_reading_mutated_segments_takes_little_memory(report, capsys):
    shares = ", ".join(f"{kind} {reached / inputs:.0%}" for kind, (inputs, reached) in report["kinds"].items())
    with capsys.disabled():
        print(f"\n{READ} mutated segments read with a peak of {report['peak_mib']:.0f} MiB; valid checksums: {shares}")
    assert report["peak_mib"] < MEMORY_MIB


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.fault(f"mutated segment: {kind}", sees=SEES)) for kind in KINDS]
)
def test_mutations_get_past_the_checksums(report, kind, tried):
    inputs, reached = report["kinds"][kind]

    assert reached >= inputs / 2
    tried(inputs, repaired=reached)
