"""A disk that is full, read-only or not there: the engine is unharmed, and one line says why nothing is seen."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from harness import missing

USE = """
import ullage
rows = ullage.buffer("rows", capacity=10, unit="rows")
other = ullage.buffer("other", capacity=10, unit="rows")
for used in (1, 9, 11):
    rows.observe(used)
rows.resize(20); rows.exhausted(); rows.deferred(); ullage.step(); rows.close()
print("unharmed")
"""


def run(directory, code=USE, *, before=()):
    """Run a program that uses ullage; return its output and the lines that it logged."""
    command = [*before, sys.executable, "-c", code]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "ULLAGE_DIR": str(directory)},
    )
    return ran.stdout.strip(), ran.stderr.strip().splitlines()


@pytest.mark.fault("a full tmpfs", sees="one log line")
def test_a_full_file_system(tmp_path):
    script = (
        f'mount -t tmpfs -o size=256k tmpfs "{tmp_path}" && exec "$@" && umount "{tmp_path}"'
        if os.geteuid() == 0
        else f'mount -t tmpfs -o size=256k tmpfs "{tmp_path}" && exec "$@"'
    )
    before = ["unshare", "--mount" if os.geteuid() == 0 else "-rm", "sh", "-c", script, "sh"]
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        missing("a tmpfs of a given size cannot be mounted here")

    out, log = run(tmp_path, USE + f"import os; print(os.listdir({str(tmp_path)!r}))", before=before)

    assert out.splitlines() == ["unharmed", "[]"]
    assert len(log) == 1
    assert "No space left on device" in log[0]
    assert "ULLAGE_DIR" in log[0]


@pytest.mark.fault("a missing directory", sees="one log line")
def test_a_missing_directory(tmp_path):
    out, log = run(tmp_path / "nowhere")

    assert out == "unharmed"
    assert len(log) == 1
    assert "No such file or directory" in log[0]
    assert "nowhere" in log[0]


@pytest.mark.fault("a read-only directory", sees="one log line")
def test_a_read_only_directory(tmp_path):
    tmp_path.chmod(0o555)
    before = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    if os.geteuid() == 0:
        if subprocess.run(
            [*before, sys.executable, "-c", "import ullage"], capture_output=True, check=False
        ).returncode:
            # Another user cannot read this installation: a read-only mount is as good.
            script = f'mount -t tmpfs -o ro tmpfs "{tmp_path}" && exec "$@"'
            before = ["unshare", "--mount", "sh", "-c", script, "sh"]
            if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
                missing("neither another user nor a read-only mount can be had here")
    else:
        before = []

    out, log = run(tmp_path, before=before)

    assert out == "unharmed"
    assert len(log) == 1
    assert "Permission denied" in log[0] or "Read-only file system" in log[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.fault("a file where the directory should be", sees="one log line")
def test_a_directory_that_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.touch()

    out, log = run(path)

    assert out == "unharmed"
    assert len(log) == 1


@pytest.mark.fault("a directory on a disk", sees="one log line, and everything")
def test_a_directory_on_a_disk_works_and_is_named_once(tmp_path):
    out, log = run(tmp_path)

    assert out == "unharmed"
    if log:  # a machine may have nothing but memory
        assert len(log) == 1
        assert "not tmpfs" in log[0] or "use a tmpfs" in log[0]


@pytest.mark.fault("a host without descriptors", sees="one log line")
@pytest.mark.parametrize("limit", [3, 4, 5, 6, 8])
def test_no_descriptor_left(segments, limit):
    code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n" + USE

    out, log = run(segments, "import ullage.recording.buffers\n" + code)

    assert out == "unharmed"
    assert len(log) <= 1
    assert [path for path in segments.iterdir() if path.name.endswith(".tmp")] == []
