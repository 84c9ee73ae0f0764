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
_GRAPHS = ("cudagraph_manager", "prefill_cudagraph_manager", "decode_cudagraph_manager", "query_cudagraph_manager")
"""Where speculators keep the graphs that they will capture."""
_OF_CLASS = {"num_query_per_req": 1, "num_extra_query_per_req": 0, "advance_draft_positions": True}
"""What can stand in a speculator's class, and what it is where it is not said."""
_LIMITS = {
    "max_num_seqs": "max_num_reqs",
    "max_num_batched_tokens": "max_num_tokens",
    "num_speculative_tokens": "num_speculative_steps",
}
"""What a speculator calls the limits that it was made for."""


def as_v1(runner: Any) -> SimpleNamespace:
    """Return a view of ``runner``; of its speculator a view as well, twice: it is also what no V1 runner has."""
    states, drafter = runner.req_states, _drafter(runner)
    return SimpleNamespace(
        vllm_config=runner.vllm_config,
        max_model_len=runner.max_model_len,
        kv_cache_config=runner.kv_cache_config,
        attn_groups=runner.attn_groups,
        model=getattr(runner, "model", None),
        use_async_scheduling=bool(getattr(runner.vllm_config.scheduler_config, "async_scheduling", False)),
        cudagraph_dispatcher=_graphs(runner.cudagraph_manager),
        input_batch=SimpleNamespace(
            token_ids_cpu=states.all_token_ids.gpu, block_table=SimpleNamespace(block_tables=_tables(runner))
        ),
        drafter=drafter,
        speculator=drafter,
        # V1 stops drafting at the draft's limit; here it is given all positions of the target.
        effective_drafter_max_model_len=runner.max_model_len,
        **{name: getattr(runner.input_buffers, name, None) for name in _STEP},
    )


def _drafter(runner: Any) -> SimpleNamespace | None:
    """Return what the speculator holds itself and in its input buffers, under its class's name."""
    speculator = runner.speculator
    if speculator is None:
        return None
    held = {**_vars(getattr(speculator, "input_buffers", None)), **_vars(speculator)}
    held |= {
        "draft_attn_groups": [one for group in getattr(speculator, "attn_groups", ()) for one in group],
        "cudagraph_dispatcher": _graphs(*(getattr(speculator, name, None) for name in _GRAPHS)),
        "max_model_len": getattr(speculator, "max_model_len", runner.max_model_len),
        **{name: getattr(speculator, name, default) for name, default in _OF_CLASS.items()},
        **{limit: held[name] for limit, name in _LIMITS.items() if name in held},
    }
    view: SimpleNamespace = type(type(speculator).__name__, (SimpleNamespace,), {})(**held)
    return view


def _vars(owner: Any) -> dict[str, Any]:
    return vars(owner) if owner is not None else {}


def _graphs(*managers: Any) -> SimpleNamespace:
    captured = [getattr(manager, "_capture_descs", {}) for manager in managers]
    keys = {(number, mode): graphs for number, each in enumerate(captured) for mode, graphs in each.items()}
    return SimpleNamespace(cudagraph_keys=keys)


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
