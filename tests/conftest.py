"""Fixtures that all tests share."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from harness import ROOT, Program, Sidecar, missing

os.environ["ULLAGE_STRICT"] = "1"
for variable in ("ULLAGE_DIR", "ULLAGE_ENGINE", "ULLAGE_ENGINE_ID", "ULLAGE_DISABLE"):
    os.environ.pop(variable, None)


@pytest.fixture
def segments():
    """An empty directory on tmpfs."""
    path = Path(tempfile.mkdtemp(prefix="ullage-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def program(segments):
    """Start a Program; it is gone at the end of the test."""
    started = []

    def start(code, *arguments, directory=segments, **environment):
        started.append(Program(code, directory, arguments, **environment))
        return started[-1]

    yield start
    for one in started:
        with contextlib.suppress(OSError):
            os.killpg(one.process.pid, signal.SIGKILL)  # with the children it forked
        one.process.communicate(timeout=60)


@pytest.fixture
def sidecar(segments):
    """Start a Sidecar on the segments; it is gone at the end of the test."""
    started = []

    def start(directory=segments, **environment):
        started.append(Sidecar(directory, **environment))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        one.log_file.close()


@pytest.fixture(scope="session")
def promtool():
    """Prometheus' own checker, 2.53."""
    path = ROOT / ".tools/prometheus/usr/bin/promtool"
    if not path.exists():
        missing(f"{path} is not there: see .tools/prometheus.log")
    return path


@pytest.fixture(scope="session")
def prometheus():
    """A real Prometheus, 2.53."""
    path = ROOT / ".tools/prometheus/usr/bin/prometheus"
    if not path.exists():
        missing(f"{path} is not there: see .tools/prometheus.log")
    return path
