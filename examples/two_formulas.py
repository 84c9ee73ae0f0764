"""Two components compute the same size, each in its own way: 256 against 8192 // 16 = 512.

Nothing is wrong until a batch is large enough; with the claims, it is known before there is any traffic.

    python examples/two_formulas.py
"""

from __future__ import annotations

import ullage

MAX_NUM_SEQS = 256
MAX_MODEL_LEN = 8192


class Planner:
    """Allocates one number for each sequence."""

    def __init__(self, contract: ullage.Contract) -> None:
        self.metadata = [0] * MAX_NUM_SEQS
        contract.claim("planner", len(self.metadata), role="provides", inputs={"max_num_seqs": MAX_NUM_SEQS})


class Kernel:
    """Reads one number for each block of 16 tokens."""

    def __init__(self, contract: ullage.Contract) -> None:
        self.numbers = MAX_MODEL_LEN // 16
        contract.claim("kernel", self.numbers, role="requires", inputs={"max_model_len": MAX_MODEL_LEN})

    def run(self, metadata: list[int]) -> int:
        """Sum up what the planner wrote: an IndexError, or on a device somebody else's memory."""
        return sum(metadata[position] for position in range(self.numbers))


def main() -> None:
    """Let both say what they hold the size to be, then run."""
    size = ullage.Contract("scheduler_metadata", dims=("numbers",), relation=">=", unit="numbers")
    planner, kernel = Planner(size), Kernel(size)
    if not size.compare(len(planner.metadata), kernel.numbers, sources=("planner", "kernel")):
        print("refused: the kernel would read beyond what the planner has")
        return
    print(kernel.run(planner.metadata))


if __name__ == "__main__":
    main()
