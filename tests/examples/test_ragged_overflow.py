"""A plain buffer corrupts its neighbour or crashes, a guarded one names the write, a growing one fits."""

from __future__ import annotations

import re
import subprocess
import sys

from harness import ROOT, missing

EXAMPLE = ROOT / "examples" / "ragged_overflow.py"


def test_a_neighbour_is_corrupted_unless_the_write_is_guarded():
    ran = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False)
    if "No module named 'torch'" in ran.stderr:
        missing("torch is not installed")
    assert ran.returncode == 0, ran.stderr
    out = ran.stdout

    corrupted = set(re.findall(r"plain: batch (\d+) changed [1-8] rows of its neighbour, and nobody noticed", out))
    crashed = set(re.findall(r"plain: batch (\d+) crashed: The expanded size of the tensor", out))
    refused = set(re.findall(r"guarded: batch (\d+) was refused: draft_rows: index \d+ at position \d+ of \d+ is", out))
    assert corrupted
    assert crashed
    assert 0 < len(refused) < 40
    assert refused <= corrupted | crashed
    assert "growing: all batches fit; 1 growth, " in out
    assert len(EXAMPLE.read_text().splitlines()) < 60
