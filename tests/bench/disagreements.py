"""What claims that do not fit cost the sidecar: CPU of a tick, and seconds and bytes of ``/v1/contracts``.

Four workers, and three cases: 61 layers with two formulas; all records of four segments with sizes that all differ,
in one contract, and in one contract each. The page is asked for three times.
"""

from __future__ import annotations

import logging
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "support"))

from disagreeing import CASES, ENGINE, PROGRAM, WORKERS
from harness import Program, Sidecar

from ullage_sidecar.settings import load
from ullage_sidecar.watch import Watch

TICKS, PAGES = 21, 3


def main():
    logging.disable()
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="ullage-bench-", dir="/dev/shm") as directory:
            workers = [Program(PROGRAM, Path(directory), (case, rank), **ENGINE) for rank in range(WORKERS)]
            try:
                for worker in workers:
                    assert worker.line() == "ready"
                print(f"{case}: a tick {1000 * tick(directory):.0f} ms of CPU")
                pages(directory)
            finally:
                for worker in workers:
                    worker.end()


def tick(directory):
    """Seconds of CPU, the median."""
    watch = Watch(lambda: load(environment={}, dir=directory))
    spent = []
    for _ in range(TICKS):
        start = time.process_time()
        watch.tick()
        spent.append(time.process_time() - start)
    return statistics.median(spent)


def pages(directory):
    """Ask a sidecar for the page."""
    sidecar = Sidecar(directory)
    try:
        for _ in range(PAGES):
            start = time.monotonic()
            body = urllib.request.urlopen(f"http://127.0.0.1:{sidecar.port}/v1/contracts", timeout=60).read()
            print(f"  /v1/contracts: {time.monotonic() - start:.2f} s, {len(body) / 1000:.0f} kB")
    finally:
        sidecar.end()


if __name__ == "__main__":
    main()
