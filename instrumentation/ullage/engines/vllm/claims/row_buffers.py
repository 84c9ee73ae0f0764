"""Buffers with a row for each token or request of a step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from ullage.engines.vllm.contract_registry import (
    DECODE_ARANGE,
    DECODE_ROWS,
    DRAFT_ARANGE,
    DRAFT_TOKENS,
    NUM_SPLITS,
    SEQUENCE_TOKENS,
    STATE_ROWS,
    STEP_REQUESTS,
    STEP_TOKENS,
    source,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ullage.engines.runner_view import RowBuffer, RowHolder, RunnerView
    from ullage.engines.vllm.contract_registry import ContractRegistry


class Need(NamedTuple):
    """The rows that a size must have.

    Attributes:
        source: What needs them.
        limit: The limit that says how many.
        more: Rows in addition.
    """

    source: str
    limit: str
    more: int = 0


NEEDS = {
    STEP_TOKENS: Need("scheduler", "max_num_batched_tokens"),
    STEP_REQUESTS: Need("scheduler", "max_num_seqs"),
    DECODE_ROWS: Need("decode batch", "max_num_batched_tokens"),
    DECODE_ARANGE: Need("decode batch", "max_num_batched_tokens"),
    NUM_SPLITS: Need("decode batch", "max_num_seqs", more=1),
    DRAFT_ARANGE: Need("decode batch", "max_num_seqs", more=1),
    DRAFT_TOKENS: Need("scheduler", "num_speculative_tokens"),
}
GRAPHS = {
    STEP_TOKENS: Need("graph capture", "num_tokens"),
    STEP_REQUESTS: Need("graph capture", "num_reqs"),
    STATE_ROWS: Need("graph capture", "num_reqs"),
    NUM_SPLITS: Need("graph capture", "num_reqs", more=1),
}
"""The rows that the largest captured graph needs; its limits are those of its batch."""


def claim(view: RunnerView, sizes: ContractRegistry) -> None:
    """Claim the rows of all buffers that a runner steps with, and those that a step needs."""
    for holder in (*view.rows, *(builder.rows for builder in view.builders)):
        claim_holder(holder, view, sizes)


def claim_holder(holder: RowHolder, view: RunnerView, sizes: ContractRegistry) -> None:
    """Claim the rows of each buffer of ``holder``, alike ones together, and those that such buffers need."""
    for (size, rows), names in alike(holder.buffers).items():
        contract, need, graph = sizes.contract(size), NEEDS.get(size), GRAPHS.get(size)
        limit = need.limit if need is not None else "max_model_len" if size == SEQUENCE_TOKENS else "max_num_seqs"
        given = view.limits.inputs(limit)
        at_allocation = {name: holder.allocated_for.get(name, value) for name, value in given.items()}
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        contract.claim(source(holder.owner, names[0] + others), (rows,), role="provides", inputs=at_allocation)
        if need is not None:
            contract.claim(need.source, (given[limit] + need.more,), role="requires", inputs=given)
        largest = getattr(view.graphs, graph.limit) if graph is not None else 0
        if graph is not None and largest:
            captured = {**given, "max_cudagraph_capture_size": view.graphs.max_capture_size}
            contract.claim(graph.source, (largest + graph.more,), role="requires", inputs=captured)


def alike(buffers: Iterable[RowBuffer]) -> dict[tuple[str, int], list[str]]:
    """Return the names of buffers by their size and rows."""
    found: dict[tuple[str, int], list[str]] = {}
    for buffer in buffers:
        found.setdefault((buffer.size, buffer.rows), []).append(buffer.name)
    return found


def room(holder: RowHolder) -> tuple[float, float]:
    """Return the tokens and the requests that the buffers of a holder have rows for; infinity without such buffers."""
    counts = {"max_num_batched_tokens": math.inf, "max_num_seqs": math.inf}
    for buffer in holder.buffers:
        need = NEEDS.get(buffer.size)
        if need is not None:
            counts[need.limit] = min(counts[need.limit], buffer.rows - need.more)
    return counts["max_num_batched_tokens"], counts["max_num_seqs"]
