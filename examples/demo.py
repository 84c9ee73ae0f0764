"""The demo: a sidecar, a real vLLM and a ragged decode loop; warnings are raised and cleared before your eyes.

Ends by itself, or on Ctrl-C; leaves nothing running.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
LOAD_S = 30
START_S = 240
AFTER_S = 12
PORT = 9877
HOLDS = {"ULLAGE_CLEAR_HOLD": "3s", "ULLAGE_EXHAUSTION_HOLD": "2s"}
COLOURS = {"info": "36", "warning": "33", "critical": "31", "cleared": "32"}


class Demo:
    """The processes that the demo starts, and what it sees of them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {**os.environ, "ULLAGE_DIR": str(directory), **HOLDS}
        for name in ("ULLAGE_ENGINE", "ULLAGE_ENGINE_ID", "ULLAGE_DISABLE", "ULLAGE_STRICT"):
            self.environment.pop(name, None)
        self.children: list[subprocess.Popen[str]] = []
        self.port = _port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.active: dict[tuple[str, str, str], dict[str, str]] = {}
        self.seen: set[str] = set()
        self.busy = self.interrupted = False

    def start(self, *command: str, log: str, output: int | IO[str] | None = None) -> subprocess.Popen[str]:
        """Start a child; what it logs goes into a file of the demo's directory."""
        with (self.directory / log).open("w") as errors, self._uninterrupted():
            child = subprocess.Popen(
                [sys.executable, *command],
                stdout=errors if output is None else output,
                stderr=errors,
                text=True,
                env=self.environment,
                start_new_session=True,
            )
            self.children.append(child)
        return child

    @contextlib.contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        """Put Ctrl-C off: a child must be known before it can be ended."""
        self.busy = True
        yield
        self.busy = False
        if self.interrupted:
            raise KeyboardInterrupt

    def interrupt(self, _signal: int, _frame: object) -> None:
        """Handle Ctrl-C, and SIGTERM alike."""
        self.interrupted = True
        if not self.busy:
            raise KeyboardInterrupt

    def warnings(self) -> list[dict[str, Any]]:
        """Ask the sidecar which warnings are active."""
        with urllib.request.urlopen(f"{self.url}/v1/warnings", timeout=60) as response:
            return list(json.load(response))

    def report(self) -> None:
        """Print each warning that was raised or cleared since the last call."""
        now = {(w["process"], w["buffer"], w["reason"]): w for w in self.warnings()}
        for key in now.keys() - self.active.keys():
            warning = now[key]
            self.seen.add(warning["reason"])
            _say(warning["severity"], f"raised   {warning['severity']:8} {_where(key)}: {warning['message']}")
        for key in self.active.keys() - now.keys():
            _say("cleared", f"cleared  {self.active[key]['severity']:8} {_where(key)}")
        self.active = now

    def watch(self, seconds: float, *until_dead: subprocess.Popen[str]) -> None:
        """Report for so long, or until these children have ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not (until_dead and all(c.poll() is not None for c in until_dead)):
            self.report()
            time.sleep(0.2)

    def end(self) -> None:
        """End all children, the last started first, with whatever they started."""
        for child in reversed(self.children):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
        for child in self.children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=10)
            # The group goes on as long as one of them lives, or is a zombie that nobody has waited for yet.
            deadline = time.monotonic() + 10
            with contextlib.suppress(ProcessLookupError):
                while time.monotonic() < deadline:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.poll()
                    time.sleep(0.02)


def main() -> int:
    """Run the demo; 0 if warnings were raised and cleared."""
    directory = Path(tempfile.mkdtemp(prefix="ullage-demo-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    demo = Demo(directory)
    before = {number: signal.signal(number, demo.interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return _run(demo)
    except KeyboardInterrupt:
        print("\nended on request")
        return 130
    finally:
        demo.busy = True  # a second Ctrl-C must not stop the ending
        demo.end()
        shutil.rmtree(directory, ignore_errors=True)
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(demo: Demo) -> int:
    print("The demo ends by itself after about two minutes, or on Ctrl-C.")
    print(f"1. the sidecar, watching {demo.directory}")
    sidecar = demo.start("-m", "ullage_sidecar", "serve", "--port", str(demo.port), log="sidecar.log")
    if not _answers(demo, sidecar):
        print((demo.directory / "sidecar.log").read_text())
        return 1
    print(f"   {demo.url}/metrics       what Prometheus scrapes")
    print(f"   {demo.url}/v1/warnings   what is wrong now")
    print(f"   try: curl -s {demo.url}/metrics | grep kv_blocks")

    engine = None
    if importlib.util.find_spec("vllm") is None:
        print("2. no vLLM: its wheel for CPU cannot be installed here (see .venv/no-engine); the loop alone is shown")
    else:
        print("2. a real vLLM on CPU (tiny model, random weights, 24 KV blocks): starting takes half a minute")
        engine = demo.start(
            str(HERE / "vllm_pressure.py"), "--seconds", str(LOAD_S), log="vllm.log", output=subprocess.PIPE
        )
        assert engine.stdout is not None
        started = time.monotonic()
        if engine.stdout.readline().strip() != "loading":
            print((demo.directory / "vllm.log").read_text()[-3000:])
            return 1
        print(f"   up after {time.monotonic() - started:.0f} s")
    print(f"3. the load rises beyond 90 % and falls again, for {LOAD_S} s; beside it a ragged decode loop")
    loop = demo.start(str(HERE / "ragged_batches.py"), "--seconds", str(LOAD_S), log="loop.log")
    demo.watch(START_S, *(child for child in (engine, loop) if child is not None))
    demo.watch(AFTER_S)
    if engine is not None and engine.stdout is not None:
        print(f"4. vLLM's own count: {engine.stdout.read().strip()} requests; ours:")
        _print_exhaustions(demo)
    expected = {"near_capacity", "bounds_violation"} | ({"exhaustion"} if engine else set())
    print("5. the processes have ended, in order; their last values are still there, and the violation with them")
    print(f"   shown: {', '.join(sorted(demo.seen))}")
    return 0 if expected <= demo.seen and all(key[2] == "bounds_violation" for key in demo.active) else 1


def _print_exhaustions(demo: Demo) -> None:
    with urllib.request.urlopen(f"{demo.url}/metrics", timeout=5) as response:
        for line in response.read().decode().splitlines():
            if line.startswith("ullage_buffer_exhaustions_total") and "kv_blocks" in line:
                print(f"   {line}")


def _answers(demo: Demo, sidecar: subprocess.Popen[str]) -> bool:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and sidecar.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            demo.warnings()
            return True
        time.sleep(0.1)
    return False


def _port() -> int:
    """Return the sidecar's usual port, or a free one if that is taken."""
    for port in (PORT, 0):
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(free.getsockname()[1])
    raise OSError("no port is free")


def _where(key: tuple[str, str, str]) -> str:
    process, buffer, reason = key
    return f"{reason} {process} {buffer}".rstrip()


def _say(colour: str, text: str) -> None:
    stamp = time.strftime("%H:%M:%S")
    line = f"   {stamp} {text}"
    print(f"\033[{COLOURS[colour]}m{line}\033[0m" if sys.stdout.isatty() else line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
