"""FlashInfer's list of pages, in each step: the pages of a batch against the room for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.engines.patch import Patch, argument
from ullage.engines.vllm.attention.metadata_builders import PROBE
from ullage.engines.vllm.contract_registry import PAGE_INDICES, ContractRegistry, source
from ullage.engines.vllm.identity import engine_of

if TYPE_CHECKING:
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


def _lists_pages(args: Args, kwargs: Kwargs) -> None:
    """Before the pages are listed: numpy sums them, a slice that is too long is cut, and a kernel writes them all."""
    builder, blocks = args[0], argument("num_blocks_np", 1, args, kwargs)
    have, need = int(builder.paged_kv_indices.shape[0]), int(blocks.sum())
    sources = (source(type(builder).__name__, "paged_kv_indices"), "batch")
    contract = engine_of(builder).part(ContractRegistry).contract(PAGE_INDICES)
    contract.compare(have, need, inputs=lambda: {"num_reqs": len(blocks)}, sources=sources)


PATCHES = (
    Patch(
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
