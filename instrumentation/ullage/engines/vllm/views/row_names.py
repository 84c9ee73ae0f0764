"""Tensors of vLLM that have a row for each token or request of a step, by their names there.

Read in vLLM 0.22.1, 0.25.1, 0.27.1, 0.32.0 and 0.33.0; docs/engines.md says which release has which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.engines.runner_view import RowBuffer, RowHolder
from ullage.engines.vllm.contract_registry import (
    DECODE_ARANGE,
    DECODE_ROWS,
    DRAFT_ARANGE,
    DRAFT_SAMPLES,
    DRAFT_STEP_TOKENS,
    DRAFT_TOKENS,
    NUM_SPLITS,
    SEQUENCE_TOKENS,
    STATE_ROWS,
    STEP_REQUESTS,
    STEP_TOKENS,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    Shape = tuple[int, ...]


class Rows(NamedTuple):
    """Tensors of one size.

    Attributes:
        size: The name of the size.
        attributes: Names of the tensors, separated by spaces; an object may lack any of them.
        dim: The dimension that counts.
        beyond: Rows in addition: 1 for boundaries, which have an end as well.
    """

    size: str
    attributes: str
    dim: int = 0
    beyond: int = 0


RUNNER = (
    Rows(
        STEP_TOKENS,
        "input_ids positions is_padding req_indices inputs_embeds is_token_ids arange_np query_pos "
        "kv_sharing_fast_prefill_logits_indices",
    ),
    Rows(STEP_TOKENS, "mrope_positions xdrope_positions", dim=1, beyond=1),
    Rows(
        STEP_REQUESTS,
        "seq_lens optimistic_seq_lens_cpu num_computed_tokens prev_num_draft_tokens prev_positions "
        "num_scheduled_tokens encoder_seq_lens dcp_local_seq_lens discard_request_mask num_decode_draft_tokens "
        "num_accepted_tokens",
    ),
    Rows(STEP_REQUESTS, "query_start_loc arange_np", beyond=1),
)
INPUT_BUFFERS = (
    Rows(STEP_TOKENS, "input_ids positions is_padding"),
    Rows(STEP_REQUESTS, "seq_lens dcp_local_seq_lens"),
    Rows(STEP_REQUESTS, "query_start_loc", beyond=1),
)
"""The same of the V2 runner."""
INPUT_BATCH = (Rows(STEP_REQUESTS, "token_ids_cpu"), Rows(SEQUENCE_TOKENS, "token_ids_cpu", dim=1))
BLOCK_TABLE = (Rows(STEP_REQUESTS, "block_table"), Rows(STEP_TOKENS, "slot_mapping"))
LAYER = (Rows(STEP_TOKENS, "topk_indices_buffer"),)
"""The sparse layers of a model share one buffer of indices."""
BUILDER = (
    Rows(
        STEP_TOKENS,
        "compressed_slot_mapping_buffer slot_mapping_buffer req_id_per_token_buffer mm_prefix_query_ranges_gpu",
    ),
    Rows(
        DECODE_ROWS,
        "decode_lens_buffer per_req_decode_lens_buffer decode_seq_lens_buffer global_decode_seq_lens_buffer "
        "decode_indices_buffer expanded_block_table_buffer expanded_seq_lens_buffer",
    ),
    Rows(DECODE_ARANGE, "arange_buffer"),
    Rows(NUM_SPLITS, "cg_buf_num_splits"),
    Rows(STEP_REQUESTS, "paged_kv_indptr qo_indptr", beyond=1),
    Rows(
        STEP_REQUESTS,
        "topk_tokens_tensor max_model_len_tensor dummy_block_table paged_kv_last_page_len persistent_rswa_prefix_lens "
        "_dcp_context_kv_lens _graph_seq_lens decode_bc_pre_scratch",
    ),
    Rows(
        STATE_ROWS,
        "state_indices_tensor_d decode_num_accepted_tokens spec_state_indices_tensor spec_sequence_masks "
        "non_spec_state_indices_tensor num_accepted_tokens decode_state_indices_tensor decode_write_pos_d "
        "decode_is_flush_d decode_replayssm_state_indices_d decode_legacy_state_indices_tensor has_initial_states_d "
        "block_idx_last_scheduled_token block_idx_last_computed_token block_idx_last_scheduled_token_prev_step",
    ),
    Rows(STATE_ROWS, "spec_query_start_loc non_spec_query_start_loc decode_query_start_loc", beyond=1),
)
PROPOSER = (
    Rows(
        STEP_TOKENS,
        "input_ids positions hidden_states inputs_embeds _slot_mapping_buffer token_arange_np is_rejected_token_mask "
        "is_masked_token_mask",
    ),
    Rows(STEP_TOKENS, "mrope_positions", dim=1, beyond=1),
    Rows(DRAFT_ARANGE, "arange"),
    Rows(STEP_REQUESTS, "backup_next_token_ids"),
)
SPECULATOR = (
    Rows(STEP_TOKENS, "input_ids positions is_padding hidden_states inputs_embeds context_positions"),
    Rows(STEP_TOKENS, "_context_slot_mappings", dim=1),
    Rows(
        STEP_REQUESTS,
        "seq_lens dcp_local_seq_lens idx_mapping temperature seeds draft_tokens draft_is_prefilling "
        "draft_token_confidence_probs draft_logits last_token_indices sample_src_positions draft_input_id_overrides "
        "cached_draft_input_ids cached_draft_input_embeds cached_target_hidden_states anchor_hidden anchor_valid "
        "_num_rejected _anchor_idx _draft_scatter_buf drafts scratch",
    ),
    Rows(STEP_REQUESTS, "query_start_loc", beyond=1),
    Rows(DRAFT_ARANGE, "arange arange_np arange_gpu"),
    Rows(DRAFT_TOKENS, "draft_tokens draft_token_confidence_probs draft_logits drafts", dim=1),
)
"""Of the V2 runner, with its input buffers, which are of the same kind as the runner's but its own."""
SAMPLED = (Rows(DRAFT_SAMPLES, "sample_indices sample_pos sample_idx_mapping sample_col"),)
EXPANDED = (
    Rows(DRAFT_STEP_TOKENS, "expanded_input_ids expanded_positions"),
    Rows(DRAFT_STEP_TOKENS, "expanded_slot_mappings", dim=1),
)
DRAFT_INPUTS = (Rows(DRAFT_STEP_TOKENS, "input_ids"),)

