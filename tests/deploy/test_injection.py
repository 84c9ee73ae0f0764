"""A folder in ``PYTHONPATH`` is enough: the engine's own environment knows nothing of ullage."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import unmodified
from harness import missing, until

from ullage.segment import reader

ENGINE = Path(__file__).parent / "engine.py"

LOOK = """
import importlib.metadata, json, sys, ullage
plugins = [point for point in importlib.metadata.entry_points(group="vllm.general_plugins") if point.name == "ullage"]
plugins[0].load()()
rows = ullage.buffer("rows", capacity=10, unit="rows")
rows.observe(4)
print(json.dumps({"from": ullage.__file__, "version": ullage.__version__, "plugins": len(plugins),
                  "python": list(sys.version_info[:2]), "python_version": sys.version.split()[0]}))
"""
OWN = """
__version__ = "0.0.1"
raise ImportError("the engine's own ullage was imported")
"""


@pytest.fixture
def engine(engine_python, model, engine_environment, hook_folder, segments, tmp_path):
    """A vLLM whose environment has no ullage, and the folder in its path."""
    variables = {**engine_environment, "PYTHONPATH": str(hook_folder), "ULLAGE_DIR": str(segments)}
    with (tmp_path / "engine.log").open("w+") as log:
        process = subprocess.Popen(
            [engine_python, ENGINE, model], env=unmodified.environment(**variables), stdout=log, stderr=log
        )
        yield process
        process.kill()
        process.wait()


@pytest.mark.engine
def test_a_vllm_without_ullage_loads_the_hook_from_the_folder_and_is_watched(engine, sidecar, tmp_path):
    watching = sidecar()

    def high_water():
        assert engine.poll() is None, (tmp_path / "engine.log").read_text()[-3000:]
        return watching.value("ullage_buffer_high_water_slots", process="vllm0/main", buffer="kv_blocks")

    assert until(high_water, 240, "the first request") == 1
    assert watching.value("ullage_buffer_capacity_slots", process="vllm0/main", buffer="kv_blocks") == 63
    assert watching.value("ullage_hook_errors_total", process="vllm0/main") == 0


def look(python, hook_folder, segments, **variables):
    """Have ``python`` use the hook of the folder; return what it found, and the segment's snapshot."""
    status, out, error = unmodified.run(
        python, LOOK, PYTHONPATH=str(hook_folder), ULLAGE_DIR=str(segments), **variables
    )
    assert (status, error.count("Traceback")) == (0, 0), error
    return json.loads(out)


def other_pythons():
    """Return interpreters of other minor versions, from 3.10 on: those in the path, and pyenv's."""
    names = [f"python3.{minor}" for minor in range(10, 20)]
    found = [shutil.which(name) for name in names]
    found += Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.*/bin/python3")
    versions = {}
    for python in filter(None, found):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            told = subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout
            major, minor = map(int, re.match(r"Python (\d+)\.(\d+)", told).groups())
            if (3, 10) <= (major, minor) != sys.version_info[:2]:
                versions[major, minor] = python
    return versions


def test_another_python_than_that_of_the_copy_uses_it(hook_folder, segments):
    pythons = other_pythons()
    if not pythons:
        missing("there is no Python of another minor version here, from 3.10 on")
    for version, python in pythons.items():
        told = look(python, hook_folder, segments)

        assert tuple(told["python"]) == version
        assert told["from"] == str(hook_folder / "ullage/__init__.py")
        assert told["plugins"] == 1
        written = [reader.read(path) for path in segments.glob("*.ullage")]
        (buffer,) = next(one for one in written if one.identity["python"] == told["python_version"]).buffers
        assert (buffer.name, buffer.used) == ("rows", 4)


def test_an_ullage_that_the_engine_has_already_gives_way_and_there_is_one_hook(hook_folder, segments, tmp_path):
    own = tmp_path / "own"
    (own / "ullage").mkdir(parents=True)
    (own / "ullage/__init__.py").write_text(OWN)
    (own / "ullage-0.0.1.dist-info").mkdir()
    (own / "ullage-0.0.1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: ullage\nVersion: 0.0.1\n")
    shutil.copy(next(hook_folder.glob("*.dist-info")) / "entry_points.txt", own / "ullage-0.0.1.dist-info")

    told = look(sys.executable, f"{hook_folder}:{own}", segments)

    assert told["from"] == str(hook_folder / "ullage/__init__.py")
    assert told["plugins"] == 1
