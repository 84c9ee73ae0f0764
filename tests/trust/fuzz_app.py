"""Serves mutated segments from the real application, in a process of its own: ``fuzz_app.py INPUTS SEED DIRECTORY``.

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
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import asgi
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
FAILURES_MAX = 10
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


def main(count, seed, directory):
    """Run the rounds; write the report."""
    (healthy,) = [reader.read(path) for path in directory.glob("*.ullage")]
    logged = Lines()
    logging.getLogger("ullage").addHandler(logged)
    logging.getLogger("ullage").propagate = False
    expected, failures, _ = asyncio.run(_answers(directory, healthy))
    assert not failures, failures
    left_out, wrong, repaired, warm_mib = Counter(), [], 0, 0
    files = list(_files(directory))
    for number in range(0, count, BATCH):
        signal.signal(signal.SIGALRM, lambda *_: _stuck(seed, number))  # noqa: B023  it is for this round
        signal.alarm(STUCK_S)
        mutations = [mutate(file, number + index, seed, name) for index, (name, file) in enumerate(files)]
        found, failures, rows = asyncio.run(_answers(directory, healthy))
        failures += [
            f"{page}: {_difference(rows, expected[page])}" for page, rows in found.items() if rows != expected[page]
        ]
        failures += [f"log: {line!r}" for line in logged.lines if not line.isprintable()]
        if failures and len(wrong) < FAILURES_MAX:
            wrong.append({"seed": seed, "first": number, "wrong": failures, "inputs": [m._asdict() for m in mutations]})
        left_out += rows
        repaired += sum("seals" not in mutation.kinds for mutation in mutations)
        logged.lines.clear()
        for _, file in files:
            file.undo()
        if number == WARM_UP * BATCH:
            warm_mib = _peak_mib()
    for _, file in files:
        file.close()
    memory = {"warm_mib": warm_mib, "peak_mib": _peak_mib()}
    return {"failures": wrong, "left_out": left_out, "repaired": repaired, **memory}


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


def _stuck(seed, number):
    faulthandler.dump_traceback(all_threads=True)
    failure = {"seed": seed, "first": number, "wrong": [f"not done after {STUCK_S} s: see stderr"]}
    print(json.dumps({"failures": [failure]}), file=sys.__stdout__, flush=True)
    os._exit(1)


def _peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))))
