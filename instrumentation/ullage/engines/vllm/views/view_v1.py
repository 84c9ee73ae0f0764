"""A view of the V1 model runner, when its KV cache is initialised: before, its tables can have another width."""

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
    INPUT_BATCH,
    PROPOSER,
    RUNNER,
    row_buffers,
    row_holder,
    shapes_of,
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
"""What a view, and the checks of batches that are made of it, cannot do without."""


def view(runner: Any) -> RunnerView:
    """Read a V1 runner. A part that cannot be read is empty.

    Raises:
        AttributeError: The limits in its configuration have other names: no claim can be made.
    """
    config, drafter = runner.vllm_config, getattr(runner, "drafter", None)
    groups = parts("attention groups", lambda: target_groups(runner))
    drafts = parts("draft groups", lambda: draft_groups(runner, getattr(drafter, "draft_attn_groups", ())))
    builders = [builder for group in (*groups, *drafts) for builder in group.builders]
    draft_model = getattr(drafter, "model", None)
    return RunnerView(
        limits=limits_of(config),
        max_model_len=part("max_model_len", lambda: int(runner.max_model_len), None),
        num_blocks=part("num_blocks", lambda: int(runner.kv_cache_config.num_blocks), None),
        tables=parts("block tables", lambda: _tables(runner)),
        rows=parts("row buffers", lambda: _row_holders(runner)) + parts("top-k buffers", lambda: topk_buffers(config)),
        attention_groups=groups,
        draft_groups=drafts,
        rotary_caches=parts("rotary caches", lambda: rotary_caches(getattr(runner, "model", None), config)),
        draft_rotary_caches=parts("draft rotary caches", lambda: rotary_caches(draft_model, config)),
        draft_max_model_len=getattr(runner, "effective_drafter_max_model_len", None),
        drafter=part("drafter", lambda: _drafter(drafter, config), None),
        graphs=part("graphs", lambda: graphs(_graph_batches(runner, drafter), config), Graphs()),
        async_scheduling=bool(getattr(runner, "use_async_scheduling", False)),
        tensors=part("tensors", lambda: _tensors(runner, drafter, builders), {}),
    )


def _tables(runner: Any) -> Iterator[BlockTable]:
    """Yield the block tables. Encoder-only layers have none."""
    # vLLM may fit the limit to the memory after the tables are allocated.
    longest = getattr(runner.input_batch, "max_model_len", runner.vllm_config.model_config.max_model_len)
    groups = runner.kv_cache_config.kv_cache_groups
    for number, (table, group) in enumerate(zip(_block_tables(runner), groups, strict=False)):
        spec = layer_spec(group.kv_cache_spec)
        yield BlockTable(
            group=number,
            columns=int(table.block_table.gpu.shape[1]),
            block_size=table.block_size,
            manager_block_size=getattr(spec, "block_size", table.block_size),
            shards=table.dcp_world_size * table.pcp_world_size,
            positional=is_positional(spec),
            max_model_len=longest,
        )


def _block_tables(runner: Any) -> list[Any]:
    tables: list[Any] = runner.input_batch.block_table.block_tables
    return tables


def _row_holders(runner: Any) -> Iterator[RowHolder]:
    yield row_holder("runner", runner, RUNNER)
    yield row_holder("input batch", runner.input_batch, INPUT_BATCH)
    for number, table in enumerate(_block_tables(runner)):
        yield row_holder(f"block table {number}" if number else "block table", table, BLOCK_TABLE)


def _drafter(drafter: Any, config: Any) -> Drafter | None:
    """Read a proposer; not one of DFlash, which divides the tokens of a step between buffers of its own."""
    if drafter is None or getattr(drafter, "method", "") == "dflash":
        return None
    return Drafter(
        rows=row_holder(f"drafter {type(drafter).__name__}", drafter, PROPOSER),
        step_rows=row_buffers(shapes_of(drafter, DRAFT_INPUTS), DRAFT_INPUTS),
        queries_per_request=getattr(drafter, "num_query_per_req", 1),
        slots_per_request=getattr(drafter, "net_num_new_slots_per_request", 0),
        step=draft_step(config),
    )


def _graph_batches(runner: Any, drafter: Any) -> Iterator[Any]:
    for holder in (runner, drafter):
        dispatcher = getattr(holder, "cudagraph_dispatcher", None)
        for batches in getattr(dispatcher, "cudagraph_keys", {}).values():
            yield from batches


def _tensors(runner: Any, drafter: Any, builders: list[Builder]) -> dict[str, tuple[TensorInfo, ...]]:
    groups = [group for groups in runner.attn_groups for group in groups]
    found = {
        "runner": tuple(tensors(vars(runner))),
        "block_table": tuple(each for table in _block_tables(runner) for each in tensors(vars(table))),
        **tensors_of_builders(builders),
        "attention_group": tuple(each for group in groups for each in tensors(vars(group))),
    }
    if drafter is not None:
        found["drafter"] = tuple(tensors(vars(drafter)))
    return found
