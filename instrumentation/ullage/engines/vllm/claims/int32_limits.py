"""Kernels that compute offsets in 32 bits: beyond those they read another block, or another adapter, without an error.

docs/engines.md has the kernels that were read, with their versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.engines.vllm.contract_registry import source

if TYPE_CHECKING:
    from ullage.engines.runner_view import AdapterSlots, RunnerView
    from ullage.engines.vllm.contract_registry import ContractRegistry

INDEX_LIMIT = 2**31


def claim(view: RunnerView, sizes: ContractRegistry) -> None:
    """Claim the blocks that the kernels of each attention group can address, and the blocks that exist."""
    for group in view.attention_groups:
        stride = next((layer.block_stride for layer in group.layers if layer.block_stride), 0)
        if group.int32_offsets and stride:
            contract = sizes.contract("kv_cache.blocks")
            given = {"index_limit": INDEX_LIMIT, "block_stride": stride}
            contract.claim("kernel offsets", (-(-INDEX_LIMIT // stride),), role="provides", inputs=given)
            contract.claim("KV cache", (view.num_blocks,), role="requires", inputs={"num_gpu_blocks": view.num_blocks})


def claim_adapters(adapters: AdapterSlots, sizes: ContractRegistry) -> None:
    """Claim the adapters that the kernels can address in the widest weights, and the slots that exist."""
    contract = sizes.contract("lora.slots")
    given = {"index_limit": INDEX_LIMIT, "slot_stride": adapters.stride}
    reach = -(-INDEX_LIMIT // adapters.stride)
    contract.claim(source("kernel offsets", adapters.layer), (reach,), role="provides", inputs=given)
    contract.claim("adapters", (adapters.slots,), role="requires", inputs={"max_loras": adapters.slots})
