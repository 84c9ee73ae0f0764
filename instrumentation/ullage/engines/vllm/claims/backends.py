"""Buffers of single attention backends: FlashInfer, FlashMLA, gated delta networks, the sparse-attention indexer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ullage.engines.vllm.contract_registry import PAGE_INDICES, source

if TYPE_CHECKING:
    from ullage.engines.runner_view import Builder, RunnerView
    from ullage.engines.vllm.contract_registry import ContractRegistry

WORKSPACE = "flashinfer.workspace"
PREFILL_BYTES = 16
"""vLLM 0.27.1, v1/attention/backends/flashinfer.py, FLASHINFER_PREFILL_WORKSPACE_BYTES_PER_ELEM."""
HEADS_OF_A_TILE = 64
"""FlashMLA, csrc/extension/sm90/dense_fp8/pybind.cpp, get_mla_decoding_metadata_dense_fp8: block_size_m."""


def claim(view: RunnerView, sizes: ContractRegistry) -> None:
    """Claim the buffers that metadata builders have for their backend alone, and the room that these need."""
    for builder in view.builders:
        _claim_pages(builder, view, sizes)
        _claim_tiles(builder, sizes)
        _claim_token_index(builder, view, sizes)
        _claim_gathered(builder, view, sizes)
    _claim_workspaces(view, sizes)


def _claim_pages(builder: Builder, view: RunnerView, sizes: ContractRegistry) -> None:
    """FlashInfer lists the pages of all sequences of a step one after another."""
    pages, limits = builder.shapes.get("paged_kv_indices"), view.limits
    if pages is None or not builder.name.startswith("FlashInfer"):
        return
    longest = -(-limits.max_model_len // (builder.block_size * limits.decode_context_parallel_size))
    given = limits.inputs("max_num_seqs", "max_model_len", block_size=builder.block_size)
    contract = sizes.contract(PAGE_INDICES)
    contract.claim(source(builder.name, "paged_kv_indices"), pages[:1], role="provides", inputs=given)
    contract.claim("largest step", (limits.max_num_seqs * longest,), role="requires", inputs=given)


def _claim_workspaces(view: RunnerView, sizes: ContractRegistry) -> None:
    """FlashInfer's builders may share a workspace: each estimates the bytes that it needs from its own heads.

    The plan's exact need is computed in FlashInfer, from the device. This is vLLM's estimate of it, since 0.27:
    v1/attention/backends/flashinfer.py, _get_workspace_buffer, ``est``.
    """
    numbers: dict[int, int] = {}
    for position, builder in enumerate(view.builders):
        names = ("max_num_batched_tokens", "num_qo_heads", "head_dim")
        given = {name: builder.numbers[name] for name in names if name in builder.numbers}
        if builder.workspace is None or len(given) < len(names):
            continue
        number = numbers.setdefault(builder.workspace.identity, len(numbers))
        contract = sizes.contract(f"{WORKSPACE}/{number}" if number else WORKSPACE, own=True)
        contract.claim("FlashInfer workspace", (builder.workspace.nbytes,), role="provides")
        needed = math.prod(given.values()) * PREFILL_BYTES
        contract.claim(f"{builder.name} {position}", (needed,), role="requires", inputs=given)


def _claim_tiles(builder: Builder, sizes: ContractRegistry) -> None:
    """FlashMLA's planner gives a row to each part of the device; fewer, if a sequence's heads fill several tiles."""
    rows = builder.shapes.get("cg_buf_tile_scheduler_metadata")
    if rows is None:
        return
    heads, num_sms = (
        builder.numbers["num_q_heads"] * builder.numbers.get("dcp_world_size", 1),
        builder.numbers["num_sms"],
    )
    given = {"num_sms": num_sms, "tiles_of_heads": -(-heads // HEADS_OF_A_TILE)}
    contract = sizes.contract("flashmla.tile_rows")
    name = source(builder.name, "cg_buf_tile_scheduler_metadata")
    contract.claim(name, rows[:1], role="provides", inputs={"num_sms": num_sms})
    needed = max(num_sms // given["tiles_of_heads"], 1)
    contract.claim("FlashMLA's planner", (needed,), role="requires", inputs=given)


def _claim_token_index(builder: Builder, view: RunnerView, sizes: ContractRegistry) -> None:
    """Gated delta networks list the tokens of the sequences in a captured graph, and of each its drafts."""
    if "spec_token_indx" not in builder.shapes:
        return
    tokens = 1 + view.limits.num_speculative_tokens
    given = view.limits.inputs(
        "max_num_seqs", max_cudagraph_capture_size=view.graphs.max_capture_size, tokens_per_sequence=tokens
    )
    contract = sizes.contract("gdn.token_rows")
    for index in ("spec_token_indx", "non_spec_token_indx"):
        contract.claim(source(builder.name, index), builder.shapes.get(index, ()), role="provides", inputs=given)
    if view.graphs.num_reqs:
        graph = {"graph_requests": view.graphs.num_reqs, "tokens_per_sequence": tokens}
        contract.claim("graph capture", (view.graphs.num_reqs * tokens,), role="requires", inputs=graph)


def _claim_gathered(builder: Builder, view: RunnerView, sizes: ContractRegistry) -> None:
    """The indexer gathers prefills in chunks; one sequence is never divided, so the longest must fit."""
    gathered, ratio = builder.numbers.get("max_prefill_buffer_size"), builder.numbers.get("compress_ratio", 1)
    if gathered is None:
        return
    contract = sizes.contract("indexer.prefill_rows")
    given = view.limits.inputs("max_model_len", compress_ratio=ratio)
    name = source(builder.name, "max_prefill_buffer_size")
    contract.claim(name, (gathered * ratio,), role="provides", inputs=given)
    needed = view.limits.inputs("max_model_len")
    contract.claim("longest sequence", (view.limits.max_model_len,), role="requires", inputs=needed)
