"""What the hook costs a process that starts: CPU of its import, and of its registration with a stand-in vLLM.

    python tests/bench/start.py

Compared with the import of prometheus_client, in the same run and in turn.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

ROUNDS = 15
STAND_IN = """
import sys, types
vllm = types.ModuleType("vllm")
vllm.__version__ = "0.32.0"
sys.modules["vllm"] = vllm
import asyncio, dataclasses, inspect, json, logging, multiprocessing.util  # an engine has these
"""
CASES = {
    "import prometheus_client": ("", "import prometheus_client"),
    "import ullage": ("", "import ullage"),
    "registration": (STAND_IN, "from ullage.engines.vllm import register; register()"),
}
MEASURE = """
{before}
import time, sys
known, start = set(sys.modules), time.process_time()
{code}
print(time.process_time() - start, sum(name.startswith("ullage") for name in set(sys.modules) - known))
"""


def measured(case):
    """Return milliseconds of CPU, and how many modules of ours were imported."""
    before, code = CASES[case]
    program = [sys.executable, "-c", MEASURE.format(before=before, code=code)]
    seconds, modules = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds) * 1000, int(modules)


def main():
    found = {case: [] for case in CASES}
    for _ in range(ROUNDS):
        for case in CASES:
            found[case].append(measured(case))
    base = statistics.median(cost for cost, _ in found["import prometheus_client"])
    for case, costs in found.items():
        cost = statistics.median(each for each, _ in costs)
        print(f"{case}: {cost:.1f} ms of CPU, {cost / base:.2f} of prometheus_client, {costs[0][1]} modules of ours")


if __name__ == "__main__":
    main()
