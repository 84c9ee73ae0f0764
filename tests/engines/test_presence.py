"""The tables in docs/engines.md, against the vLLM that is installed; and what looks it up, against a made-up one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from harness import ROOT

sys.path.insert(0, str(ROOT / "tests/tools"))
import presence

INSTALLED = "0.32.0"


@pytest.fixture(scope="module")
def installed():
    """The release that is installed, as files."""
    package = Path(importlib.util.find_spec("vllm").origin).parent
    return presence.Release(INSTALLED, package.parent)


def documented(version):
    """The column of a version in all tables: {name: what it says}."""
    found, header = {}, []
    for line in presence.DOCUMENT.read_text().partition(presence.BEGIN)[2].splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if line.startswith("|") and version in cells:
            header = cells
        elif line.startswith("| `"):
            found[cells[0]] = cells[header.index(version)]
    return found


def test_the_tables_say_what_is_installed(installed):
    looked_up = {**presence.functions(installed), **presence.attributes(installed), **presence.tensors(installed)}

    assert len(looked_up) > 80
    assert documented(INSTALLED) == looked_up


def test_whatever_a_hook_of_this_version_wants_is_there(installed):
    assert "no" not in presence.functions(installed).values()
    assert "no" not in presence.attributes(installed).values()


def test_at_least_three_other_versions_were_looked_up():
    header = next(line for line in presence.DOCUMENT.read_text().splitlines() if line.startswith("| function"))

    assert {"0.22.1", "0.27.1", "0.33.0"} <= {cell.strip() for cell in header.split("|")}


def test_what_a_release_lacks_is_missed_and_what_a_base_class_has_is_found(tmp_path):
    package = tmp_path / "vllm/v1/worker"
    package.mkdir(parents=True)
    (package / "base.py").write_text("class Base:\n    def __init__(self):\n        self.rows: int = 1\n")
    (package / "runner.py").write_text(
        "from vllm.v1.worker.base import Base\nclass Runner(Base):\n    def execute(self): pass\n"
    )
    release = presence.Release("0.22.1", tmp_path)

    assert release.has("vllm.v1.worker.runner:Runner.execute")
    assert release.has("vllm.v1.worker.runner:Runner.rows")
    assert not release.has("vllm.v1.worker.runner:Runner.sample")
    assert not release.has("vllm.v1.worker.gone:Runner.execute")
