"""Fixtures that all tests share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from harness import ROOT, Program, Release, Sidecar, missing

from ullage_sidecar.install_hook import install_hook

MIN_FAULTS = 40
FAULTS = pytest.StashKey()
RELIABILITY = """# Reliability

The faults that the hook, the segment format and the sidecar are tested against: {kinds} kinds, {inputs} inputs. The
test run writes this page (`make reliability`); do not edit it. A test fails if a single input harms the host process,
loses stored data, or stops the sidecar from serving the other processes.

*Inputs* is the number of inputs that one run of `make test` tries. *Repaired* is how many of them are mutated segments
whose header and record checksums are valid, so that the reader has to judge the values and not only the checksum.
`make test-long` tries ten times as many of these in the reader, and four times as many in the application.

| fault | inputs | repaired | the user sees |
|---|---:|---:|---|
{rows}

## Known and not defended

* **Changing a live segment in place.** A process that truncates a live segment ends its writer with SIGBUS at the next
  store into the missing pages. A process that overwrites one replaces the recorded values. Never truncate a file in the
  segment directory, and never copy onto one with `rsync --inplace`, `cp` or `dd`; deleting it is safe.
* **Forged values.** Every process that can write to the segment directory can publish a segment with plausible numbers
  of its own, use the name of another process, or delete the segments of others. Checksums detect damage; they do not
  authenticate the writer. Mount the directory only in the containers of the pod, and read-only in the sidecar.
* **A full volume.** The hook allocates its segment before it uses it and turns itself off if the volume is full. A
  process that fills the volume first keeps later processes from being watched.
* **Thousands of segments.** The sidecar reads at most {files} segments: those of live processes, then the newest. At
  start, the hook examines old segments for at most {budget} s: a crowded directory is cleaned over several starts.
* **A lock that the host gives up.** A process that closes all its descriptors, as a daemon does, loses the lock of its
  segment. The sidecar shows it as running with `lock_lost` while its counters move; a hook that starts later can remove
  its segment. Import ullage after that.
* **An engine that never starts.** A process that ends before it opens a segment leaves no trace in the directory.
* **A kernel or node failure.** The segment lives on tmpfs: it survives its process, not the node.
"""

os.environ["ULLAGE_STRICT"] = "1"
for variable in ("ULLAGE_DIR", "ULLAGE_ENGINE", "ULLAGE_ENGINE_ID", "ULLAGE_DISABLE"):
    os.environ.pop(variable, None)
os.environ.pop("PYTHONUNBUFFERED", None)  # lines of two processes on one pipe would mix in the middle


@pytest.fixture
def segments():
    """An empty directory on tmpfs."""
    path = Path(tempfile.mkdtemp(prefix="ullage-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def installation(tmp_path_factory):
    """A directory for ``PYTHONPATH`` with the wheel's contents: both packages and the metadata of this source."""
    target, packed = tmp_path_factory.mktemp("installation"), tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(packed)]
    subprocess.run(build, check=True, cwd=ROOT, capture_output=True)
    (wheel,) = packed.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(target)
    return target


@pytest.fixture
def hook_alone(tmp_path):
    """A directory for ``PYTHONPATH`` with what ``ullage install-hook`` copies into an engine's container."""
    install_hook(tmp_path / "hook")
    return tmp_path / "hook"


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


@pytest.fixture(params=[2, 3])
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
    """Say how many inputs a test tried (1 by default), and how many of them had repaired checksums."""

    def say(times, repaired=0):
        request.node.user_properties += [("tried", times), ("repaired", repaired)]

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
        said = dict(item.user_properties)
        times, repaired, _ = faults.get(kind, (0, 0, ""))
        faults[kind] = (times + said.get("tried", 1), repaired + said.get("repaired", 0), marker.kwargs["sees"])
    return report


def pytest_sessionfinish(session):
    faults = session.config.stash[FAULTS]
    if len(faults) >= MIN_FAULTS and os.environ.get("ULLAGE_WRITE_RELIABILITY") == "1":
        lines = [
            f"| {kind} | {times:,} | {f'{repaired:,}' if repaired else ''} | {sees} |"
            for kind, (times, repaired, sees) in sorted(faults.items())
        ]
        inputs = f"{sum(times for times, _, _ in faults.values()):,}"
        from ullage.segment import sweep
        from ullage_sidecar import discovery

        limits = {"files": discovery.MAX_FILES, "budget": sweep.BUDGET_S}
        page = RELIABILITY.format(kinds=len(faults), inputs=inputs, rows="\n".join(lines), **limits)
        (ROOT / "docs/reliability.md").write_text(page)
