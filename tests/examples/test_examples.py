"""The examples do what they say, and the demo leaves nothing running."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from harness import ROOT, until

from ullage.segment import reader
from ullage_sidecar.diagnosis.joined import joined

EXAMPLES = ROOT / "examples"


@pytest.fixture
def demo(monkeypatch):
    """The demo as a module, with shorter times."""
    monkeypatch.syspath_prepend(EXAMPLES)
    spec = importlib.util.spec_from_file_location("demo", EXAMPLES / "demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "LOAD_S", 5)
    monkeypatch.setattr(module, "AFTER_S", 5)
    return module


def test_the_ragged_loop_crosses_its_line_and_comes_back(segments, sidecar):
    watching = sidecar(ULLAGE_CLEAR_HOLD="1s")
    environment = {**os.environ, "ULLAGE_DIR": str(segments)}
    loop = subprocess.Popen([sys.executable, str(EXAMPLES / "ragged_batches.py"), "--seconds", "8"], env=environment)

    until(lambda: watching.warnings().get(("draft_rows", "near_capacity")) == "warning")
    until(lambda: watching.warnings().get(("draft_rows", "bounds_violation")) == "critical")
    until(lambda: ("draft_rows", "near_capacity") not in watching.warnings())

    assert loop.wait(timeout=60) == 0
    assert watching.states() == {"app0/main": "stopped"}


def test_without_vllm_the_demo_says_so_and_shows_the_loop(demo, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)

    assert demo.main() == 0

    shown = capsys.readouterr().out
    assert "no vLLM: its wheel for CPU cannot be installed here" in shown
    assert "raised   warning  near_capacity app0/main draft_rows" in shown
    assert "cleared  warning  near_capacity app0/main draft_rows" in shown
    assert "curl -s http://127.0.0.1:" in shown
    assert _processes_of("ullage-demo-") == []


def test_ctrl_c_ends_the_demo_with_all_that_it_started():
    running = subprocess.Popen(
        [sys.executable, "-u", str(EXAMPLES / "demo.py")], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    lines = iter(running.stdout.readline, "")
    directory = next(line for line in lines if line.startswith("1. ")).split()[-1]
    next(line for line in lines if "curl" in line)
    assert _processes_of(directory)

    running.send_signal(signal.SIGINT)
    out = running.communicate(timeout=60)[0]

    assert "ended on request" in out
    assert running.returncode == 130
    assert _processes_of(directory) == []
    assert not Path(directory).exists()


def _processes_of(directory):
    """The processes that were started with ULLAGE_DIR in that directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
        except OSError:
            continue
        if directory.encode() in environment and b"ULLAGE_CLEAR_HOLD=3s" in environment:
            found.append(process.name)
    return found


def test_two_formulas_are_caught_at_the_claim(segments):
    environment = {**os.environ, "ULLAGE_DIR": str(segments)}
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / "two_formulas.py")], capture_output=True, text=True, env=environment, check=True
    )

    assert "refused: the kernel would read beyond what the planner has" in ran.stdout
    lines = ran.stderr.strip().splitlines()
    assert lines[0] == "claims on scheduler_metadata disagree: planner (256,), kernel (512,)"
    assert len((EXAMPLES / "two_formulas.py").read_text().splitlines()) < 60
    (path,) = segments.glob("*.ullage")
    (contract,) = joined([("", reader.read(path).claims)])
    ((_, finding),) = contract.findings()
    assert finding.rivals[0].rule == "other formula"
    assert "kernel has max_model_len // 16 = 512" in finding.text


def test_without_the_claim_the_two_formulas_crash(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import two_formulas

    import ullage

    size = ullage.Contract("scheduler_metadata", relation=">=")
    planner, kernel = two_formulas.Planner(size), two_formulas.Kernel(size)

    with pytest.raises(IndexError):
        kernel.run(planner.metadata)
