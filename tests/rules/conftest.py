"""A real Prometheus with an hour of what a sidecar that has seen everything exposes."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest
from everything import samples
from harness import until

TARGET = {"job": "vllm", "instance": "10.0.0.7:9877", "namespace": "prod", "pod": "llama-0"}
HOUR_S, STEP_S = 3600, 30


def history():
    """Return it as OpenMetrics text. Counters rise in proportion to what they are."""
    end = int(time.time())
    lines = []
    for name, labels, value in [*samples(), ("up", {}, 0.0)]:
        inside = ",".join(f"{label}={json.dumps(text)}" for label, text in (TARGET | labels).items())
        rises = name.endswith(("_total", "_bucket"))
        for n, at in enumerate(range(end - HOUR_S, end + 1, STEP_S), 1):
            lines.append(f"{name}{{{inside}}} {value * n if rises else value} {at}")
    return "\n".join([*lines, "# EOF\n"])


@pytest.fixture(scope="session")
def ask(release, tmp_path_factory):
    """Ask the Prometheus; return the samples of the answer."""
    directory = tmp_path_factory.mktemp(f"prometheus-{release.version}")
    (directory / "history.om").write_text(history())
    (directory / "prometheus.yml").write_text("")
    backfill = (release.promtool, "tsdb", "create-blocks-from", "openmetrics", "history.om", "data")
    subprocess.run(backfill, cwd=directory, check=True, capture_output=True, timeout=60)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    server = subprocess.Popen(
        [
            release.prometheus,
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            f"--web.listen-address={address}",
        ],
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def ready():
        try:
            return urllib.request.urlopen(f"http://{address}/-/ready", timeout=5).status == 200
        except OSError:
            return False

    def ask(query):
        url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                return json.load(response)["data"]["result"]
        except urllib.error.HTTPError as error:
            pytest.fail(f"{query}: {json.load(error)['error']}")

    try:
        until(ready, 60, "Prometheus")
        yield ask
    finally:
        server.kill()
        server.wait()