_LIMITS = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "num_speculative_tokens",
    "decode_context_parallel_size",
)


def shape_of(tensor: Any) -> Shape:
    """Return the shape of a tensor or an array, or of the pair of tensors that vLLM has for host and device."""
    shape = getattr(getattr(tensor, "gpu", tensor), "shape", ())
    return tuple(int(size) for size in shape)


def names_in(*tables: tuple[Rows, ...]) -> tuple[str, ...]:
    """Return the names of all tensors in ``tables``."""
    return tuple(name for table in tables for rows in table for name in rows.attributes.split())


def shapes_of(holder: Any, table: tuple[Rows, ...]) -> dict[str, Shape]:
    """Return the shapes of the tensors of ``table`` that ``holder`` has."""
    return {name: shape_of(getattr(holder, name, None)) for name in names_in(table)}


def row_buffers(shapes: Mapping[str, Shape], table: tuple[Rows, ...]) -> tuple[RowBuffer, ...]:
    """Return the tensors of ``table`` whose shapes are given, in its order."""
    found = []
    for rows in table:
        for name in rows.attributes.split():
            shape = shapes.get(name, ())
            if len(shape) > rows.dim:
                found.append(RowBuffer(name, rows.size, shape[rows.dim] - rows.beyond))
    return tuple(found)


def allocated_for(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits among an object's attributes."""
    return {name: attributes[name] for name in _LIMITS if name in attributes}


def row_holder(owner: str, holder: Any, table: tuple[Rows, ...]) -> RowHolder:
    """Return the row buffers of ``holder``, and the limits that it keeps."""
    limits = {name: getattr(holder, name) for name in _LIMITS if hasattr(holder, name)}
    return RowHolder(owner, row_buffers(shapes_of(holder, table), table), limits)
