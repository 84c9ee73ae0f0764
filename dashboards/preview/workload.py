"""A speculative decoder in miniature: its load swings, its draft buffer grows once, and two formulas disagree.

python workload.py [--violate-after SECONDS] [--disagree] [--busy SHARE]
"""

from __future__ import annotations

import argparse
import math
import random
import time

import ullage

PERIOD_S = 45
STEP_S = 0.02


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--violate-after", type=float, default=math.inf)
    parser.add_argument("--disagree", action="store_true")
    parser.add_argument("--busy", type=float, default=0.6)
    options = parser.parse_args()

    rows = ullage.buffer("draft_rows", capacity=512, unit="rows", limit="max_num_seqs x 4")
    slots = ullage.buffer("request_slots", capacity=64, unit="requests", kind="managed", limit="max_num_seqs")
    workspace = ullage.buffer("workspace", capacity=1 << 26, unit="bytes", limit="worst case")
    width = ullage.Contract("block_table.width", dims=("columns",), unit="columns")
    width.claim("runner", (512,), inputs={"max_model_len": 8192, "block_size": 16})
    width.claim("indexer", (511 if options.disagree else 512,), inputs={"max_model_len": 8192, "block_size": 16})

    chance, start, capacity = random.Random(options.busy), time.monotonic(), 512
    while True:
        passed = time.monotonic() - start
        share = options.busy * (0.75 + 0.25 * math.sin(2 * math.pi * passed / PERIOD_S)) + chance.gauss(0, 0.03)
        share = min(1.0, max(0.0, share))
        need = int(512 * share)
        if passed > options.violate_after:
            need, options.violate_after = capacity + 9, math.inf
            width.compare(511, 512, sources=("runner", "kernel"))
        width.compare(512, 512, sources=("runner", "kernel"))
        if capacity == 512 and passed > PERIOD_S and options.busy > 0.8 and not options.disagree:
            capacity = 768
            rows.resize(capacity)
        rows.observe(need)
        slots.observe(int(64 * share))
        workspace.observe(int((1 << 26) * share * 0.8))
        ullage.step()
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
