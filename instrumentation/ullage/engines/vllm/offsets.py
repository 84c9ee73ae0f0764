"""Kernels that compute offsets into the KV cache in 32 bits: what they cannot address is silently another block."""

from __future__ import annotations

import sys
from typing import Any

from ullage.engines.vllm._sizes import agreed

INDEX_LIMIT = 2**31
NARROW = {"TritonMLABackend": (0, 23)}
"""Attention backends whose kernels do so, and the first version of vLLM of which that is not known: 0.22.1 does, 0.25.1
does not."""


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


def _narrow(backend: str) -> bool:
    from ullage.engines.vllm import parsed  # noqa: PLC0415  the package is complete by now

    version = parsed(str(getattr(sys.modules.get("vllm"), "__version__", "")))
    return backend in NARROW and version is not None and version < NARROW[backend]


def _block_stride(cache: Any, blocks: int) -> int:
    """Return how many elements lie between two blocks; 0 if that cannot be told."""
    tensor = cache[0] if isinstance(cache, (list, tuple)) and cache else cache
    shape = tuple(getattr(tensor, "shape", ()))
    return int(tensor.stride(shape.index(blocks))) if blocks in shape else 0
