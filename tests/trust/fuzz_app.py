"""Serves mutated segments from the real application, in a process of its own.

``fuzz_app.py INPUTS SEED DIRECTORY``; to repeat the inputs of a failure, ``fuzz_app.py 0 SEED DIRECTORY NUMBER...``.
In ``DIRECTORY`` a healthy program lives. Each round puts ``BATCH`` mutated segments next to its own, starts the
application, and asks for every page. The report, in JSON, has the failures, the rows left out, and the memory it took.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import io
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import asgi
from memory import peak_mib
from mutate import mutate
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from sealing import corpus, place

from ullage.segment import layout, reader
from ullage_sidecar.app import create_app
from ullage_sidecar.settings import Settings
from ullage_sidecar.watch import Watch

BATCH = 25
RECORDS = 6  # of each kind in a segment: the others are like them, and would take most of the time
STUCK_S = 60  # a round takes less than a second
WARM_UP = 4  # rounds after which memory must not grow any more
FAILURES_MAX = 3
ROWS = {
    "/v1/processes": lambda page: page,
    "/v1/buffers": lambda page: page["buffers"] + page["inventory"],
    "/v1/contracts": lambda page: page,
    "/v1/events": lambda page: page,
    "/v1/warnings": lambda page: page,
}
OPENMETRICS = "application/openmetrics-text;version=1.0.0"


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


class Fuzzer:
    """Serves rounds of mutated segments next to the healthy program in ``directory``."""

    def __init__(self, directory, seed):
        self._directory, self._seed = directory, seed
        (self._healthy,) = [reader.read(path) for path in directory.glob(f"*{layout.SUFFIX}")]
        self._logged = Lines()
        logging.getLogger("ullage").addHandler(self._logged)
        logging.getLogger("ullage").propagate = False
        self._expected, failures, _ = asyncio.run(_answers(directory, self._healthy))
        assert not failures, failures
        self._files = list(_files(directory))

    def run(self, rounds):
        """Serve rounds of inputs, each a list of numbers; return the report."""
        wrong, left_out, repaired, warm_mib = [], Counter(), 0, 0
        signal.signal(signal.SIGALRM, lambda *_: self._stuck())
        for done, numbers in enumerate(rounds):
            mutations, failures, rows = self._round(numbers)
            if failures and len(wrong) < FAILURES_MAX:
                fewest = self._reduced(numbers)
                inputs = [mutation._asdict() for mutation in mutations if mutation.number in fewest]
                wrong.append({"seed": self._seed, "inputs": inputs, "wrong": failures})
            left_out += rows
            repaired += sum("seals" not in mutation.kinds for mutation in mutations)
            if done == WARM_UP:
                warm_mib = peak_mib()
        memory = {"warm_mib": warm_mib, "peak_mib": peak_mib()}
        return {"failures": wrong, "left_out": left_out, "repaired": repaired, **memory}

    def _round(self, numbers):
        """Mutate some of the files, and ask for every page; return mutations, failures, and the rows left out."""
        signal.alarm(STUCK_S)
        self._numbers = numbers
        chosen = [(number, *self._files[number % BATCH]) for number in numbers]
        mutations = [mutate(file, number, self._seed, name) for number, name, file in chosen]
        found, failures, left_out = asyncio.run(_answers(self._directory, self._healthy))
        for page, expected in self._expected.items():
            if found.get(page) != expected:
                failures.append(f"{page}: {_difference(found.get(page, []), expected)}")
        failures += [f"log: {line!r}" for line in self._logged.lines if not line.isprintable()]
        self._logged.lines.clear()
        for _, _, file in chosen:
            file.undo()
        return mutations, failures, left_out

    def _reduced(self, numbers):
        """Return the inputs of a failing round without those that it also fails without."""
        fewest = list(numbers)
        for number in numbers:
            without = [one for one in fewest if one != number]
            if self._round(without)[1]:
                fewest = without
        return fewest

    def _stuck(self):
        """Report a round that does not end; its threads cannot be ended."""
        faulthandler.dump_traceback(all_threads=True)
        failure = {
            "seed": self._seed,
            "inputs": list(self._numbers),
            "wrong": [f"not done after {STUCK_S} s: see stderr"],
        }
        print(json.dumps({"failures": [failure]}), file=sys.__stdout__, flush=True)
        os._exit(1)


def _files(directory):
    """Make the files of a round: engines of three processes each, and programs. Half of them live."""
    contents = corpus()
    for index in range(BATCH):
        name = list(contents)[index % len(contents)]
        engine = f"fuzz{index // len(contents)}"
        process = f"{engine}/{name.removeprefix('vllm-')}"
        file = place(directory, contents[name], os.urandom(16), process=process, engine_name=engine, engine_id=engine)
        for region in (layout.PROBES, layout.BUFFERS, layout.CLAIMS):
            file.keep(region, RECORDS)
        file.settle()
        if index % 2:
            file.lock()
        yield name, file


async def _answers(directory, healthy):
    """Return what each page says of the healthy program, what is wrong with any page, and the rows left out."""
    watch = Watch(lambda: (Settings(dir=directory), []))
    app = create_app(watch)
    found, failures, left_out = {}, [], Counter()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), watch.ticking():
        while not (watch.health.ready or watch.health.ticks.failures):
            time.sleep(0.001)  # noqa: ASYNC251  nothing else waits
        for path in ("/", "/livez", "/readyz", *ROWS):
            status, body = await _get(app, path)
            if status != 200:
                failures.append(f"{path}: {status} {body[-2000:].decode()}")
            elif path in ROWS:
                rows = [row for row in ROWS[path](json.loads(body)) if _is_of(row, healthy)]
                # Since when a disagreement is known depends on when the application started.
                found[path] = [{k: v for k, v in row.items() if k != "since"} for row in rows]
        for kind, parse in (("text/plain", parse_text), (OPENMETRICS, parse_openmetrics)):
            status, body = await _get(app, "/metrics", accept=kind)
            try:
                samples = [sample for family in parse(body.decode()) for sample in family.samples]
            except Exception as error:
                failures.append(f"/metrics {kind}: {status}, does not parse: {error!r} {body[-2000:].decode()}")
                continue
            found[kind] = [(s.name, s.labels, s.value) for s in samples if _is_of(s.labels, healthy)]
            left_out = Counter({s.labels["where"]: s.value for s in samples if s.name == "ullage_rows_dropped_total"})
    failures += [f"stdout: {line!r}" for line in printed.getvalue().splitlines() if not _is_post_mortem(line)]
    return found, failures, left_out


def _is_post_mortem(line):
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(line), dict) and line.isprintable()
    return False


async def _get(app, path, **headers):
    """Ask for a page; an exception that a server would answer with 500 is that."""
    try:
        return await asgi.get(app, path, **headers)
    except Exception:
        return 500, traceback.format_exc(limit=-4).encode("utf-8", "backslashreplace")


def _difference(rows, expected):
    """Return what is there and should not be, and what is not there."""
    return [row for row in rows if row not in expected], [row for row in expected if row not in rows]


def _is_of(row, healthy):
    return row.get("process") == healthy.name or row.get("engine_id") == healthy.engine_id


if __name__ == "__main__":
    inputs, its_seed, its_directory, *again = sys.argv[1:]
    batches = [range(first, first + BATCH) for first in range(0, int(inputs), BATCH)]
    print(json.dumps(Fuzzer(Path(its_directory), its_seed).run([list(map(int, again))] if again else batches)))
