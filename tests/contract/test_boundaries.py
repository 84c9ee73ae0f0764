"""What may know what, and where the packages come from. The layers are import-linter's, in ``make lint``."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import grimp
import pytest
from harness import ROOT, missing

import ullage

PYTHONS = ["3.10", "3.12", "3.13"]

# Everything that the hook does, on the standard library of whatever Python runs it.
SELF_CHECK = """
import json, os, sys, threading
import ullage
rows = ullage.buffer("rows", capacity=1000, unit="rows")
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=lambda: [rows.observe(n) for n in range(1001)]) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
rows.resize(2000); rows.exhausted(); ullage.step()
from ullage.host.process import process
from ullage.segment import reader
path = process.session.open().path
child = os.fork()
if child == 0:
    rows.observe(1500)
    (seen,) = reader.read(process.session.open().path).buffers
    os._exit(0 if (seen.observations, seen.used, seen.capacity) == (1, 1500, 2000) else 1)
status = os.waitpid(child, 0)[1]
(seen,) = reader.read(path).buffers
from ullage.engines.vllm import register
register()
from ullage_sidecar.cli import main
main(["inspect", os.environ["ULLAGE_DIR"]])
print(json.dumps([status, seen.observations, seen.high_water, seen.grows, seen.exhaustions]))
"""


def test_diagnosis_and_formulas_import_the_comparison_of_claims_and_each_other_alone():
    graph = grimp.build_graph("ullage", "ullage_sidecar", exclude_type_checking_imports=True, cache_dir=None)
    packages = {"ullage_sidecar.diagnosis", "ullage_sidecar.formulas"}
    pure = packages.union(*map(graph.find_descendants, packages))

    imported = set().union(*map(graph.find_modules_directly_imported_by, pure))

    assert imported - pure == {"ullage.segment.agreement"}


def test_the_source_roots_are_no_packages():
    for root in ("instrumentation", "service"):
        assert not (ROOT / root / "__init__.py").exists()


def test_the_distribution_has_no_dependencies_of_its_own():
    required = metadata.requires("ullage") or []

    assert [line for line in required if "extra ==" not in line] == []
    assert metadata.version("ullage") == ullage.__version__


def test_the_wheel_holds_both_packages_and_nothing_else(installation):
    assert {path.name for path in installation.iterdir()} == {
        "ullage",
        "ullage_sidecar",
        f"ullage-{ullage.__version__}.dist-info",
    }
    assert (installation / "ullage/py.typed").exists()
    assert (installation / "ullage_sidecar/formulas/limits.toml").exists()


@pytest.mark.parametrize("version", PYTHONS)
def test_the_hook_runs_on_every_supported_python(segments, version):
    python = _python(version)
    ran = subprocess.run(
        [python, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", SELF_CHECK],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={
            "PATH": os.environ["PATH"],
            "ULLAGE_DIR": str(segments),
            "ULLAGE_STRICT": "1",
            "PYTHONPATH": f"{ROOT / 'instrumentation'}:{ROOT / 'service'}",
        },
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "[0, 4004, 1000, 1, 1]"
    assert "app0/main  running" in ran.stdout


def _python(version):
    """Find another Python: on the path, or beside the one that runs the tests."""
    beside = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python"))
    for found in (*map(str, beside), shutil.which(f"python{version}")):
        if found and not subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode:
            return found
    return missing(f"Python {version} is not installed")


def test_no_module_is_longer_than_one_job_needs():
    for path in [*(ROOT / "instrumentation").rglob("*.py"), *(ROOT / "service").rglob("*.py")]:
        assert len(path.read_text().splitlines()) <= 400, f"{path} has more than one job"


def test_no_function_is_longer_than_a_screen():
    for path in [*(ROOT / "instrumentation").rglob("*.py"), *(ROOT / "service").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                assert node.end_lineno - node.lineno < 80, f"{path}: {node.name}"


def test_no_folder_of_the_hook_has_more_than_ten_modules():
    root = ROOT / "instrumentation/ullage"
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(modules) <= 10, f"{folder} has {len(modules)} modules"
