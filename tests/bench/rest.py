"""The sidecar at rest: memory, and the share of one core, with three processes to watch and a scrape every 15 s.

Beside it an event loop that only wakes up, as often as uvicorn's does: what a virtual machine charges for that alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

SECONDS = 60
LOOP = """
import asyncio
async def main():
    while True: await asyncio.sleep(0.1)
asyncio.run(main())
"""
PORT = 29877
# It rests until main() ends it.
PROGRAM = "import ullage, time; b = ullage.buffer('rows', capacity=10, unit='rows'); b.observe(3); time.sleep(600)"


def main():
    directory = tempfile.mkdtemp(prefix="ullage-bench-", dir="/dev/shm")
    environment = {**os.environ, "ULLAGE_DIR": directory}
    watched = [subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment) for _ in range(3)]
    command = [sys.executable, "-m", "ullage_sidecar", "serve", "--port", str(PORT)]
    sidecar = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    loop = subprocess.Popen([sys.executable, "-c", LOOP])
    try:
        time.sleep(5)  # both have started: only their rest is measured
        before, bare = cpu(sidecar.pid), cpu(loop.pid)
        for _ in range(SECONDS // 15):
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics").read()
            time.sleep(15)  # the interval of a usual Prometheus
        used, bare = cpu(sidecar.pid) - before, cpu(loop.pid) - bare
        print(f"resident {memory(sidecar.pid):.1f} MiB, {used / SECONDS:.2%} of one core over {SECONDS} s")
        print(f"a loop that only wakes up ten times a second: {bare / SECONDS:.2%}")
    finally:
        for process in (*watched, sidecar, loop):
            process.kill()
            process.wait()
        for path in Path(directory).iterdir():
            path.unlink()
        Path(directory).rmdir()


def cpu(pid):
    """Seconds of processor time so far, by the scheduler: ``stat`` samples, at the ticks that wake a sleeper up."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def memory(pid):
    """MiB resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


if __name__ == "__main__":
    main()
