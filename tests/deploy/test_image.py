"""The image: what is in it, and that it runs as nobody in particular, on a root that it cannot write to."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path

import pytest
from harness import until

import ullage

pytestmark = pytest.mark.timeout(300)  # the first test builds the image
MAX_BYTES_BEYOND_BASE = 150_000_000
HARDENED = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges")


@pytest.fixture
def shared(segments):
    """A directory as the kubelet makes a volume: on tmpfs, open to all."""
    segments.chmod(0o777)
    return segments


@pytest.fixture
def started(containers, image, shared):
    """A container of the image on this machine's network; its name and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    name = f"ullage-test-{port}"
    volume = ("--volume", f"{shared}:/run/ullage:ro", "--env", f"ULLAGE_PORT={port}")
    command = (image, "serve", "--host", "127.0.0.1")
    containers.podman("run", "--detach", "--name", name, "--network", "host", *HARDENED, *volume, *command)
    yield name, port
    containers.podman("rm", "--force", name)


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as response:
            return response.read().decode()
    except OSError:
        return ""


def test_it_says_what_it_is_and_whom_it_runs_as(containers, image):
    (told,) = json.loads(containers.podman("image", "inspect", image))

    config = told["Config"]
    assert (config["User"], config["Entrypoint"]) == ("65532:65532", ["ullage"])
    assert config["Cmd"] == ["serve", "--host", "0.0.0.0"]
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in config["Labels"].items()}
    assert (labels["title"], labels["version"], labels["licenses"]) == ("ullage", ullage.__version__, "Apache-2.0")


def test_it_is_small(containers, image, base):
    size, base_size = (json.loads(containers.podman("image", "inspect", name))[0]["Size"] for name in (image, base))

    assert 0 < size - base_size < MAX_BYTES_BEYOND_BASE


def test_it_serves_as_nobody_on_a_root_that_it_cannot_write_to_and_ends_on_sigterm(
    containers, started, program, shared
):
    name, port = started
    rows = program("import ullage, sys; ullage.buffer('rows', capacity=9, unit='rows').observe(4); sys.stdin.read()")
    until(lambda: get(port, "/readyz"), 60, "its answer")

    until(lambda: 'ullage_buffer_used_slots{buffer="rows",process="app0/main"} 4.0' in get(port, "/metrics"))
    pid = containers.pid(name)
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    assert status["Uid"].split() == status["Gid"].split() == ["65532"] * 4
    assert int(status["CapEff"], 16) == 0
    assert Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"/venv/bin/python\0/venv/bin/ullage\0serve\0")
    for place in ("/tmp/x", "/venv/x", "/run/ullage/x"):
        _, said = containers.podman("exec", name, "python", "-c", f"open('{place}', 'w')", check=False)
        assert "Read-only file system" in said
    rows.kill()
    until(lambda: '{process="app0/main",ullage_process_state="killed"} 1.0' in get(port, "/metrics"))

    containers.podman("stop", "--time", "30", name)

    assert containers.podman("inspect", "--format", "{{.State.ExitCode}}", name) == "0"


def test_the_same_image_installs_the_hook(containers, image, shared):
    command = ("run", "--rm", *HARDENED, "--volume", f"{shared}:/opt/ullage", image, "install-hook", "/opt/ullage")

    first, second = containers.podman(*command), containers.podman(*command)

    assert first == f"ullage install-hook: ullage {ullage.__version__} is in /opt/ullage"
    assert second.endswith("already")
    assert (shared / "ullage/__init__.py").stat().st_uid == 65532
    assert not list(shared.rglob("__pycache__"))


def test_without_a_volume_it_says_so_and_holds_nobody_up(containers, image):
    status, said = containers.podman("run", "--rm", *HARDENED, image, "install-hook", "/opt/ullage", check=False)

    assert status == 0
    assert "nothing was copied to /opt/ullage: Read-only file system" in said
