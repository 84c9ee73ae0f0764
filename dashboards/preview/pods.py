"""Live data for the preview: a few pods on this machine, each with its own sidecar, and a Prometheus that scrapes them.

One of them runs a real vLLM, where that is installed, and is killed. Another one is killed and comes back; a buffer
grows; an index is out of bounds; two formulas disagree.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROMETHEUS = ROOT / ".tools/prometheus/usr/bin/prometheus"
SCRAPE_S = 2
STORY_S = 240
# The model of the example lies in a temporary directory, whose name says nothing.
MODEL_NAME = """    metric_relabel_configs:
      - {source_labels: [model_name], regex: '.*/(.+)', target_label: model_name}
"""


class Pods:
    """What is running, and how to end it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.children: list[subprocess.Popen[bytes]] = []
        self.targets: list[tuple[str, int]] = []

    def start(self, *command: str | Path, log: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a child in a group of its own, with a log in the directory."""
        with (self.directory / f"{log}.log").open("wb") as output:
            child = subprocess.Popen(
                [*map(str, command)],
                stdout=output,
                stderr=output,
                env={**os.environ, "ULLAGE_CLEAR_HOLD": "5s", "ULLAGE_EXHAUSTION_HOLD": "5s", **environment},
                start_new_session=True,
            )
        self.children.append(child)
        return child

    def pod(self, name: str) -> dict[str, str]:
        """Start the sidecar of a pod; return the environment of its programs."""
        segments = self.directory / name
        segments.mkdir()
        port = free_port()
        self.targets.append((name, port))
        serve = (sys.executable, "-m", "ullage_sidecar", "serve", "--dir", segments, "--port", str(port))
        self.start(*serve, log=f"{name}-sidecar")
        return {"ULLAGE_DIR": str(segments)}

    def prometheus(self) -> str:
        """Start Prometheus on all pods; return its address."""
        targets = "".join(
            f"      - targets: ['127.0.0.1:{port}']\n        labels: {{namespace: serving, pod: {name}}}\n"
            for name, port in self.targets
        )
        config = self.directory / "prometheus.yml"
        config.write_text(
            f"global: {{scrape_interval: {SCRAPE_S}s}}\n"
            f"scrape_configs:\n  - job_name: ullage\n{MODEL_NAME}    static_configs:\n{targets}"
        )
        port = free_port()
        self.start(
            PROMETHEUS,
            f"--config.file={config}",
            f"--storage.tsdb.path={self.directory / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{port}",
            log="prometheus",
        )
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                return url
            time.sleep(0.2)
        raise RuntimeError(f"Prometheus did not start: see {self.directory}/prometheus.log")

    def end(self) -> None:
        """End everything that was started."""
        for child in reversed(self.children):
            kill(child)
        for child in self.children:
            child.wait()


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a child and its children as the kernel does for want of memory."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def story(pods: Pods) -> str:
    """Let everything happen, for ``STORY_S`` seconds; return the address of Prometheus."""
    workload = (sys.executable, HERE / "workload.py")
    llm = [pods.pod("llm-0")] if importlib.util.find_spec("vllm") else []
    draft = [pods.pod(f"draft-{number}") for number in range(3)]
    url = pods.prometheus()
    pressure = (sys.executable, ROOT / "examples/vllm_pressure.py", "--seconds", str(STORY_S))
    engines = [pods.start(*pressure, log="llm-0", **where) for where in llm]
    pods.start(*workload, "--busy", "0.95", log="draft-0", **draft[0])
    faulty = (*workload, "--busy", "0.85", "--disagree", "--violate-after", "60")
    pods.start(*faulty, log="draft-1", **draft[1])
    fragile = pods.start(*workload, "--busy", "0.5", log="draft-2", **draft[2])
    time.sleep(STORY_S * 0.4)
    kill(fragile)
    time.sleep(STORY_S * 0.1)
    fragile = pods.start(*workload, "--busy", "0.5", log="draft-2-again", **draft[2])
    time.sleep(STORY_S * 0.3)
    for engine in engines:
        kill(engine)
    time.sleep(STORY_S * 0.2)
    return url
