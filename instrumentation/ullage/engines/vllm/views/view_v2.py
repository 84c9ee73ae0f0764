"""A view of the V2 model runner, when its KV cache is initialised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.engines.runner_view import BlockTable, Drafter, Graphs, RowHolder, RunnerView
from ullage.engines.vllm.views.builders import draft_groups, target_groups, topk_buffers
from ullage.engines.vllm.views.common import (
    draft_step,
    graphs,
    is_positional,
    layer_spec,
    limits_of,
    part,
    parts,
    rotary_caches,
    tensors,
    tensors_of_builders,
)
from ullage.engines.vllm.views.row_names import (
    BLOCK_TABLE,
    DRAFT_INPUTS,
    EXPANDED,
    INPUT_BATCH,
    INPUT_BUFFERS,
    SAMPLED,
    SPECULATOR,
    allocated_for,
    names_in,
    row_buffers,
    row_holder,
    shape_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ullage.engines.runner_view import Builder
    from ullage.recording.inventory import TensorInfo

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
"""What a view, and the runner's own buffers, cannot do without."""

_GRAPHS = ("cudagraph_manager", "prefill_cudagraph_manager", "decode_cudagraph_manager", "query_cudagraph_manager")
"""Where speculators keep the graphs that they will capture."""
_DRAFT_TENSORS = names_in(SPECULATOR, SAMPLED, EXPANDED, DRAFT_INPUTS)
_ADVANCING = ("sample_src_positions", "expanded_positions")
"""Tensors of speculators, since 0.32, that draft one token after another, each at the next position."""
_LIMITS = {
    "max_num_reqs": "max_num_seqs",
    "max_num_tokens": "max_num_batched_tokens",
    "num_speculative_steps": "num_speculative_tokens",
}
"""Limits by the names that a speculator gives to those that it was made for."""


def view(runner: Any) -> RunnerView:
    """Read a V2 runner. A part that cannot be read is empty.

    Raises:
        AttributeError: The limits in its configuration have other names: no claim can be made.
    """
    config, speculator = runner.vllm_config, runner.speculator
    groups = parts("attention groups", lambda: target_groups(runner))
    drafts = parts("draft groups", lambda: draft_groups(runner, _draft_groups(speculator)))
    builders = [builder for group in (*groups, *drafts) for builder in group.builders]
    draft_model = getattr(speculator, "model", None)
    max_model_len = part("max_model_len", lambda: int(runner.max_model_len), None)
    return RunnerView(
        limits=limits_of(config),
        max_model_len=max_model_len,
        num_blocks=part("num_blocks", lambda: int(runner.kv_cache_config.num_blocks), None),
        tables=parts("block tables", lambda: _tables(runner)),
        rows=parts("row buffers", lambda: _row_holders(runner)) + parts("top-k buffers", lambda: topk_buffers(config)),
        attention_groups=groups,
        draft_groups=drafts,
        rotary_caches=parts("rotary caches", lambda: rotary_caches(getattr(runner, "model", None), config)),
        draft_rotary_caches=parts("draft rotary caches", lambda: rotary_caches(draft_model, config)),
        # V1 stops drafting at the draft's limit; here it is given all positions of the target.
        draft_max_model_len=max_model_len,
        drafter=part("drafter", lambda: _drafter(runner), None),
        graphs=part("graphs", lambda: graphs(_graph_batches(runner), config), Graphs()),
        async_scheduling=bool(getattr(config.scheduler_config, "async_scheduling", False)),
        tensors=part("tensors", lambda: _tensors(runner, builders), {}),
    )


def _tables(runner: Any) -> Iterator[BlockTable]:
    tables, groups = runner.block_tables, runner.kv_cache_config.kv_cache_groups
    split = getattr(tables, "blocks_per_kv_block", [1] * len(tables.block_sizes))
    each = zip(tables.block_tables, tables.block_sizes, split, groups, strict=False)
    for number, (table, size, pieces, group) in enumerate(each):
        spec = layer_spec(group.kv_cache_spec)
        yield BlockTable(
            group=number,
            columns=int(table.gpu.shape[1]),
            block_size=size // pieces,
            manager_block_size=getattr(spec, "block_size", size // pieces),
            shards=tables.cp_size if getattr(group.kv_cache_spec, "dcp_sharded", True) else 1,
            positional=is_positional(spec),
            max_model_len=runner.vllm_config.model_config.max_model_len,
        )


def _row_holders(runner: Any) -> Iterator[RowHolder]:
    yield row_holder("runner", runner.input_buffers, INPUT_BUFFERS)
    token_ids = {"token_ids_cpu": shape_of(runner.req_states.all_token_ids)}
    yield RowHolder("input batch", row_buffers(token_ids, INPUT_BATCH))
    tables = runner.block_tables
    for number, table in enumerate(tables.block_tables):
        owner = f"block table {number}" if number else "block table"
        shapes = {"block_table": shape_of(table), "slot_mapping": tuple(tables.slot_mappings.shape[1:])}
        yield RowHolder(owner, row_buffers(shapes, BLOCK_TABLE))


def _draft_groups(speculator: Any) -> list[Any]:
    return [group for groups in getattr(speculator, "attn_groups", ()) for group in groups]


def _drafter(runner: Any) -> Drafter | None:
    """Read a speculator: what it holds itself and in its input buffers."""
    speculator, config = runner.speculator, runner.vllm_config
    if speculator is None:
        return None
    held = _attributes(speculator)
    shapes = {name: shape_of(held[name]) for name in _DRAFT_TENSORS if name in held}
    limits = {**held, **{limit: held[name] for name, limit in _LIMITS.items() if name in held}}
    queries = getattr(speculator, "num_query_per_req", 1)
    advances = getattr(speculator, "advance_draft_positions", True) and any(name in held for name in _ADVANCING)
    return Drafter(
        rows=RowHolder(f"drafter {type(speculator).__name__}", row_buffers(shapes, SPECULATOR), allocated_for(limits)),
        step_rows=row_buffers(shapes, DRAFT_INPUTS if queries > 1 else EXPANDED),
        sample_rows=row_buffers(shapes, SAMPLED),
        queries_per_request=queries,
        slots_per_request=getattr(speculator, "num_extra_query_per_req", 0),
        # Until 0.33 the limit is that of when it was made: it is not lowered with the runner's (speculator.py).
        reach=getattr(speculator, "max_model_len", runner.max_model_len) if advances else None,
        step=draft_step(config),
    )


def _attributes(speculator: Any) -> dict[str, Any]:
    buffers = getattr(speculator, "input_buffers", None)
    return {**(vars(buffers) if buffers is not None else {}), **vars(speculator)}


def _graph_batches(runner: Any) -> Iterator[Any]:
    managers = [runner.cudagraph_manager, *(getattr(runner.speculator, name, None) for name in _GRAPHS)]
    for manager in managers:
        for batches in getattr(manager, "_capture_descs", {}).values():
            yield from batches


def _tensors(runner: Any, builders: list[Builder]) -> dict[str, tuple[TensorInfo, ...]]:
    names = names_in(INPUT_BUFFERS)
    groups = [group for groups in runner.attn_groups for group in groups]
    found = {
        "runner": tuple(tensors({name: getattr(runner.input_buffers, name, None) for name in names})),
        **tensors_of_builders(builders),
        "attention_group": tuple(each for group in groups for each in tensors(vars(group))),
    }
    if runner.speculator is not None:
        found["drafter"] = tuple(tensors(_attributes(runner.speculator)))
    return found
