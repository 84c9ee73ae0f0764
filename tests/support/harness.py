"""Real programs to test with: a process that uses ullage, and a sidecar that watches it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parent.parent.parent
PROMISE_FACTOR = 10  # a deadline in a test is ten times what is promised: the machine may be busy
LONG = os.environ.get("ULLAGE_TEST_LONG") == "1"


def missing(what: str) -> None:
    """Skip for want of a tool; in CI, where everything is installed, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}; with CI=true that is a failure")
    pytest.skip(what)


def until(condition, timeout=20.0, what="the condition"):
    """Wait until ``condition()`` is true, and return what it returned."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not come true within {timeout:g} s; last: {value!r}")
        time.sleep(0.02)


class Release(NamedTuple):
    """One release of Prometheus: its version, its server and its checker."""

    version: str
    prometheus: Path
    promtool: Path

    @classmethod
    def of(cls, binaries):
        """Return the release whose programs are in the directory ``binaries``; None if they do not run."""
        try:
            said = subprocess.run([binaries / "promtool", "--version"], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return cls(re.search(r"version ([0-9.]+)", said.stdout)[1], binaries / "prometheus", binaries / "promtool")


class Program:
    """A Python program that uses ullage, in a process of its own."""

    def __init__(self, code, directory, arguments=(), **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **({"ULLAGE_DIR": str(directory)} if directory else {}), **environment},
        )

    def line(self):
        """Return its next line of output."""
        return self.process.stdout.readline().strip()

    def say(self, line):
        """Write a line to its input."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def tell(self, line):
        """Have a program that does what it is told, a line at a time, do that; it says when it is done."""
        self.say(line)
        assert self.line() == "done"

    def kill(self):
        """End it as the kernel would for want of memory."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        """Kill it with the children it forked, and forget what it wrote."""
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=60)

    def finish(self):
        """Wait for its end; return its output. It must have ended well."""
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        return out

    def failure(self):
        """Wait for its end; return what it wrote to stderr."""
        _, err = self.process.communicate(timeout=60)
        return err


RUN_COMMAND = "import sys; from ullage_sidecar.cli import main; sys.exit(main())"


class Sidecar:
    """A real ``ullage serve`` on a free port of the loopback interface.

    ``code`` runs first in its process; with ``ready=False`` it is not awaited.
    """

    def __init__(self, directory, *options, code="", port=None, ready=True, **environment):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1] if port is None else port
        self.log_file = tempfile.TemporaryFile("w+")  # noqa: SIM115  it lives as long as the process
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", f"{code}\n{RUN_COMMAND}", "serve"),
                *("--dir", str(directory), "--port", str(self.port)),
                *options,
            ],
            stdout=self.log_file,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
        )
        if ready:
            until(self._answers, 60, "the sidecar's answer")

    def _answers(self):
        assert self.process.poll() is None, self.log()
        try:
            return self.get("/readyz")
        except (urllib.error.URLError, ConnectionError):
            return None

    def get(self, path, **headers):
        """Return the body of a page."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.read()

    def json(self, path):
        """Return a page of the API."""
        return json.loads(self.get(path))

    def metrics(self):
        """Scrape: {(name, frozenset of labels): value}."""
        families = text_string_to_metric_families(self.get("/metrics").decode())
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def value(self, name, **labels):
        """Scrape one sample; None if it does not exist."""
        return self.metrics().get((name, frozenset(labels.items())))

    def warnings(self):
        """The active warnings: {(buffer or process, reason): severity}."""
        return {(w["buffer"] or w["process"], w["reason"]): w["severity"] for w in self.json("/v1/warnings")}

    def states(self):
        """The state of each process that is shown."""
        return {p["process"]: p["state"] for p in self.json("/v1/processes") if p["shown"]}

    def log(self):
        """What it has logged so far."""
        self.log_file.seek(0)
        return self.log_file.read()

    def stop(self):
        """End it with SIGTERM, and return its exit status."""
        self.process.terminate()
        return self.process.wait(timeout=20)

    def end(self):
        """Kill it, and forget its log."""
        self.process.kill()
        self.process.wait()
        self.log_file.close()
