"""``ullage install-hook``: whole or not at all, the same twice, and never a reason for a pod not to start."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import subprocess
import sys
import threading
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from harness import LONG, missing

import ullage
from ullage_sidecar.install_hook import install_hook

INFO = f"ullage-{ullage.__version__}.dist-info"


def install(folder):
    """Install; return what it said, in one line."""
    said = install_hook(folder)
    assert "\n" not in said
    return said


def files(folder):
    return {str(path.relative_to(folder)) for top in ("ullage", INFO) for path in walk(folder / top)}


def walk(folder):
    return [Path(directory, name) for directory, _, names in os.walk(folder) for name in names]


def test_what_is_there_is_the_package_with_true_metadata_of_its_own(tmp_path):
    said = install(tmp_path)

    assert f"ullage {ullage.__version__} is in {tmp_path}" in said
    source = Path(ullage.__file__).parent
    expected = {f"ullage/{path.relative_to(source)}" for path in walk(source) if path.suffix != ".pyc"}
    assert {name for name in files(tmp_path) if name.startswith("ullage/")} == expected
    described = PathDistribution(tmp_path / INFO)
    assert (described.name, described.version) == ("ullage", ullage.__version__)
    assert [(point.group, point.value) for point in described.entry_points] == [
        ("vllm.general_plugins", "ullage.engines.vllm:register")
    ]
    assert described.requires is None
    assert "Apache License" in described.read_text("licenses/LICENSE")
    recorded = {name: (digest, size) for name, digest, size in csv.reader(described.read_text("RECORD").splitlines())}
    assert set(recorded) == files(tmp_path)
    for name, (digest, size) in recorded.items():
        if not name.endswith("RECORD"):
            content = (tmp_path / name).read_bytes()
            sha = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={sha}", len(content))


def test_everybody_may_read_it_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        install(tmp_path / "made")
    finally:
        os.umask(before)

    for path in (tmp_path / "made").rglob("*"):
        mode = path.stat().st_mode & 0o777
        assert mode == (0o755 if path.is_dir() else 0o644), path


def test_twice_is_once(tmp_path):
    install(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in walk(tmp_path)}

    said = install(tmp_path)

    assert "already" in said
    assert {path: path.stat().st_mtime_ns for path in walk(tmp_path)} == before


def older(folder, *, links):
    """Put an older version there: as we do, or as pip would."""
    if links:
        install(folder)
        (folder / INFO).rename(folder / "ullage-0.0.9.dist-info")
        (folder / "ullage/__init__.py").write_text("__version__ = '0.0.9'\n")
    else:
        (folder / "ullage").mkdir()
        (folder / "ullage/__init__.py").write_text("__version__ = '0.0.9'\n")
        (folder / "ullage-0.0.9.dist-info").mkdir()
        (folder / "ullage-0.0.9.dist-info/METADATA").write_text("Name: ullage\nVersion: 0.0.9\n")


@pytest.mark.parametrize("links", [True, False])
def test_an_older_version_is_replaced_and_nothing_of_it_is_left(tmp_path, links):
    older(tmp_path, links=links)
    (tmp_path / "other").touch()

    said = install(tmp_path)

    assert "instead of ullage-0.0.9" in said
    assert f'__version__ = "{ullage.__version__}"' in (tmp_path / "ullage/__init__.py").read_text()
    visible = sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("."))
    assert visible == ["other", "ullage", INFO]
    assert len([path for path in tmp_path.iterdir() if path.name.startswith(".")]) == 1


def test_a_file_that_was_changed_is_mended(tmp_path):
    install(tmp_path)
    (tmp_path / "ullage/host/session.py").write_text("broken")

    assert "already" not in install(tmp_path)

    assert (tmp_path / "ullage/host/session.py").read_bytes() == (
        Path(ullage.__file__).parent / "host/session.py"
    ).read_bytes()


def test_what_a_killed_copy_left_is_removed(tmp_path):
    left = tmp_path / ".ullage-00000000/ullage"
    left.mkdir(parents=True)
    (left / "__init__.py").touch()

    install(tmp_path)

    assert not left.exists()


def test_an_import_meanwhile_finds_a_whole_package(tmp_path):
    install(tmp_path)
    seen, over = [], threading.Event()
    wanted = len(files(tmp_path))

    def read():
        while not over.is_set():
            seen.append((tmp_path / "ullage/__init__.py").exists() and (tmp_path / INFO / "METADATA").exists())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(200 if LONG else 20):
        (tmp_path / "ullage/host/session.py").write_text("broken")
        install(tmp_path)
    over.set()
    reader.join()

    assert all(seen)
    assert len(seen) > 100
    assert len(files(tmp_path)) == wanted


# -- never a reason not to start ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], ["--wrong"], ["/proc/nowhere"], ["/dev/null"], ["a", "b"]])
def test_whatever_is_wrong_it_ends_with_0_and_says_what(arguments):
    ran = subprocess.run(
        [sys.executable, "-m", "ullage_sidecar", "install-hook", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0
    assert "Traceback" not in ran.stderr
    said = ran.stdout or ran.stderr
    assert "nothing was copied" in said or "error" in said


def test_other_commands_still_refuse_wrong_arguments():
    ran = subprocess.run([sys.executable, "-m", "ullage_sidecar", "inspect"], capture_output=True, check=False)

    assert ran.returncode == 2


@pytest.mark.fault("install-hook on a full or read-only volume", sees="one log line; the pod starts, not watched")
@pytest.mark.parametrize(
    ("option", "reason"), [("size=64k", "No space left on device"), ("ro", "Read-only file system")]
)
def test_a_volume_that_takes_nothing(tmp_path, option, reason):
    script = f'mount -t tmpfs -o {option} tmpfs "{tmp_path}" && "$@"; echo "status $?"; ls -A "{tmp_path}"'
    unshare = ["unshare", "--mount" if os.geteuid() == 0 else "-rm", "sh", "-c", script, "sh"]
    if b"status 0" not in subprocess.run([*unshare, "true"], capture_output=True, check=False).stdout:
        missing("a tmpfs cannot be mounted here")

    ran = subprocess.run(
        [*unshare, sys.executable, "-m", "ullage_sidecar", "install-hook", tmp_path],
        capture_output=True,
        text=True,
        check=True,
    )

    assert reason in ran.stdout
    assert ran.stdout.splitlines()[-1] == "status 0"  # and nothing is left


def test_without_anybody_to_read_what_it_says(tmp_path):
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "ullage_sidecar", "install-hook", tmp_path], stdout=full, check=False
        )

    assert ran.returncode == 0
    assert (tmp_path / "ullage").is_dir()
