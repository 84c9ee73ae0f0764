"""What a pod may give its sidecar: whatever it is, the sidecar serves, and is not started again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from harness import PROMISE_FACTOR, Sidecar, until

from ullage.segment import layout

PROCESSES = 16
MEMORY_LIMIT = 256 * 2**20  # that of the deploy files
SCRAPE_TIMEOUT_S = 10  # Prometheus' own
FULL = """
import sys, ullage
buffers = [ullage.buffer(f"buffer_{n:03}", capacity=1000, unit="rows") for n in range(512)]
for number, buffer in enumerate(buffers):
    buffer.observe(number)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def started(segments, tmp_path):
    """Start a sidecar with a file of settings; it is gone at the end of the test."""
    running = []

    def start(config, **environment):
        running.append(Sidecar(segments, "--config", str(config), **environment))
        return running[-1]

    yield start
    for one in running:
        one.end()


@pytest.mark.fault("a file of settings that is none", sees="one log line a problem; the defaults hold")
@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00 no text",
        b"[" * 100_000,
        b"a: &a [1, 1]\n"
        + b"".join(b"%c: &%c [%s]\n" % (n, n, b", ".join([b"*%c" % (n - 1)] * 9)) for n in b"bcdefghi"),
        b"- a list",
        None,
    ],
    ids=["not text", "nested", "a bomb", "a list", "a directory"],
)
def test_settings_that_are_none(started, tmp_path, content):
    config = tmp_path / "ullage.yaml"
    if content is None:
        config.mkdir()
    else:
        config.write_bytes(content)

    watching = started(config, ULLAGE_BUFFERS="{", ULLAGE_CLEAR_HOLD="soon", ULLAGE_WARNING_RATIO="7")

    assert watching.value("ullage_config_last_reload_successful") == 0
    assert watching.json("/v1/warnings") == []
    for name in ("buffers", "clear_hold", "warning_ratio"):
        assert f"setting {name}: " in watching.log()
    assert "Traceback" not in watching.log()


@pytest.mark.fault("16 processes of 512 buffers each", sees="all of them, up to the cap of series")
def test_as_many_processes_and_buffers_as_a_pod_can_have(segments, program, sidecar):
    running = [program(FULL, ULLAGE_ENGINE=f"engine{number}") for number in range(PROCESSES)]
    for one in running:
        assert one.line() == "ready"
    watching = sidecar()

    for _ in range(3):
        begun = time.monotonic()
        text = watching.get("/metrics").decode()
        assert time.monotonic() - begun < SCRAPE_TIMEOUT_S * PROMISE_FACTOR

    assert text.count("\nullage_process_info{") == PROCESSES
    assert len(watching.json("/v1/buffers")["buffers"]) == PROCESSES * layout.BUFFERS.records
    until(lambda: watching.get("/readyz"))
    status = Path(f"/proc/{watching.process.pid}/status").read_text()
    resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
    assert resident < MEMORY_LIMIT, f"{resident / 2**20:.0f} MiB"
    assert watching.process.poll() is None
    assert "Traceback" not in watching.log()
