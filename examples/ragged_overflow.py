"""A static capacity that only some ragged batches exceed: with a plain buffer, a guarded one and a growing one.

It needs torch. The plain buffer is a part of a workspace, as in an engine: behind it lie another request's rows.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch

import ullage
from ullage.indexer import GrowingIndexer, GuardedIndexer, check_invariants

if TYPE_CHECKING:
    from collections.abc import Iterator

WORST_CASE, NEIGHBOUR, WIDTH = 32, 8, 16  # 8 requests of 4 tokens; somebody took the average for the worst case
ROWS = (WORST_CASE, (WIDTH,), torch.float32, "cpu")


def batches() -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yield 40 batches of 8 requests with 1 to 7 tokens each: number, a row for each token, values."""
    chance = random.Random(3)
    for number in range(40):
        tokens = sum(chance.randint(1, 7) for _ in range(8))
        yield number, torch.arange(tokens), torch.rand(tokens, WIDTH)


def main() -> None:
    """Write the same batches three times."""
    workspace = torch.full((WORST_CASE + NEIGHBOUR, WIDTH), 7.0)
    neighbour = workspace[WORST_CASE:]  # another request's rows
    for number, idx, values in batches():
        neighbour.fill_(7)
        try:
            workspace[: len(idx)] = values
        except RuntimeError as error:
            print(f"plain: batch {number} crashed: {error}")
        if changed := int((neighbour != 7).any(dim=1).sum()):
            print(f"plain: batch {number} changed {changed} rows of its neighbour, and nobody noticed")

    guarded = GuardedIndexer("draft_rows", *ROWS)
    for number, idx, values in batches():
        try:
            guarded.write(idx, values)
        except ullage.BoundsViolation as error:
            print(f"guarded: batch {number} was refused: {error}")

    growing = GrowingIndexer("growing_draft_rows", *ROWS)
    for _, idx, values in batches():
        growing.write(idx, values)
        check_invariants(growing, idx, values)
    print(f"growing: all batches fit; {growing.resizes} growth, {growing.peak} of {growing.capacity} rows needed")


if __name__ == "__main__":
    main()
