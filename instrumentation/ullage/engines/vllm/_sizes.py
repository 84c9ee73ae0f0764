"""The sizes that vLLM's components must agree on: which there are, and the limits they are computed from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.contracts import Contract
from ullage.diagnosis.claims import AT_LEAST, EQUAL

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
    "sequence.tokens": Size(("tokens",), AT_LEAST, "tokens"),
    "step.tokens": Size(("tokens",), AT_LEAST, "tokens"),
    "step.requests": Size(("requests",), AT_LEAST, "requests"),
    "graph.requests": Size(("requests",), AT_LEAST, "requests"),
    "draft.tokens": Size(("tokens",), AT_LEAST, "tokens"),
    "kv.pages": Size(("pages",), AT_LEAST, "pages"),
    "block_table.width": Size(("columns",), EQUAL, "columns"),
}
"""By name; a name may be followed by ``/`` and what tells several of one kind apart.

``sequence``: what has a place for each token of the longest sequence; ``step``: for each token, or each request, of the
largest step; ``graph``: for each request of the largest captured graph.
"""

_contracts: dict[str, Contract] = {}


def agreed(name: str) -> Contract:
    """Return the contract of a size; it is registered when the first component speaks of it."""
    if name not in _contracts:
        size = SIZES[name.partition("/")[0]]
        _contracts[name] = Contract(name, dims=size.dims, relation=size.relation, unit=size.unit)
    return _contracts[name]


def source(*parts: str) -> str:
    """Return the name of a source that fits into its record."""
    return ".".join(parts).encode()[:SOURCE_BYTES].decode(errors="ignore")


def among_ranks(name: str, config: Any) -> str:
    """Return the name of a size that the ranks of one engine share: data-parallel ones have limits of their own."""
    parallel = config.parallel_config
    if parallel.data_parallel_size == 1:
        return name
    return f"{name}/dp{getattr(parallel, 'data_parallel_index', parallel.data_parallel_rank)}"


def inputs(config: Any, *names: str, **more: Any) -> Inputs:
    """Return the limits of ``names`` as they are in force now; those that change nothing are left out."""
    every = {
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": config.scheduler_config.max_num_seqs,
        "max_num_batched_tokens": config.scheduler_config.max_num_batched_tokens,
    }
    found = {name: every[name] for name in names}
    look_ahead = look_ahead_tokens(config)
    if look_ahead:
        found["num_speculative_tokens"] = look_ahead
    shards = config.parallel_config.decode_context_parallel_size
    if shards > 1:
        found["decode_context_parallel_size"] = shards
    return {**found, **more}


def look_ahead_tokens(config: Any) -> int:
    """Return how many tokens a step guesses for each sequence."""
    speculative = config.speculative_config
    return speculative.num_speculative_tokens if speculative is not None else 0
