"""What ``observe`` costs, side by side with an empty call and with prometheus_client for the same facts.

Every case has a loop of its own, compiled for it; the cases are run in random order, many times, in one process. The
ratio is the median of the ratios of each round: nanoseconds differ from machine to machine, ratios hardly.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 41
VALUES = 2000
CAPACITY = 131_072


def empty(_value):
    """Cost of a call that does nothing."""


def loops(functions):
    """Return a timed loop for each function, with bytecode of its own."""
    made = {}
    for name, function in functions.items():
        space = {"f": function, "clock": time.perf_counter_ns}
        source = (
            "def loop(values, f=f, clock=clock):\n start = clock()\n for v in values: f(v)\n return clock() - start\n"
        )
        exec(compile(source, name, "exec"), space)
        made[name] = space["loop"]
    return made


def prometheus():
    """The facts of ``observe`` (now, peak, seven occupancy steps) with prometheus_client."""
    from prometheus_client import CollectorRegistry, Gauge, Histogram

    registry = CollectorRegistry()
    used = Gauge("used", "Used.", registry=registry)
    high_water = Gauge("high_water", "High water.", registry=registry)
    steps = [share * CAPACITY for share in (0.5, 0.75, 0.9, 0.95, 0.99, 1.0)]
    occupancy = Histogram("occupancy", "Occupancy.", buckets=steps, registry=registry)
    peak = 0

    def observe(value):
        nonlocal peak
        used.set(value)
        occupancy.observe(value)
        if value > peak:
            peak = value
            high_water.set(value)

    return observe


def otel():
    """One fact with the OpenTelemetry SDK: a gauge, with its attributes."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    gauge = MeterProvider([InMemoryMetricReader()]).get_meter("bench").create_gauge("used")
    attributes = {"process": "vllm0/core", "buffer": "kv_blocks"}

    def observe(value):
        gauge.set(value, attributes)

    return observe


class Tensor:
    """Stands for a tensor where there is no torch: a shape and a dtype."""

    shape, dtype = (256, 3), "int32"


def contract():
    """A contract's ``check``, and what it is called with: a torch tensor of unchanged shape if there is torch."""
    import ullage

    try:
        import torch

        tensor = torch.zeros(256, 3, dtype=torch.int32)
    except ImportError:
        tensor = Tensor
    contract = ullage.Contract("bench", dims=("rows", "fields"))
    contract.claim("planner", (256, 3))
    return contract.check, [tensor] * VALUES


def main():
    directory = Path(tempfile.mkdtemp(prefix="ullage-bench-", dir="/dev/shm"))
    multiprocess = "--multiprocess" in sys.argv
    os.environ["ULLAGE_DIR"] = str(directory)
    if multiprocess:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(directory)
    import ullage

    buffer = ullage.buffer("bench", capacity=CAPACITY, unit="tokens")
    client = "prometheus_client, multiprocess" if multiprocess else "prometheus_client"
    check, tensors = contract()
    cases = {"empty call": empty, "observe": buffer.observe, "check": check, client: prometheus()}
    if importlib.util.find_spec("opentelemetry.sdk") is not None:
        cases["OpenTelemetry, one gauge"] = otel()
    timed = loops(cases)
    chance = random.Random(1)
    below = [chance.randrange(int(CAPACITY * 0.85)) for _ in range(VALUES)]
    above = [chance.randrange(int(CAPACITY * 0.91), CAPACITY) for _ in range(VALUES)]
    given = {name: tensors if name == "check" else below for name in timed}
    gc.disable()
    rounds = []
    for name, loop in timed.items():
        loop(given[name])
    for _ in range(ROUNDS):
        order = list(timed.items())
        chance.shuffle(order)
        taken = {name: loop(given[name]) / VALUES for name, loop in order}
        taken["observe, all above 90 %"] = timed["observe"](above) / VALUES
        rounds.append(taken)
    print(f"Python {sys.version.split()[0]}, {ROUNDS} rounds of {VALUES} calls; loop included")
    for name in rounds[0]:
        values = [taken[name] for taken in rounds]
        ratios = sorted(taken[name] / taken["observe"] for taken in rounds)
        spread = f"{ratios[len(ratios) // 10]:.2f} to {ratios[-len(ratios) // 10]:.2f}"
        print(f"{name:32} {statistics.median(values):8.1f} ns   {statistics.median(ratios):6.2f} x observe ({spread})")
    calls = [taken["observe"] / taken["empty call"] for taken in rounds]
    print(f"observe / empty call: {statistics.median(calls):.2f}")
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
