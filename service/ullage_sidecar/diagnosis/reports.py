"""Public reports by signature: what is agreed on, and which rule explained it. Looked up afterwards, never scored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage_sidecar.formulas import quantity

if TYPE_CHECKING:
    from collections.abc import Iterable

REPORTS: dict[tuple[str, str], tuple[str, ...]] = {
    ("attention.heads", "foreign input"): ("vllm-project/vllm#53002", "vllm-project/vllm#47626"),
    ("attention.scheduler_metadata", "derived twice: dynamic_split"): ("sgl-project/sglang#22800",),
    ("attention.scheduler_metadata", "derived twice: head_swizzle"): ("vllm-project/vllm#48221",),
    ("attention.scheduler_metadata", "derived twice: varlen"): (
        "vllm-project/flash-attention#161",
        "vllm-project/vllm#48221",
    ),
    ("attention.scheduler_metadata", "two eras"): ("flagos-ai/FlagGems#4243",),
    ("attention.metadata_buffer", "two eras"): ("vllm-project/vllm#34043",),
    ("bitmask.columns", "foreign input"): ("vllm-project/vllm#50924",),
    ("block_table.tokens", "kernel page"): ("vllm-project/vllm#54359",),
    ("block_table.tokens", "narrow table"): ("vllm-project/vllm#53982",),
    ("block_table.tokens", "static assumption"): ("vllm-project/vllm#53658",),
    ("block_table.width", "context-parallel divisor"): ("vllm-project/vllm#48404",),
    ("block_table.width", "look-ahead"): ("vllm-project/vllm-ascend#11466",),
    ("block_table.width", "off by one"): ("tonyd2wild/GLM-5.3#6",),
    ("block_table.width", "stale input"): ("vllm-project/vllm#46679",),
    ("block_table.width", "token alignment"): (
        "vllm-project/vllm#50302",
        "vllm-project/vllm#44827",
        "vllm-project/vllm#50050",
        "vllm-project/vllm#43970",
        "local-inference-lab/vllm#166",
        "vllm-project/vllm#39324",
    ),
    ("cuda_graph.coverage", "graph coverage"): ("vllm-project/vllm-ascend#16049",),
    ("step.requests", "graph padding"): ("vllm-project/vllm-ascend#16168",),
    ("draft.arange", "off by one"): ("vllm-project/vllm-ascend#16316",),
    ("draft.tokens", "stale input"): ("vllm-project/vllm#47014",),
    ("flashinfer.workspace", "hard-coded constant"): (
        "vllm-project/vllm#40381",
        "vllm-project/vllm#50781",
        "vllm-project/vllm#25342",
    ),
    ("indexer.arange", "static assumption"): ("vllm-project/vllm#40983",),
    ("indexer.topk", "hard-coded constant"): ("ROCm/ATOM#1591",),
    ("kv_cache.block_size", "stale input"): ("vllm-project/vllm#51031",),
    ("kv_cache.blocks", "index width"): ("vllm-project/vllm#47671", "vllm-project/vllm-xpu-kernels#445"),
    ("mamba.blocks", "static assumption"): ("vllm-project/vllm#55148",),
    ("moe.dispatch_tokens", "static assumption"): ("sgl-project/sglang#28914",),
    ("positions.rows", "look-ahead"): ("vllm-project/vllm#48725",),
    ("rope.rows", "foreign limit"): ("vllm-project/vllm#48894", "vllm-project/vllm#57941"),
    ("rope.rows", "static assumption"): ("vllm-project/vllm-ascend#1266",),
    ("workspace.bytes", "warm-up gap"): (
        "vllm-project/vllm#43357",
        "vllm-project/vllm#48179",
        "vllm-project/vllm#45032",
        "local-inference-lab/vllm#224",
    ),
}
"""The reports that were read for the case suite (``tests/cases``), those about vLLM and its kernels."""


def reported(contract: str, rules: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of reports in the same place with one of these causes."""
    about = quantity(contract)
    return tuple(dict.fromkeys(report for rule in rules for report in REPORTS.get((about, rule), ())))
