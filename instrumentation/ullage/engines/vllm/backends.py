"""What single attention backends allocate for themselves: FlashInfer, FlashMLA, gated delta networks, the indexer."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from ullage.engines._patch import Hook, argument
from ullage.engines.vllm._sizes import agreed, inputs, look_ahead_tokens, source
from ullage.engines.vllm.builds import PROBE
from ullage.engines.vllm.rows import TOKENS, largest_graph, shape_of
from ullage.engines.vllm.tables import each_builder

if TYPE_CHECKING:
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

PAGES, WORKSPACE, TILES, TOKEN_INDEX = (
    "flashinfer.page_indices",
    "flashinfer.workspace",
    "flashmla.tile_rows",
    "gdn.token_rows",
)
PREFILL_BYTES = 16
"""vLLM 0.27.1, v1/attention/backends/flashinfer.py, FLASHINFER_PREFILL_WORKSPACE_BYTES_PER_ELEM."""
HEADS_OF_A_TILE = 64
"""FlashMLA, csrc/extension/sm90/dense_fp8/pybind.cpp, get_mla_decoding_metadata_dense_fp8: block_size_m."""


def claim(runner: Any) -> None:
    """Claim what the metadata builders of a runner have for their backend alone, and what that needs."""
    config, graph = runner.vllm_config, largest_graph(runner)
    workspaces: list[int] = []
    for number, (builder, _) in enumerate(each_builder(runner)):
        _claim_pages(builder, config)
        _claim_workspace(builder, number, workspaces)
        _claim_tiles(builder)
        _claim_token_index(builder, config, graph)
        _claim_gathered(builder, config)
    _claim_topk(runner)


def _claim_pages(builder: Any, config: Any) -> None:
    """FlashInfer lists the pages of all sequences of a step one after another."""
    pages = shape_of(getattr(builder, "paged_kv_indices", None))
    if pages and type(builder).__name__.startswith("FlashInfer"):
        block_size = builder.kv_cache_spec.block_size
        longest = -(
            -config.model_config.max_model_len // (block_size * config.parallel_config.decode_context_parallel_size)
        )
        given = inputs(config, "max_num_seqs", "max_model_len", block_size=block_size)
        contract = agreed(PAGES)
        contract.claim(source(type(builder).__name__, "paged_kv_indices"), pages[:1], role="provides", inputs=given)
        needed = config.scheduler_config.max_num_seqs * longest
        contract.claim("largest step", (needed,), role="requires", inputs=given)


def _claim_workspace(builder: Any, number: int, workspaces: list[int]) -> None:
    """The V2 runner shares one workspace: its bytes are those that the first builder estimates, from its own heads.

    attn_utils.py, init_attn_backend, of 0.32. What a plan needs is computed in FlashInfer, from the device; this is
    vLLM's estimate of it, since 0.27 (flashinfer.py, _get_workspace_buffer). Without splits there is nothing to store.
    """
    workspace = getattr(builder, "_workspace_buffer", None)
    given = {
        "max_num_batched_tokens": getattr(builder, "max_num_batched_tokens", None),
        "num_qo_heads": getattr(builder, "num_qo_heads", None),
        "head_dim": getattr(builder, "head_dim", None),
    }
    needed = _workspace_estimate(given)
    if workspace is None or needed is None or not _estimates(builder) or builder.disable_split_kv:
        return
    if id(workspace) not in workspaces:
        workspaces.append(id(workspace))
    which = workspaces.index(id(workspace))
    contract = agreed(f"{WORKSPACE}/{which}" if which else WORKSPACE, own=True)
    contract.claim("FlashInfer workspace", (int(workspace.nbytes),), role="provides")
    contract.claim(f"{type(builder).__name__} {number}", (needed,), role="requires", inputs=given)


def _workspace_estimate(given: dict[str, Any]) -> int | None:
    """Return the bytes that a FlashInfer builder estimates for its prefills; None if a size is not known.

    Source: vLLM 0.27.1, v1/attention/backends/flashinfer.py, _get_workspace_buffer: ``est``.
    """
    sizes = given.values()
    return math.prod(sizes) * PREFILL_BYTES if all(isinstance(size, int) for size in sizes) else None


def _estimates(builder: Any) -> bool:
    """Tell whether this vLLM estimates; before, each workspace was of one constant size, however many the heads."""
    return hasattr(sys.modules.get(type(builder).__module__), "FLASHINFER_PREFILL_WORKSPACE_BYTES_PER_ELEM")


def _claim_tiles(builder: Any) -> None:
    """FlashMLA's planner gives a row to each part of the device; fewer, if a sequence's heads fill several tiles."""
    rows = shape_of(getattr(builder, "cg_buf_tile_scheduler_metadata", None))[:1]
    if rows:
        heads = builder.num_q_heads * getattr(builder, "dcp_world_size", 1)
        properties = sys.modules["torch"].cuda.get_device_properties(builder.device)
        given = {"num_sms": int(properties.multi_processor_count), "tiles_of_heads": -(-heads // HEADS_OF_A_TILE)}
        contract = agreed(TILES)
        name = source(type(builder).__name__, "cg_buf_tile_scheduler_metadata")
        contract.claim(name, rows, role="provides", inputs={"num_sms": given["num_sms"]})
        needed = max(given["num_sms"] // given["tiles_of_heads"], 1)
        contract.claim("FlashMLA's planner", (needed,), role="requires", inputs=given)


def _claim_token_index(builder: Any, config: Any, graph: dict[str, int]) -> None:
    """Gated delta networks list the tokens of the sequences in a captured graph, and of each its drafts."""
    rows = shape_of(getattr(builder, "spec_token_indx", None))
    if rows:
        given = inputs(
            config,
            "max_num_seqs",
            max_cudagraph_capture_size=config.compilation_config.max_cudagraph_capture_size,
            tokens_per_sequence=1 + look_ahead_tokens(config),
        )
        contract, name = agreed(TOKEN_INDEX), type(builder).__name__
        for index in ("spec_token_indx", "non_spec_token_indx"):
            contract.claim(source(name, index), shape_of(getattr(builder, index)), role="provides", inputs=given)
        if "num_reqs" in graph:
            given = {"graph_requests": graph["num_reqs"], "tokens_per_sequence": given["tokens_per_sequence"]}
            needed = given["graph_requests"] * given["tokens_per_sequence"]
            contract.claim("graph capture", (needed,), role="requires", inputs=given)


def _claim_gathered(builder: Any, config: Any) -> None:
    """The indexer gathers prefills in chunks; one sequence is never divided, so the longest must fit."""
    gathered = getattr(builder, "max_prefill_buffer_size", None)
    if isinstance(gathered, int):
        ratio = getattr(builder, "compress_ratio", 1)
        given = inputs(config, "max_model_len", compress_ratio=ratio)
        name = source(type(builder).__name__, "max_prefill_buffer_size")
        contract = agreed("indexer.prefill_rows")
        contract.claim(name, (gathered * ratio,), role="provides", inputs=given)
        longest = config.model_config.max_model_len
        contract.claim("longest sequence", (longest,), role="requires", inputs=inputs(config, "max_model_len"))


def _claim_topk(runner: Any) -> None:
    """The sparse layers of a model share one buffer of indices."""
    config = runner.vllm_config
    for layer in config.compilation_config.static_forward_context.values():
        for holder in (layer, getattr(layer, "impl", None)):
            shape = shape_of(getattr(holder, "topk_indices_buffer", None))
            if shape:
                name = source(type(layer).__name__, "topk_indices_buffer")
                agreed(TOKENS).claim(name, shape[:1], role="provides", inputs=inputs(config, "max_num_batched_tokens"))
                break


def _lists_pages(args: Args, kwargs: Kwargs) -> None:
    """Before the pages are listed: numpy sums them, a slice that is too long is cut, and a kernel writes them all."""
    builder, blocks = args[0], argument("num_blocks_np", 1, args, kwargs)
    have, need = int(builder.paged_kv_indices.shape[0]), int(blocks.sum())
    sources = (source(type(builder).__name__, "paged_kv_indices"), "batch")
    agreed(PAGES).compare(have, need, inputs=lambda: {"num_reqs": len(blocks)}, sources=sources)


HOOKS = (
    Hook(
        "vllm.v1.attention.backends.flashinfer",
        "FlashInferMetadataBuilder._compute_flashinfer_kv_metadata",
        ("num_blocks_np",),
        before=_lists_pages,
        reads=(
            "FlashInferMetadataBuilder.paged_kv_indices",
            "FlashInferMetadataBuilder._workspace_buffer",
            "FlashInferMetadataBuilder.max_num_batched_tokens",
            "FlashInferMetadataBuilder.num_qo_heads",
            "FlashInferMetadataBuilder.head_dim",
            "FlashInferMetadataBuilder.disable_split_kv",
            "vllm.v1.attention.backends.mla.flashmla:FlashMLAMetadataBuilder.cg_buf_tile_scheduler_metadata",
            "vllm.v1.attention.backends.mla.flashmla:FlashMLAMetadataBuilder.num_q_heads",
            "vllm.v1.attention.backends.gdn_attn:GDNAttentionMetadataBuilder.spec_token_indx",
            "vllm.v1.attention.backends.gdn_attn:GDNAttentionMetadataBuilder.non_spec_token_indx",
        ),
        shared=PROBE,
    ),
)
