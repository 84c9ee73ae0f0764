"""One walk over a runner when its KV cache is initialised: only then have its buffers their final sizes.

Before, the tables of a healthy engine can have another width. Each part reads shapes and limits that stand, makes
claims of them, and fails alone.
"""

from __future__ import annotations

from typing import Any

from ullage import safety
from ullage.engines.vllm import backends, builds, drafts, held, limits, offsets, planner, ropes, rows, tables

PARTS = (
    held.record,
    limits.claim_of_runner,
    tables.claim,
    rows.claim,
    drafts.claim,
    backends.claim,
    ropes.claim,
    offsets.claim,
    planner.claim,
    builds.watch,
)

READS = (
    "GPUModelRunner.vllm_config",
    "GPUModelRunner.max_model_len",
    "GPUModelRunner.kv_cache_config",
    "GPUModelRunner.attn_groups",
    "GPUModelRunner.input_batch",
    "vllm.v1.kv_cache_interface:KVCacheConfig.num_blocks",
    "vllm.v1.kv_cache_interface:KVCacheConfig.kv_cache_groups",
    "vllm.v1.kv_cache_interface:KVCacheGroupSpec.kv_cache_spec",
    "vllm.v1.worker.utils:AttentionGroup.metadata_builders",
    "vllm.v1.worker.utils:AttentionGroup.kv_cache_group_id",
    "vllm.v1.worker.block_table:MultiGroupBlockTable.block_tables",
    "vllm.v1.worker.block_table:BlockTable.block_table",
    "vllm.v1.worker.block_table:BlockTable.block_size",
    "vllm.v1.worker.block_table:BlockTable.dcp_world_size",
    "vllm.v1.worker.block_table:BlockTable.pcp_world_size",
    "vllm.v1.attention.backend:CommonAttentionMetadata.num_actual_tokens",
    "vllm.v1.attention.backend:CommonAttentionMetadata.num_reqs",
    "vllm.v1.attention.backend:CommonAttentionMetadata.max_seq_len",
    "vllm.v1.attention.backend:CommonAttentionMetadata.block_table_tensor",
    "vllm.v1.attention.backend:AttentionMetadataBuilder.kv_cache_spec",
    "vllm.v1.attention.backend:AttentionMetadataBuilder.vllm_config",
    "vllm.config.compilation:CompilationConfig.static_forward_context",
    "vllm.config.compilation:CompilationConfig.max_cudagraph_capture_size",
    "vllm.config.parallel:ParallelConfig.decode_context_parallel_size",
)
"""What the walk, and the looks at batches that it prepares, cannot do without."""


def walk(runner: Any) -> None:
    """Claim the size of everything that ``runner`` and what hangs on it have allocated, and what it must hold."""
    for part in PARTS:
        with safety.shield(f"walk: {part.__module__}"):
            part(runner)
