"""A pod made of our fragment, run by podman: an engine whose image knows nothing of ullage, the hook, the sidecar.

podman 4.3 is no kubelet. What it cannot do is done for it here, and only that (``for_podman``):

* it takes a native sidecar (an init container that stays) for one that must end: it becomes a plain container;
* with ``restartPolicy: Always`` it restarts init containers that ended well: ``OnFailure``;
* its ``emptyDir`` is a directory of root on a disk: a directory on tmpfs, open to all, as the kubelet makes one;
* it knows no ``metadata.namespace``, and its ports and probes are not the kubelet's: they are left out.

The pod has a network of its own, with nothing but the loopback interface: Prometheus runs in it, too.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import urllib.parse
from pathlib import Path

import pytest
import yaml
from harness import ROOT, until
from prometheus_client.parser import text_string_to_metric_families

from ullage.segment import reader

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

FRAGMENT = ROOT / "deploy/fragment.yaml"
ENGINE_IMAGE = "localhost/engine:test"
ENGINE = Path(__file__).parent / "engine.py"
POD = "served"
SIDECAR = "http://127.0.0.1:9877"
NATIVE_ONLY = ("restartPolicy", "ports", "livenessProbe")


def for_podman(fragment, image, directory, engine):
    """Return the fragment as a pod that podman can run; ``engine`` is what the fragment says nothing of."""
    spec = fragment["spec"]
    for container in spec["initContainers"]:
        container["image"] = image
        container["env"] = [entry for entry in container.get("env", []) if "value" in entry]
    sidecars = [one for one in spec["initContainers"] if one.get("restartPolicy") == "Always"]
    (copying,) = (one for one in spec["initContainers"] if one not in sidecars)
    plain = [{key: value for key, value in one.items() if key not in NATIVE_ONLY} for one in sidecars]
    (vllm,) = spec["containers"]
    volumes = []
    for volume in spec["volumes"]:
        path = directory / volume["name"]
        path.mkdir()
        path.chmod(0o777)
        volumes.append({"name": volume["name"], "hostPath": {"path": str(path), "type": "Directory"}})
    vllm |= {
        "image": engine["image"],
        "command": engine["command"],
        "env": [*vllm["env"], *engine["env"]],
        "volumeMounts": [*vllm["volumeMounts"], *engine["volumeMounts"]],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD, **fragment["metadata"]},
        "spec": {
            "restartPolicy": "OnFailure",
            "initContainers": [copying],
            "containers": [vllm, *plain],
            "volumes": [*volumes, *engine["volumes"]],
        },
    }


@pytest.fixture(scope="module")
def engine(containers, engine_python, model, engine_environment):
    """An engine's container: this machine's system and Python, read-only, with its vLLM; ullage is nowhere in it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in ("bin", "sbin", "lib", "lib64"):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(link)
    path = model.parent / "engine.tar"
    path.write_bytes(made.getvalue())
    containers.podman("import", "--quiet", "--change", "ENV PATH=/usr/bin", path, ENGINE_IMAGE)
    mounts = {
        "usr": "/usr",
        "python": sys.base_prefix,
        "site": sysconfig.get_path("purelib"),
        "environment": str(engine_python.parent.parent),
        "model": str(model),
        "tests": str(ENGINE.parent),
        "examples": str(ROOT / "examples"),
    }
    return {
        "image": ENGINE_IMAGE,
        "command": [str(engine_python), str(ENGINE), str(model)],
        "env": [{"name": name, "value": value} for name, value in {**engine_environment, "HOME": "/tmp"}.items()],
        "volumeMounts": [{"name": name, "mountPath": path, "readOnly": True} for name, path in mounts.items()],
        "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in mounts.items()],
    }


class Pod:
    """The pod as it runs."""

    def __init__(self, containers, directory, python):
        self.containers = containers
        self._python = python
        self.segments = directory / "ullage"
        self._network = f"/proc/{containers.pid(self.name('ullage'))}/ns/net"

    def name(self, container):
        """Return the name that podman gives a container."""
        return f"{POD}-{container}"

    def run(self, container, code, **variables):
        """Run Python code in a container; return its exit status, and all it wrote."""
        options = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        command = (self.python(container), "-c", code)
        return self.containers.podman("exec", *options, self.name(container), *command, check=False)

    def python(self, container):
        """Return a container's interpreter."""
        return self._python if container == "vllm" else "python"

    def inside(self, *command):
        """Return a command that runs in the network of the pod."""
        return ["nsenter", f"--net={self._network}", *map(str, command)]

    def get(self, url):
        """Return a page, as seen from inside the pod; empty if there is no answer."""
        fetch = f"import urllib.request; print(urllib.request.urlopen({url!r}, timeout=20).read().decode())"
        command = self.inside(sys.executable, "-S", "-c", fetch)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout

    def value(self, name, **labels):
        """Scrape one sample of the sidecar; None if there is none."""
        families = text_string_to_metric_families(self.get(f"{SIDECAR}/metrics"))
        return next(
            (s.value for family in families for s in family.samples if s.name == name and s.labels == labels), None
        )

    def lives(self):
        """Return what the sidecar says of the engine's processes: (name, state), oldest first."""
        processes = json.loads(self.get(f"{SIDECAR}/v1/processes") or "[]")
        return [(one["process"], one["state"]) for one in processes]


