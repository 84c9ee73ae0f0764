"""Buffers with a row for each token or request of a step: of the V1 runner and its metadata builders."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.engines.vllm._sizes import agreed, inputs, source
from ullage.engines.vllm.tables import each_builder

if TYPE_CHECKING:
    from collections.abc import Iterable

TOKENS, REQUESTS, SEQUENCE = "step.tokens", "step.requests", "block_table.tokens"
DECODE, ARANGE, SPLITS, STATES = "indexer.decode_rows", "indexer.arange", "flashmla.num_splits", "mamba.state_rows"
BOUNDARIES, DRAFTS = "draft.arange", "draft.tokens"


class Need(NamedTuple):
    """How many rows a size is asked for.

    Attributes:
        who: Who asks.
        limit: For as many as this limit says.
        more: And so many more.
    """

    who: str
    limit: str
    more: int = 0


NEEDS = {
    TOKENS: Need("scheduler", "max_num_batched_tokens"),
    REQUESTS: Need("scheduler", "max_num_seqs"),
    DECODE: Need("decode batch", "max_num_batched_tokens"),
    ARANGE: Need("decode batch", "max_num_batched_tokens"),
    SPLITS: Need("decode batch", "max_num_seqs", more=1),
    BOUNDARIES: Need("decode batch", "max_num_seqs", more=1),
    DRAFTS: Need("scheduler", "num_speculative_tokens"),
}
GRAPHS = {
    TOKENS: Need("graph capture", "num_tokens"),
    REQUESTS: Need("graph capture", "num_reqs"),
    STATES: Need("graph capture", "num_reqs"),
    SPLITS: Need("graph capture", "num_reqs", more=1),
}
"""What the largest captured graph asks for; its limits are those of its batch."""


class Rows(NamedTuple):
    """Tensors that must have a row for each of something.

    Attributes:
        size: Of what.
        attributes: Names of the tensors in their owner, those that it has.
        dim: The dimension that counts.
        beyond: How many rows it has beyond those: 1 for boundaries, which have an end as well.
    """

    size: str
    attributes: str
    dim: int = 0
    beyond: int = 0


RUNNER = (
    Rows(
        TOKENS,
        "input_ids positions is_padding req_indices inputs_embeds is_token_ids arange_np query_pos "
        "kv_sharing_fast_prefill_logits_indices",
    ),
    Rows(TOKENS, "mrope_positions xdrope_positions", dim=1, beyond=1),
    Rows(
        REQUESTS,
        "seq_lens optimistic_seq_lens_cpu num_computed_tokens prev_num_draft_tokens prev_positions "
        "num_scheduled_tokens encoder_seq_lens dcp_local_seq_lens discard_request_mask num_decode_draft_tokens "
        "num_accepted_tokens",
    ),
    Rows(REQUESTS, "query_start_loc arange_np", beyond=1),
)
INPUT_BATCH = (Rows(REQUESTS, "token_ids_cpu"), Rows(SEQUENCE, "token_ids_cpu", dim=1))
BLOCK_TABLE = (Rows(REQUESTS, "block_table"), Rows(TOKENS, "slot_mapping"))
BUILDER = (
    Rows(
        TOKENS,
        "compressed_slot_mapping_buffer slot_mapping_buffer req_id_per_token_buffer mm_prefix_query_ranges_gpu",
    ),
    Rows(
        DECODE,
        "decode_lens_buffer per_req_decode_lens_buffer decode_seq_lens_buffer global_decode_seq_lens_buffer "
        "decode_indices_buffer expanded_block_table_buffer expanded_seq_lens_buffer",
    ),
    Rows(ARANGE, "arange_buffer"),
    Rows(SPLITS, "cg_buf_num_splits"),
    Rows(REQUESTS, "paged_kv_indptr qo_indptr", beyond=1),
    Rows(
        REQUESTS,
        "topk_tokens_tensor max_model_len_tensor dummy_block_table paged_kv_last_page_len persistent_rswa_prefix_lens "
        "_dcp_context_kv_lens _graph_seq_lens decode_bc_pre_scratch",
    ),
    Rows(
        STATES,
        "state_indices_tensor_d decode_num_accepted_tokens spec_state_indices_tensor spec_sequence_masks "
        "non_spec_state_indices_tensor num_accepted_tokens decode_state_indices_tensor decode_write_pos_d "
        "decode_is_flush_d decode_replayssm_state_indices_d decode_legacy_state_indices_tensor has_initial_states_d "
        "block_idx_last_scheduled_token block_idx_last_computed_token block_idx_last_scheduled_token_prev_step",
    ),
    Rows(STATES, "spec_query_start_loc non_spec_query_start_loc decode_query_start_loc", beyond=1),
)


def claim(runner: Any) -> None:
    """Claim the rows of everything that a runner steps with, and how many a step needs."""
    config, graph = runner.vllm_config, largest_graph(runner)
    held = [("runner", runner, RUNNER), ("input batch", runner.input_batch, INPUT_BATCH)]
    for number, table in enumerate(runner.input_batch.block_table.block_tables):
        held.append((f"block table {number}" if number else "block table", table, BLOCK_TABLE))
    several = len(runner.attn_groups) > 1
    for builder, group in each_builder(runner):
        held.append((type(builder).__name__ + (f" {group}" if several else ""), builder, BUILDER))
    for owner, holder, table in held:
        claim_rows(owner, holder, table, config, graph)


def room(builder: Any) -> tuple[float, float]:
    """Return for how many tokens and requests the tensors of a builder have rows; infinity if it has none."""
    counts = {"max_num_batched_tokens": math.inf, "max_num_seqs": math.inf}
    for size, count in sizes(builder, BUILDER):
        need = NEEDS.get(size)
        if need is not None:
            counts[need.limit] = min(counts[need.limit], count - need.more)
    return counts["max_num_batched_tokens"], counts["max_num_seqs"]


def largest_graph(runner: Any) -> dict[str, int]:
    """Return how many tokens and requests the largest graphs will have; nothing without graphs."""
    largest: dict[str, int] = {}
    for holder in (runner, getattr(runner, "drafter", None)):
        dispatcher = getattr(holder, "cudagraph_dispatcher", None)
        for batches in getattr(dispatcher, "cudagraph_keys", {}).values():
            for batch in batches:
                for limit in ("num_tokens", "num_reqs"):  # a graph of pieces does not say for how many requests
                    largest[limit] = max(largest.get(limit, 0), getattr(batch, limit) or 0)
    return {limit: count for limit, count in largest.items() if count}


def claim_rows(owner: str, holder: Any, table: Iterable[Rows], config: Any, graph: dict[str, int]) -> None:
    """Claim what each tensor of ``holder`` has, those of one size together, and what is asked of such tensors."""
    for (size, count), attributes in sizes(holder, table).items():
        contract, need, more = agreed(size), NEEDS.get(size), GRAPHS.get(size)
        limit = need.limit if need is not None else "max_model_len" if size is SEQUENCE else "max_num_seqs"
        given = inputs(config, limit)
        # When it was allocated: limits may have changed since.
        allocated_for = {name: getattr(holder, name, value) for name, value in given.items()}
        others = f" and {len(attributes) - 1} more" if len(attributes) > 1 else ""
        contract.claim(source(owner, attributes[0] + others), (count,), role="provides", inputs=allocated_for)
        if need is not None:
            contract.claim(need.who, (given[limit] + need.more,), role="requires", inputs=given)
        if more is not None and more.limit in graph:
            captured = {"max_cudagraph_capture_size": config.compilation_config.max_cudagraph_capture_size}
            contract.claim(more.who, (graph[more.limit] + more.more,), role="requires", inputs={**given, **captured})


def sizes(holder: Any, table: Iterable[Rows]) -> dict[tuple[str, int], list[str]]:
    """Return which tensors of ``holder`` have rows for how many of what."""
    found: dict[tuple[str, int], list[str]] = {}
    for rows in table:
        for attribute in rows.attributes.split():
            shape = shape_of(getattr(holder, attribute, None))
            if len(shape) > rows.dim:
                found.setdefault((rows.size, shape[rows.dim] - rows.beyond), []).append(attribute)
    return found


def shape_of(tensor: Any) -> tuple[int, ...]:
    """Return the shape of a tensor or an array, or of the pair of tensors that vLLM has for host and device."""
    shape = getattr(getattr(tensor, "gpu", tensor), "shape", ())
    return tuple(int(size) for size in shape)
