"""Attention groups of both runners: what their metadata builders and layers have."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from ullage.engines.runner_view import AttentionGroup, Builder, Layer, RowHolder, Workspace
from ullage.engines.vllm.views.common import engine_version, part
from ullage.engines.vllm.views.row_names import BUILDER, LAYER, row_buffers, row_holder, shape_of, shapes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ullage.engines.runner_view import Heads

_TABLE_COPIES = ("expanded_block_table_buffer",)
"""Tensors as wide as the block table: (rows, columns)."""
_SHAPES = ("paged_kv_indices", "cg_buf_tile_scheduler_metadata", "spec_token_indx", "non_spec_token_indx")
_NUMBERS = (
    "max_num_batched_tokens",
    "num_qo_heads",
    "head_dim",
    "num_q_heads",
    "dcp_world_size",
    "max_prefill_buffer_size",
    "compress_ratio",
)
_INT32_BACKENDS = {"TritonMLABackend": (0, 23)}
"""Attention backends whose kernels compute offsets in 32 bits, and the first version of vLLM of which that is not
known: 0.22.1 does, 0.25.1 does not."""


def target_groups(runner: Any) -> tuple[AttentionGroup, ...]:
    """Return the attention groups of a runner's model."""
    groups = [(group, number) for number, groups in enumerate(runner.attn_groups) for group in groups]
    return tuple(_attention_group(group, number, runner) for group, number in groups)


def draft_groups(runner: Any, groups: Iterable[Any]) -> tuple[AttentionGroup, ...]:
    """Return the attention groups of a draft model, which share the KV-cache groups of the runner's."""
    return tuple(_attention_group(group, group.kv_cache_group_id, runner) for group in groups)


def topk_buffers(config: Any) -> Iterator[RowHolder]:
    """Yield the sparse layers of a model, with the buffer of indices that they share."""
    for layer in config.compilation_config.static_forward_context.values():
        for holder in (layer, getattr(layer, "impl", None)):
            buffers = row_buffers(shapes_of(holder, LAYER), LAYER)
            if buffers:
                yield RowHolder(type(layer).__name__, buffers)
                break


def table_copies(builder: Any) -> dict[str, int]:
    """Return the columns of the tensors into which a builder copies the block table, by name."""
    found = {name: getattr(builder, name, None) for name in _TABLE_COPIES}
    return {name: int(copy.shape[1]) for name, copy in found.items() if copy is not None}


def _attention_group(group: Any, number: int, runner: Any) -> AttentionGroup:
    """Read one group. A builder or a layer that cannot be read is left out, and takes no other with it."""
    layers, num_blocks = runner.vllm_config.compilation_config.static_forward_context, runner.kv_cache_config.num_blocks
    label = f" {number}" if len(runner.attn_groups) > 1 else ""
    names = [name for name in getattr(group, "layer_names", ()) if name in layers]
    builders = [
        part("metadata builder", partial(_builder, each, number, label), None) for each in group.metadata_builders
    ]
    return AttentionGroup(
        int32_offsets=_has_int32_offsets(getattr(getattr(group, "backend", None), "__name__", "")),
        layers=tuple(part("layer", partial(_layer, layers[name], num_blocks), Layer(0, None)) for name in names),
        builders=tuple(builder for builder in builders if builder is not None),
    )


def _builder(builder: Any, group: int, label: str) -> Builder:
    name = type(builder).__name__
    shapes = {attribute: shape_of(getattr(builder, attribute, None)) for attribute in _SHAPES}
    numbers = {attribute: getattr(builder, attribute, None) for attribute in _NUMBERS}
    if shapes["cg_buf_tile_scheduler_metadata"]:
        properties = sys.modules["torch"].cuda.get_device_properties(builder.device)
        numbers["num_sms"] = int(properties.multi_processor_count)
    return Builder(
        name=name,
        group=group,
        block_size=builder.kv_cache_spec.block_size,
        rows=row_holder(name + label, builder, BUILDER),
        table_copies=table_copies(builder),
        shapes={attribute: shape for attribute, shape in shapes.items() if shape},
        numbers={attribute: number for attribute, number in numbers.items() if isinstance(number, int)},
        workspace=_workspace(builder),
        planned_heads=_planned_heads(builder),
        engine_object=builder,
    )


def _workspace(builder: Any) -> Workspace | None:
    """Return the workspace of a FlashInfer builder that estimates what it needs of it.

    The V2 runner shares one: its bytes are those that the first builder estimates, from its own heads (attn_utils.py,
    init_attn_backend, of 0.32). An older vLLM gives each workspace one constant size. Without splits nothing is stored.
    """
    workspace = getattr(builder, "_workspace_buffer", None)
    module = sys.modules.get(type(builder).__module__)
    estimates = hasattr(module, "FLASHINFER_PREFILL_WORKSPACE_BYTES_PER_ELEM")
    if workspace is None or not estimates or builder.disable_split_kv:
        return None
    return Workspace(id(workspace), int(workspace.nbytes))


def _planned_heads(builder: Any) -> Heads | None:
    if not getattr(builder, "aot_schedule", False):
        return None
    return builder.num_heads_q, builder.num_heads_kv, builder.headdim


def _layer(layer: Any, num_blocks: int) -> Layer:
    return Layer(
        block_stride=_block_stride(getattr(layer, "kv_cache", None), num_blocks),
        heads=_heads(getattr(layer, "impl", None)),
    )


def _heads(implementation: Any) -> Heads | None:
    names = ("num_heads", "num_kv_heads", "head_size")
    query, key_value, size = (getattr(implementation, name, None) for name in names)
    return None if query is None or key_value is None or size is None else (query, key_value, size)


def _block_stride(cache: Any, num_blocks: int) -> int:
    """Return the elements between two blocks; 0 if no dimension counts blocks."""
    tensor = cache[0] if isinstance(cache, (list, tuple)) and cache else cache
    shape = tuple(getattr(tensor, "shape", ()))
    return int(tensor.stride(shape.index(num_blocks))) if num_blocks in shape else 0


def _has_int32_offsets(backend: str) -> bool:
    version = engine_version()
    return backend in _INT32_BACKENDS and version is not None and version < _INT32_BACKENDS[backend]
