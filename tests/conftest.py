"""Fixtures that all tests share."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from harness import ROOT, Program, Release, Sidecar, missing

MIN_FAULTS = 40
FAULTS = pytest.StashKey()
RELIABILITY = """# Reliability

What the hook, the segment and the sidecar survive. Written by the test run (`make reliability`), never by hand: a line
for each kind of fault, how often it was tried, and in how many tries the test found host and data as they must be; a
try in which it did not counts as lost. Then what the user sees. The counts are those of `make test`. {kinds} kinds.

| fault | tried | survived | lost | the user sees |
|---|---|---|---|---|
{rows}
"""

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
        one.end()


@pytest.fixture
def sidecar(segments):
    """Start a Sidecar on the segments; it is gone at the end of the test."""
    started = []

    def start(directory=segments, **environment):
        started.append(Sidecar(directory, **environment))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture(scope="session")
def prometheuses():
    """Every release of Prometheus that is here, oldest first: 2.53, and 3 unless Debian's sid did not have it."""
    old, new = (Release.of(ROOT / ".tools" / name / "usr/bin") for name in ("prometheus", "prometheus-next"))
    if old is None:
        missing("no Prometheus 2.53 in .tools: see .tools/prometheus.log")
    return [old] if new is None else [old, new]


@pytest.fixture(scope="session", params=[2, 3])
def release(request, prometheuses):
    """A Prometheus; each test that asks for it runs with 2.53 and with 3."""
    for one in prometheuses:
        if one.version.startswith(f"{request.param}."):
            return one
    # Also with CI=true: sid moves daily, and what it has today may not unpack here.
    return pytest.skip("NO PROMETHEUS 3 in .tools, tested with 2.53 alone: see .tools/prometheus-next.log")


@pytest.fixture(scope="session")
def promtool(prometheuses):
    """Prometheus' own checker, 2.53."""
    return prometheuses[0].promtool


@pytest.fixture(scope="session")
def prometheus(prometheuses):
    """A real Prometheus, 2.53."""
    return prometheuses[0].prometheus


@pytest.fixture
def tried(request):
    """Say how often a test tried its fault; once, unless it says so."""

    def say(times):
        request.node.user_properties.append(("tried", times))

    return say


def pytest_configure(config):
    config.stash[FAULTS] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    marker = item.get_closest_marker("fault")
    if marker is not None and call.when == "call" and not report.skipped:
        faults = item.config.stash[FAULTS]
        kind = marker.args[0]
        times = dict(item.user_properties).get("tried", 1)
        before = faults.get(kind, (0, 0, marker.kwargs["sees"]))
        faults[kind] = (before[0] + times, before[1] + (times if report.passed else 0), before[2])
    return report


def pytest_sessionfinish(session):
    faults = session.config.stash[FAULTS]
    if len(faults) >= MIN_FAULTS and os.environ.get("ULLAGE_WRITE_RELIABILITY") == "1":
        lines = [
            f"| {kind} | {times:,} | {survived:,} | {times - survived:,} | {sees} |"
            for kind, (times, survived, sees) in sorted(faults.items())
        ]
        (ROOT / "docs/reliability.md").write_text(RELIABILITY.format(kinds=len(faults), rows="\n".join(lines)))
