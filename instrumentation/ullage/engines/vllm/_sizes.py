"""The sizes that vLLM's components must agree on: which there are, and the limits they are computed from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.contracts import Contract
from ullage.engines.vllm._identity import ranks
from ullage.segment.agreement import AT_LEAST, EQUAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    Inputs = dict[str, Any]

SOURCE_BYTES = 64


class Size(NamedTuple):
    """What is agreed on."""

    dims: tuple[str, ...]
    relation: str
    unit: str


SIZES: Mapping[str, Size] = {
    "limits": Size(("max_model_len", "max_num_seqs", "max_num_batched_tokens", "num_gpu_blocks"), EQUAL, ""),
    "block_table.tokens": Size(("tokens",), AT_LEAST, "tokens"),
    "block_table.width": Size(("columns",), EQUAL, "columns"),
    "kv_cache.blocks": Size(("blocks",), AT_LEAST, "blocks"),
    "lora.slots": Size(("adapters",), AT_LEAST, "adapters"),
    "rope.rows": Size(("rows",), AT_LEAST, "rows"),
    "step.tokens": Size(("rows",), AT_LEAST, "rows"),
    "step.requests": Size(("rows",), AT_LEAST, "rows"),
    "indexer.decode_rows": Size(("rows",), AT_LEAST, "rows"),
    "indexer.arange": Size(("rows",), AT_LEAST, "rows"),
    "indexer.prefill_rows": Size(("rows",), AT_LEAST, "rows"),
    "flashmla.num_splits": Size(("rows",), AT_LEAST, "rows"),
    "flashmla.tile_rows": Size(("rows",), AT_LEAST, "rows"),
    "flashinfer.page_indices": Size(("pages",), AT_LEAST, "pages"),
    "flashinfer.workspace": Size(("bytes",), AT_LEAST, "bytes"),
    "mamba.state_rows": Size(("rows",), AT_LEAST, "rows"),
    "gdn.token_rows": Size(("rows",), AT_LEAST, "rows"),
    "draft.arange": Size(("rows",), AT_LEAST, "rows"),
    "workspace.bytes": Size(("bytes",), AT_LEAST, "bytes"),
    "attention.heads": Size(("query heads", "kv heads", "head size"), EQUAL, "heads"),
    "attention.metadata_buffer": Size(("numbers",), AT_LEAST, "numbers"),
    "attention.scheduler_metadata": Size(("numbers",), EQUAL, "numbers"),
    "bitmask.rows": Size(("rows",), AT_LEAST, "rows"),
    "bitmask.columns": Size(("columns",), EQUAL, "columns"),
    "connector.blocks": Size(("blocks",), AT_LEAST, "blocks"),
    "connector.tokens": Size(("tokens",), AT_LEAST, "tokens"),
    "connector.layers": Size(("layers",), EQUAL, "layers"),
    "draft.step_tokens": Size(("rows",), AT_LEAST, "rows"),
    "draft.sample_rows": Size(("rows",), AT_LEAST, "rows"),
    "draft.tokens": Size(("columns",), AT_LEAST, "columns"),
}
"""By name; a name may be followed by ``/`` and what tells several of one kind apart.

``step.tokens`` and ``step.requests`` have a row for each token, or request, of the largest step.
"""

_contracts: dict[str, Contract] = {}


def agreed(name: str, *, own: bool = False) -> Contract:
    """Return the contract of a size; it is registered when the first component speaks of it.

    Processes of one engine speak of the same sizes, but for data-parallel ones; ``own``: this worker alone does.
    """
    rank = ranks.own if own else ranks.data
    name = f"{name}/{rank}" if rank else name
    if name not in _contracts:
        size = SIZES[name.partition("/")[0]]
        _contracts[name] = Contract(name, dims=size.dims, relation=size.relation, unit=size.unit)
    return _contracts[name]


def source(*parts: str) -> str:
    """Return the name of a source that fits into its record."""
    return ".".join(parts).encode()[:SOURCE_BYTES].decode(errors="ignore")


def inputs(config: Any, *names: str, **more: Any) -> Inputs:
    """Return the limits of ``names`` as they are in force now; those that change nothing are left out."""
    every = {
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
        "num_speculative_tokens": look_ahead_tokens(config),
    }
    found = {name: every[name] for name in names}
    look_ahead = every["num_speculative_tokens"]
    if look_ahead:
        found["num_speculative_tokens"] = look_ahead
    shards = config.parallel_config.decode_context_parallel_size
    if shards > 1:
        found["decode_context_parallel_size"] = shards
    return {**found, **more}


def look_ahead_tokens(config: Any) -> int:
    """Return how many tokens a step guesses for each sequence."""
    speculative = config.speculative_config
    return (speculative.num_speculative_tokens or 0) if speculative is not None else 0
