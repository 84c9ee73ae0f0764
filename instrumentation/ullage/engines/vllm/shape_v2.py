"""The V2 runner in the shape of the V1 runner, for the walk: the same things, under the names that they have there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

READS = (
    "GPUModelRunner.vllm_config",
    "GPUModelRunner.max_model_len",
    "GPUModelRunner.kv_cache_config",
    "GPUModelRunner.attn_groups",
    "GPUModelRunner.input_buffers",
    "GPUModelRunner.req_states",
    "GPUModelRunner.block_tables",
    "GPUModelRunner.cudagraph_manager",
    "GPUModelRunner.speculator",
    "GPUModelRunner.structured_outputs_worker",
    "GPUModelRunner.vocab_size",
    "vllm.v1.worker.gpu.input_batch:InputBuffers.input_ids",
    "vllm.v1.worker.gpu.states:RequestState.all_token_ids",
    "vllm.v1.worker.gpu.states:RequestState.req_id_to_index",
    "vllm.v1.worker.gpu.states:RequestState.max_num_reqs",
    "vllm.v1.worker.gpu.block_table:BlockTables.block_tables",
    "vllm.v1.worker.gpu.block_table:BlockTables.block_sizes",
    "vllm.v1.worker.gpu.block_table:BlockTables.slot_mappings",
    "vllm.v1.worker.gpu.block_table:BlockTables.cp_size",
    "vllm.v1.worker.gpu.buffer_utils:StagedWriteTensor.gpu",
    "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager._capture_descs",
)
"""What that, and the runner's own buffers, cannot do without."""

_STEP = ("input_ids", "positions", "is_padding", "query_start_loc", "seq_lens", "dcp_local_seq_lens")


def as_v1(runner: Any) -> SimpleNamespace:
    """Return a view of ``runner``; of its speculator the metadata builders only, the rest is another than in V1."""
    states = runner.req_states
    return SimpleNamespace(
        vllm_config=runner.vllm_config,
        max_model_len=runner.max_model_len,
        kv_cache_config=runner.kv_cache_config,
        attn_groups=runner.attn_groups,
        model=getattr(runner, "model", None),
        use_async_scheduling=bool(getattr(runner.vllm_config.scheduler_config, "async_scheduling", False)),
        cudagraph_dispatcher=SimpleNamespace(cudagraph_keys=getattr(runner.cudagraph_manager, "_capture_descs", {})),
        input_batch=SimpleNamespace(
            token_ids_cpu=states.all_token_ids.gpu, block_table=SimpleNamespace(block_tables=_tables(runner))
        ),
        drafter=_drafter(runner.speculator),
        **{name: getattr(runner.input_buffers, name, None) for name in _STEP},
    )


def _drafter(speculator: Any) -> SimpleNamespace | None:
    groups = getattr(speculator, "attn_groups", ())  # of one that runs a model
    return SimpleNamespace(draft_attn_groups=[one for group in groups for one in group]) if groups else None


def _tables(runner: Any) -> list[SimpleNamespace]:
    tables = runner.block_tables
    split = getattr(tables, "blocks_per_kv_block", [1] * len(tables.block_sizes))
    slots = SimpleNamespace(shape=tuple(tables.slot_mappings.shape[1:]))
    return [
        SimpleNamespace(
            block_table=SimpleNamespace(gpu=table.gpu),
            block_size=size // parts,
            dcp_world_size=tables.cp_size if getattr(group.kv_cache_spec, "dcp_sharded", True) else 1,
            pcp_world_size=1,
            slot_mapping=slots,
        )
        for table, size, parts, group in zip(
            tables.block_tables, tables.block_sizes, split, runner.kv_cache_config.kv_cache_groups, strict=False
        )
    ]
