"""A decode loop over ragged batches, and the buffer that was sized for the average one.

Run it beside ``ullage serve`` with ULLAGE_DIR set. It needs nothing but Python and ullage:

    python examples/ragged_batches.py [--seconds 20]

The three lines that matter are marked.
"""

from __future__ import annotations

import argparse
import random
import time

import ullage

MAX_SEQS = 32
AVERAGE_TOKENS = 4  # each sequence drafts 1 to 8 tokens; somebody sized the buffer for the average


def main() -> None:
    """Decode batches that grow until they no longer fit, then shrink again."""
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=20)
    seconds = options.parse_args().seconds
    capacity = MAX_SEQS * AVERAGE_TOKENS
    rows = ullage.buffer("draft_rows", capacity=capacity, unit="rows", limit="max_seqs x 4")  # 1
    chance = random.Random(7)
    start = time.monotonic()
    while (passed := time.monotonic() - start) < seconds:
        share = min(1.0, 2 * passed / seconds) if passed < seconds * 0.6 else 0.3
        batch = [chance.randint(1, 8) for _ in range(int(MAX_SEQS * 0.95 * share))]
        rows.observe(sum(batch))  # 2
        ullage.step()  # 3
        time.sleep(0.01)


if __name__ == "__main__":
    main()
