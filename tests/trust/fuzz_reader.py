"""Reads mutated segments, many and fast, in a process of its own: ``fuzz_reader.py INPUTS SEED [FIRST]``.

Writes a report in JSON: the failures, for each kind of mutation how many inputs there were and how many got past the
checksums, and the most memory that it took. ``FIRST`` alone makes one input again: ``fuzz_reader.py 1 SEED NUMBER``.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from memory import peak_mib
from mutate import mutate
from promises import broken
from sealing import corpus, place

from ullage.segment import reader

STUCK_S = 30  # a read takes two milliseconds
NOT_REACHED = {"magic", "version", "checksum", "empty"}
FAILURES_MAX = 20


class StuckError(BaseException):
    """A read does not end. No handler of ``Exception`` may take it."""


def _stuck(*_):
    raise StuckError


def run(count, seed, first):
    """Read ``count`` mutated segments; return the report."""
    failures, tried, reached = [], Counter(), Counter()
    signal.signal(signal.SIGALRM, _stuck)
    with tempfile.TemporaryDirectory(prefix="ullage-fuzz-", dir="/dev/shm") as directory:
        files = [(name, place(Path(directory), content)) for name, content in corpus().items()]
        sound = {name: reader.read(file.path).half_written for name, file in files}
        for number in range(first, first + count):
            name, file = files[number % len(files)]
            mutation = mutate(file, number, seed, name)
            signal.setitimer(signal.ITIMER_REAL, STUCK_S)
            try:
                passed, wrong = _read(file.path, sound[name])
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            if wrong and len(failures) < FAILURES_MAX:
                failures.append({"seed": seed, **mutation._asdict(), "wrong": wrong})
            tried[mutation.kinds[0]] += 1
            reached[mutation.kinds[0]] += passed
            file.undo()
        for _, file in files:
            file.close()
    shares = {kind: [tried[kind], reached[kind]] for kind in tried}
    return {"failures": failures, "kinds": shares, "peak_mib": peak_mib()}


def _read(path, half_written):
    """Read one; return whether its checksums were right, and what is wrong with the answer."""
    try:
        snapshot = reader.read(path)
    except reader.UnreadableError as error:
        return error.reason not in NOT_REACHED, []
    except (Exception, StuckError):
        return True, traceback.format_exc(limit=-3).splitlines()
    return snapshot.half_written <= half_written, list(broken(snapshot))


if __name__ == "__main__":
    inputs, its_seed, *start = sys.argv[1:]
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps(run(int(inputs), its_seed, int(start[0]) if start else 0)))
