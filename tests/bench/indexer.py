"""What a guarded write costs, side by side with ``index_copy_`` and ``buf[idx] = v`` on the same rows. On CPU.

The cases run in random order, many times, in one process. A ratio is the median of the ratios of each round. The
device guard is what indices without a host mirror pay; here it runs on CPU tensors, where a kernel launch is a call.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

WIDTH = 128
ROUNDS = 41
SAMPLE_S = 0.004  # of raw writes, at least one


def timed(write, idx, values, calls):
    """Microseconds of one call, on average over some."""
    start = time.perf_counter_ns()
    for _ in range(calls):
        write(idx, values)
    return (time.perf_counter_ns() - start) / calls / 1000


def main():
    directory = Path(tempfile.mkdtemp(prefix="ullage-bench-", dir="/dev/shm"))
    os.environ["ULLAGE_DIR"] = str(directory)
    from ullage.indexer import GrowingIndexer, GuardedIndexer

    torch.set_num_threads(1)
    chance = random.Random(1)
    gc.disable()
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, rows of {WIDTH} float32, {ROUNDS} rounds")
    for count in (64, 1024, 8192, 65536):
        made = (count, (WIDTH,), torch.float32, "cpu")
        guarded, growing = GuardedIndexer("guarded", *made), GrowingIndexer("growing", *made)
        unseen, traced = GuardedIndexer("unseen", *made), GuardedIndexer("traced", *made)
        unseen._host_sees = False  # as if the indices were on a device
        compiled = torch.compile(traced.write, fullgraph=True, dynamic=False)
        for indexer in (growing, unseen, traced):
            indexer._rows = guarded._rows  # all write to the same memory, or the caches would decide
        plain = guarded._rows.storage
        cases = {
            "index_copy_": lambda idx, values, plain=plain: plain.index_copy_(0, idx, values),
            "buf[idx] = v": plain.__setitem__,
            "guarded": guarded.write,
            "growing": growing.write,
            "device guard, eager": unseen.write,
            "device guard, compiled": compiled,
        }
        idx, values = torch.randperm(count), torch.randn(count, WIDTH)
        for write in cases.values():
            timed(write, idx, values, 3)
        calls = max(1, int(SAMPLE_S * 1e6 / timed(cases["index_copy_"], idx, values, 20)))
        rounds = []
        for _ in range(ROUNDS):
            order = list(cases.items())
            chance.shuffle(order)
            rounds.append({name: timed(write, idx, values, calls) for name, write in order})
        print(f"{count} rows")
        for name in cases:
            ratios = sorted(taken[name] / taken["index_copy_"] for taken in rounds)
            spread = f"{ratios[ROUNDS // 10]:.2f} to {ratios[-ROUNDS // 10]:.2f}"
            median = statistics.median(taken[name] for taken in rounds)
            print(f"  {name:24} {median:9.1f} us   {statistics.median(ratios):5.2f} x index_copy_ ({spread})")
        for indexer in (guarded, growing, unseen, traced):
            indexer.close()
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