@pytest.fixture(scope="module")
def pod(containers, image, engine, tmp_path_factory):
    """The pod; its sidecar answers."""
    directory = Path(tempfile.mkdtemp(prefix="ullage-pod-", dir="/dev/shm"))
    directory.chmod(0o755)
    manifest = for_podman(yaml.safe_load(FRAGMENT.read_text()), image, directory, engine)
    path = tmp_path_factory.mktemp("pod") / "pod.yaml"
    path.write_text(yaml.safe_dump(manifest))
    containers.podman("pod", "rm", "--force", "--ignore", "--time", "0", POD)
    containers.podman("kube", "play", "--network", "none", path)
    running = Pod(containers, directory, engine["command"][0])
    until(lambda: running.get(f"{SIDECAR}/livez"), 60, "the sidecar's answer")
    yield running
    containers.podman("pod", "rm", "--force", "--time", "0", POD)
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def scraped(pod, prometheus, tmp_path_factory):
    """Ask a real Prometheus in the pod's network, which scrapes the sidecar each second."""
    directory = tmp_path_factory.mktemp("prometheus")
    (directory / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        "scrape_configs: [{job_name: ullage, static_configs: [{targets: ['127.0.0.1:9877']}]}]\n"
    )
    options = (f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data")
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            pod.inside(prometheus, *options, "--web.listen-address=127.0.0.1:9090"), stdout=log, stderr=log
        )

        def ask(query):
            answer = pod.get(f"http://127.0.0.1:9090/api/v1/query?{urllib.parse.urlencode({'query': query})}")
            found = json.loads(answer)["data"]["result"] if answer else []
            return [float(one["value"][1]) for one in found]

        yield ask
        process.kill()
        process.wait()


def test_the_engines_image_knows_nothing_of_ullage(pod):
    status, said = pod.run("vllm", "import ullage", PYTHONPATH="")

    assert status
    assert "No module named 'ullage'" in said


def test_the_hook_comes_from_the_init_container_and_the_engine_cannot_write_to_it(pod):
    _, said = pod.run("vllm", "import ullage; print(ullage.__file__); open('/opt/ullage/x', 'w')")

    assert said.startswith("/opt/ullage/ullage/__init__.py\n")
    assert "Read-only file system" in said


def test_the_sidecar_is_another_user_and_sees_that_the_engine_lives(pod, scraped):
    until(lambda: pod.lives() == [("vllm0/main", "running")], 240, "the engine")

    until(lambda: pod.value("ullage_process_steps_total", process="vllm0/main"), 240, "its first step")
    (segment,) = pod.segments.glob("*.ullage")
    assert segment.stat().st_uid == 0
    assert pod.run("ullage", "import os; print(os.getuid())") == (0, "65532\n")
    assert "Read-only file system" in pod.run("ullage", "open('/run/ullage/x', 'w')")[1]
    assert pod.value("ullage_buffer_capacity_slots", process="vllm0/main", buffer="kv_blocks") == 63
    until(lambda: scraped('ullage_buffer_capacity_slots{buffer="kv_blocks"}') == [63], what="Prometheus' first scrape")
    assert scraped("up") == [1]


def test_the_doctor_in_the_sidecar_finds_nothing_wrong(pod):
    until(lambda: pod.value("ullage_process_steps_total", process="vllm0/main"), 240, "the engine")

    status, said = pod.containers.podman("exec", pod.name("ullage"), "ullage", "doctor", check=False)

    assert status == 0, said
    assert "mode 0777, owner 0:0; this process (65532:65532) only reads; segments of user 0" in said
    assert "vllm0/main: imported from /opt/ullage; PYTHONPATH is /opt/ullage" in said
    assert "probes" in said


def test_a_drill_is_held_where_the_engine_is_and_leaves_no_warning(pod, scraped):
    status, said = pod.containers.podman("exec", pod.name("ullage"), "ullage", "drill", check=False)
    assert status == 1
    command = said.rpartition(" -- python3 ")[2].split()
    assert command == ["-m", "ullage.drill", "--seconds", "120"]

    raised = 'ullage_warning_active{process="drill0/main", severity="critical"}'
    with pod.containers.running("exec", pod.name("vllm"), pod.python("vllm"), *command[:3], "3600") as drilling:
        until(lambda: scraped(raised) == [1], 60, "the warning")
        snapshots = [reader.read(path) for path in pod.segments.glob("*.ullage")]
        (pid,) = (seen.process.pid for seen in snapshots if seen.name == "drill0/main")
        pod.run("vllm", f"import os; os.kill({pid}, 15)")
        drilling.wait(timeout=60)
    until(lambda: scraped(raised) == [], 60, "the end of the warning")


def test_an_engine_that_is_killed_comes_back_under_its_name_and_both_are_seen(pod, scraped):
    until(lambda: pod.value("ullage_process_steps_total", process="vllm0/main"), 240, "the engine")
    before = pod.containers.pid(pod.name("vllm"))

    os.kill(before, signal.SIGKILL)

    killed = 'ullage_process_exits_total{process="vllm0/main", outcome="killed", cause="primary"}'
    until(lambda: scraped(killed) == [1], 60, "its death")
    until(lambda: pod.containers.pid(pod.name("vllm")) not in (0, before), 60, "its next container")
    until(lambda: pod.lives() == [("vllm0/main", "killed"), ("vllm0/main", "running")], 240, "its next life")
    until(lambda: pod.value("ullage_process_steps_total", process="vllm0/main"), 240, "its next first step")
    until(lambda: scraped('ullage_process_state{ullage_process_state="running"}') == [1])
    assert scraped(killed) == [1]
    assert pod.containers.podman("inspect", "--format", "{{.RestartCount}}", pod.name("ullage")) == "0"
