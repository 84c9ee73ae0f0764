"""The sizes that vLLM's components must agree on: their dimensions and relations, and their contracts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ullage.recording.contracts import Contract
from ullage.segment.agreement import AT_LEAST, EQUAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ullage.engines.instance import EngineInstance

SOURCE_BYTES = 64

STEP_TOKENS, STEP_REQUESTS, SEQUENCE_TOKENS = "step.tokens", "step.requests", "block_table.tokens"
DECODE_ROWS, DECODE_ARANGE = "indexer.decode_rows", "indexer.arange"
NUM_SPLITS, STATE_ROWS = "flashmla.num_splits", "mamba.state_rows"
DRAFT_ARANGE, DRAFT_TOKENS = "draft.arange", "draft.tokens"
DRAFT_STEP_TOKENS, DRAFT_SAMPLES = "draft.step_tokens", "draft.sample_rows"
TABLE_WIDTH, PAGE_INDICES = "block_table.width", "flashinfer.page_indices"


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


class ContractRegistry:
    """The contracts of one engine instance, by the name of their size.

    Attributes:
        engine: The engine instance.
    """

    def __init__(self, engine: EngineInstance) -> None:
        self.engine = engine
        self._contracts: dict[str, Contract] = {}

    def contract(self, name: str, *, own: bool = False) -> Contract:
        """Return the contract of a size; it is registered when the first component speaks of it.

        Processes of one engine speak of the same sizes, but for data-parallel ones; ``own``: this worker alone does.

        Raises:
            KeyError: ``SIZES`` has no such size.
        """
        ranks = self.engine.ranks
        rank = ranks.own if own else ranks.data
        name = f"{name}/{rank}" if rank else name
        if name not in self._contracts:
            size = SIZES[name.partition("/")[0]]
            self._contracts[name] = Contract(
                name, dims=size.dims, relation=size.relation, unit=size.unit, owner=self.engine
            )
        return self._contracts[name]


def source(*parts: str) -> str:
    """Return the name of a source that fits into its record."""
    return ".".join(parts).encode()[:SOURCE_BYTES].decode(errors="ignore")
