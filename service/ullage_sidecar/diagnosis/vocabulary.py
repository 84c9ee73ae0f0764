"""Names of recorded inputs that mean something to a rule, whichever engine they come from."""

from __future__ import annotations

LOOK_AHEAD = (
    "num_lookahead_tokens",
    "num_speculative_tokens",
    "num_draft_tokens",
    "num_speculative_blocks",
    "look_ahead",
)
PARALLEL = ("decode_context_parallel_size", "dcp_world_size", "dcp", "context_parallel_size")
GRAPHS = ("max_cudagraph_capture_size", "cuda_graph_max_bs", "max_prefill_graph_tokens", "num_tokens_padded")
"""How large a captured graph is: batches are padded up to it."""

SEQUENCES, STEP, LENGTH = "sequences", "tokens of a step", "tokens of a sequence"
COUNTED_IN = {
    "max_num_seqs": SEQUENCES,
    "max_running_requests": SEQUENCES,
    "max_batch_size": SEQUENCES,
    "num_reqs": SEQUENCES,
    "max_num_batched_tokens": STEP,
    "max_prefill_graph_tokens": STEP,
    "num_query_tokens": STEP,
    "num_tokens": STEP,
    "max_model_len": LENGTH,
    "context_len": LENGTH,
    "max_seq_len_to_capture": LENGTH,
    "max_position_embeddings": LENGTH,
}
"""What a limit counts."""

OBSERVED = ("seq_len", "position", "item_tokens", "received_tokens", "cached_tokens")
"""What traffic brought: no limit, and no formula gives it."""

PARTS = ("draft_", "target_", "encoder_", "decoder_", "local_", "remote_")
"""Prefixes that say whose an input is."""

BUILDS = ("version", "backend", "layout", "commit")
"""Endings of inputs that name the implementation of a side."""

ROLE = "kv_role"
"""The end of a transfer between two engines that a side is."""

LOCKED = ("locked", "profiled")
"""Recorded with a size that is what the warm-up needed: whether it was locked then, or is what a profile run saw."""


def whose(name: str) -> tuple[str, str]:
    """Split an input's name into whose it is and what it is; the first is empty where the name does not say."""
    for part in PARTS:
        if name.startswith(part):
            return part, name[len(part) :]
    return "", name
