"""Containers without a Docker engine, an image to run in them, and an engine's environment without ullage.

Images and containers live in ``.tools/containers``: a stand-in under the name of a real base image must not get among
those of whoever runs the tests.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import unmodified
from harness import ROOT, missing

sys.path.insert(0, str(ROOT / "examples"))
import tiny_llama

from ullage_sidecar.install_hook import install_hook

BASE = "python:3.13-slim"
IMAGE = "localhost/ullage:test"
TOOLS = ("buildah", "podman", "runc", "conmon", "catatonit")
STORE = ROOT / ".tools/containers"
# What the real base sets, and the stand-in must: where programs are; and where the certificates of this machine are.
BASE_CHANGES = ("ENV PATH=/usr/local/bin:/usr/bin:/bin", "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt")


class Containers:
    """podman and buildah on a store of their own."""

    def __init__(self):
        self._where = ("--root", STORE / "storage", "--runroot", STORE / "run", "--storage-driver", "overlay")
        self._environment = {
            **os.environ,
            "CONTAINERS_CONF": str(Path(__file__).parent / "containers.conf"),
            "BUILDAH_ISOLATION": "chroot",
        }

    def run(self, program, *arguments, check=True, timeout=300):
        """Run a command; return what it wrote to stdout; without ``check``, its exit status and all it wrote."""
        ran = subprocess.run(
            [program, *self._where, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if not check:
            return ran.returncode, ran.stdout + ran.stderr
        assert ran.returncode == 0, f"{program} {arguments}: {ran.stdout[-3000:]}{ran.stderr[-3000:]}"
        return ran.stdout.strip()

    def podman(self, *arguments, **options):
        """Run podman."""
        return self.run("podman", *arguments, **options)

    @contextlib.contextmanager
    def running(self, *arguments):
        """Have podman run during the block."""
        command = ["podman", *self._where, *arguments]
        with subprocess.Popen(
            command, env=self._environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def pid(self, name):
        """Return the process id of a container's first process, as this machine sees it; 0 if it does not run."""
        return int(self.podman("inspect", "--format", "{{.State.Pid}}", name))


@pytest.fixture(scope="session")
def containers():
    """The tools, or the reason why there are none."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if os.geteuid() or absent:
        missing(f"containers need root and {', '.join(absent) or 'nothing else'}: see .tools/containers.log")
    return Containers()


@pytest.fixture(scope="session")
def base(containers):
    """A stand-in for the base image, under its name."""
    archive = ROOT / ".tools/base.tar"
    if not archive.exists():
        missing(f"{archive} is not there: see .tools/containers.log")
    if containers.podman("image", "exists", f"localhost/{BASE}", check=False)[0]:
        changes = [word for change in BASE_CHANGES for word in ("--change", change)]
        containers.podman("import", "--quiet", *changes, archive, BASE)
    return f"localhost/{BASE}"


@pytest.fixture(scope="session")
def image(containers, base):
    """The image, built from the Dockerfile as it is."""
    containers.run(
        "buildah",
        "bud",
        "--isolation",
        "chroot",
        "--network",
        "host",
        "--pull-never",
        "--tag",
        IMAGE,
        ROOT,
        timeout=240,
    )
    yield IMAGE
    containers.podman("image", "prune", "--force")


@pytest.fixture(scope="session")
def engine_python(tmp_path_factory):
    """The interpreter of an environment that has this one's vLLM, and no ullage."""
    if importlib.util.find_spec("vllm") is None:
        missing("vLLM for CPU is not installed: see .venv/no-engine")
    python = unmodified.make(tmp_path_factory.mktemp("unmodified"))
    status, _, error = unmodified.run(python, "import ullage")
    assert status
    assert "No module named 'ullage'" in error
    return python


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The tiny model."""
    return tiny_llama.make(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def engine_environment():
    """What vLLM needs on a small machine, in one process."""
    return {**tiny_llama.ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


@pytest.fixture(scope="session")
def hook_folder(tmp_path_factory):
    """A folder with the hook, as the init container makes it."""
    folder = tmp_path_factory.mktemp("hook")
    said = install_hook(folder)
    assert "is in" in said
    return folder
