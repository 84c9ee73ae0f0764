"""``ullage inspect``: for the person on call, where nothing but Python may be there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

STORY = """
import os, signal, ullage
rows = ullage.buffer("rows", capacity=100, unit="rows")
rows.observe(97); rows.observe(104)
ullage.step()
os.kill(os.getpid(), signal.SIGKILL)
"""


DISAGREEMENT = """
import os, signal, ullage
inputs = {"max_model_len": 350000, "block_size": 64}
width = ullage.Contract("block_table.width", dims=("columns",), unit="columns")
width.claim("runner block table", 5470, inputs=inputs)
ullage.Contract("size").claim("planner", 4)
width.claim("builder", 5469, inputs=inputs)
width.compare(0, 7, inputs=lambda: {"rows": 0}, sources=("buffer", "batch"))
os.kill(os.getpid(), signal.SIGKILL)
"""
EXPLAINED = "Likeliest: builder has ceil(max_model_len / block_size) = 5469, "
WITHOUT = "import sys; sys.modules['{}'] = None\n"


def inspect(*arguments, first=""):
    """Run the command with nothing but the standard library and ullage; ``first`` runs before it."""
    code = first + (
        "import sys, site; from ullage_sidecar.cli import main; status = main(sys.argv[1:])\n"
        "heavy = {'fastapi', 'pydantic', 'prometheus_client', 'uvicorn', 'yaml'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "raise SystemExit(status)"
    )
    command = [sys.executable, "-c", code, "inspect", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_dead_process_is_shown_with_its_last_values(program, segments):
    program(STORY).failure()

    shown = inspect(segments)

    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("app0/main  killed  incarnation ")
    row = next(line.split() for line in lines if line.split()[:1] == ["rows"])
    assert row == ["rows", "rows", "hard", "104", "104", "100", "104.0%", "0", "1"]
    assert any("bounds_violation rows x1  104 100" in line for line in lines)


def test_everything_as_json(program, segments):
    program(STORY).failure()
    (path,) = segments.glob("*.ullage")

    document = json.loads(inspect(path, "--json").stdout)

    (segment,) = document["segments"]
    assert document["errors"] == []
    assert segment["alive"] is False
    assert segment["outcome"] == "killed"
    assert segment["buffers"][0]["high_water"] == 104
    assert segment["buffers"][0]["kind"] == "hard"
    assert segment["process"]["steps"] == 1


def test_what_does_not_fit_is_explained_under_the_claims_of_its_contract(program, segments):
    program(DISAGREEMENT).failure()

    lines = inspect(segments).stdout.splitlines()

    first = lines.index("  contract block_table.width: 1 checks, 1 violations")
    claims, sentences = lines[first + 1 : first + 5], lines[first + 5 : first + 7]
    assert [line.split()[1] for line in claims] == ["runner", "builder", "violated:", "violated:"]
    assert sentences[0] == "    No known cause reproduces both numbers from what is recorded."
    assert sentences[1].startswith(f"    {EXPLAINED}")
    assert sentences[1].endswith("blocks are rounded up to a multiple of 128 tokens.")
    assert lines[first + 7] == "  contract size: 0 checks, 0 violations"


def test_explanations_as_json(program, segments):
    program(DISAGREEMENT).failure()

    (segment,) = json.loads(inspect(segments, "--json").stdout)["segments"]

    (contract,) = segment["findings"]
    assert contract == "block_table.width"
    assert segment["findings"][contract][1].startswith(EXPLAINED)


@pytest.mark.parametrize("missing", ["ullage_sidecar.diagnosis", "tomllib"])
def test_where_nothing_can_explain_claims_are_shown_all_the_same(program, segments, missing):
    program(DISAGREEMENT).failure()

    shown = inspect(segments, first=WITHOUT.format(missing))
    (segment,) = json.loads(inspect(segments, "--json", first=WITHOUT.format(missing)).stdout)["segments"]

    assert (shown.returncode, shown.stderr) == (0, "")
    explained = inspect(segments).stdout.splitlines()
    assert shown.stdout.splitlines() == [line for line in explained if not line.startswith("    ")]
    assert segment["findings"] is None


def test_an_explanation_that_fails_costs_no_numbers(program, segments):
    program(DISAGREEMENT).failure()
    failing = "import ullage_sidecar.diagnosis.joined as joined\njoined.explain = None\n"

    shown = inspect(segments, first=failing)
    (segment,) = json.loads(inspect(segments, "--json", first=failing).stdout)["segments"]

    assert shown.returncode == 0
    assert "  contract block_table.width: 1 checks, 1 violations" in shown.stdout.splitlines()
    assert "  no explanation of these claims: it failed" in shown.stdout.splitlines()
    assert segment["findings"] is None
    assert "Likeliest" not in shown.stdout


def test_bad_files_are_named_and_the_others_shown(program, segments):
    program(STORY).failure()
    (segments / "bad.ullage").write_bytes(b"")

    shown = inspect(segments)

    assert shown.returncode == 1
    assert "app0/main" in shown.stdout
    assert f"cannot read {segments / 'bad.ullage'}: the file ends after 0 bytes" in shown.stdout


def test_an_empty_directory_says_what_to_check(segments):
    shown = inspect(segments)

    assert shown.returncode == 1
    assert "no segment" in shown.stdout
    assert "ULLAGE_DIR" in shown.stdout


INSIDE = """
import os, signal
from ullage.host.process import process
from ullage.segment.layout import Phase
process.session.open()
phase = process.session.phase
{code}
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (
            "phase.begin(Phase.EXECUTE, 24, 8)",
            "died inside a step, in execute: 8 requests, 24 tokens, begun 20",
        ),
        (
            "phase.begin(Phase.SCHEDULE); phase.enter(Phase.NONE); phase.batch(24, 8)",
            "died inside a step: 8 requests, 24 tokens, begun 20",
        ),
        ("phase.begin_dummy_run(Phase.PROFILE_RUN)", "died inside profile_run"),
    ],
)
def test_where_a_process_died_is_said(program, segments, code, line):
    program(INSIDE.format(code=code)).failure()

    assert f"  {line}" in inspect(segments).stdout


def test_of_a_process_that_died_between_steps_nothing_of_the_kind_is_said(program, segments):
    code = "phase.begin(Phase.EXECUTE); phase.enter(Phase.NONE); phase.end()"
    program(INSIDE.format(code=code)).failure()

    assert "inside" not in inspect(segments).stdout


def test_a_buffer_that_was_freed_is_marked_and_listed_for_its_counts(program, segments, sidecar):
    one = program(
        "import ullage, sys\n"
        "rows = ullage.buffer('rows', capacity=10, unit='rows'); rows.observe(12); rows.close()\n"
        "print('ready', flush=True); sys.stdin.readline()"
    )
    assert one.line() == "ready"

    shown = subprocess.run(
        [sys.executable, "-m", "ullage_sidecar", "inspect", str(segments)], capture_output=True, text=True, check=True
    ).stdout
    (row,) = sidecar().json("/v1/buffers")["buffers"]

    assert "rows (closed)" in shown
    assert (row["buffer"], row["closed"], row["bounds_violations"]) == ("rows", True, 1)
