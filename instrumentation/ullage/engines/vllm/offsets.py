"""Kernels that compute offsets in 32 bits: what they cannot address is silently another block, or another adapter.

Which kernels were read, in which versions, stands in docs/engines.md.
"""

from __future__ import annotations

import sys
from typing import Any

from ullage.engines.vllm._sizes import agreed, source

INDEX_LIMIT = 2**31
NARROW = {"TritonMLABackend": (0, 23)}
"""Attention backends whose kernels do so, and the first version of vLLM of which that is not known: 0.22.1 does, 0.25.1
does not."""
ADAPTER_KERNELS = "vllm.lora.ops.triton_ops.kernel_utils"
"""Loaded where LoRA runs in Triton. They multiply the number of a slot, of 32 bits, by the stride between slots:
lora_shrink and lora_expand of 0.22.1, 0.25.1, 0.27.1, 0.32.0 and 0.33.0."""
_STACKED = ("lora_a_stacked", "lora_b_stacked")


def claim(runner: Any) -> None:
    """Claim how many blocks such a kernel reaches, and how many there are."""
    layers = runner.vllm_config.compilation_config.static_forward_context
    blocks = runner.kv_cache_config.num_blocks
    for group in (group for groups in runner.attn_groups for group in groups):
        if not _narrow(getattr(getattr(group, "backend", None), "__name__", "")):
            continue
        for name in group.layer_names:
            stride = _block_stride(getattr(layers.get(name), "kv_cache", None), blocks)
            if stride:
                contract = agreed("kv_cache.blocks")
                given = {"index_limit": INDEX_LIMIT, "block_stride": stride}
                contract.claim("kernel offsets", (-(-INDEX_LIMIT // stride),), role="provides", inputs=given)
                contract.claim("KV cache", (blocks,), role="requires", inputs={"num_gpu_blocks": blocks})
                break


def claim_adapters(manager: Any) -> None:
    """Claim how many slots the kernels of LoRA reach in the widest of a manager's weights, and how many there are."""
    if ADAPTER_KERNELS not in sys.modules:
        return
    widest = ((_slot_stride(layer), type(layer).__name__) for layer in manager.modules.values())
    stride, name = max(widest, default=(0, ""))
    if stride:
        given = {"index_limit": INDEX_LIMIT, "slot_stride": stride}
        contract = agreed("lora.slots")
        contract.claim(source("kernel offsets", name), (-(-INDEX_LIMIT // stride),), role="provides", inputs=given)
        slots = manager.lora_slots
        contract.claim("adapters", (slots,), role="requires", inputs={"max_loras": slots})


def _slot_stride(layer: Any) -> int:
    """Return how many elements lie between two adapters, at most, in the weights of one layer that a kernel indexes.

    Of (slots, 1, rows, columns): an embedding's first, of three dimensions, is looked up elsewhere, and so are those of
    experts, which have other names. Strides that differ between slices are passed as a tensor of 64 bits, and so is a
    stride that needs them.
    """
    found = [0]
    for attribute in _STACKED:
        weights = getattr(layer, attribute, ())
        tensors = weights if isinstance(weights, (list, tuple)) else (weights,)
        strides = {int(tensor.stride(0)) for tensor in tensors if len(tensor.shape) == 4}
        found += strides if len(strides) == 1 and max(strides) < INDEX_LIMIT else ()
    return max(found)


def _narrow(backend: str) -> bool:
    from ullage.engines.vllm import parsed  # noqa: PLC0415  the package is complete by now

    version = parsed(str(getattr(sys.modules.get("vllm"), "__version__", "")))
    return backend in NARROW and version is not None and version < NARROW[backend]


def _block_stride(cache: Any, blocks: int) -> int:
    """Return how many elements lie between two blocks; 0 if that cannot be told."""
    tensor = cache[0] if isinstance(cache, (list, tuple)) and cache else cache
    shape = tuple(getattr(tensor, "shape", ()))
    return int(tensor.stride(shape.index(blocks))) if blocks in shape else 0
