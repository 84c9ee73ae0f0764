"""FlashAttention-3's scheduler metadata: what its planner makes and what its kernel wants, in each era."""

from __future__ import annotations

from ullage_sidecar.formulas import Formula, Input, Term, Vector

_FLAG = (0, 1)
_VARLEN = Input("varlen", domain=_FLAG)
_SPLIT = Input("dynamic_split", domain=_FLAG)
_SWIZZLE = Input("head_swizzle", domain=_FLAG)
_SEMAPHORE = Input("semaphore", domain=_FLAG)
_PADDED = Input("padded_batch", domain=(4, 8, 12, 16, 32, 64, 128, 256))
_BATCH = Input("batch", domain=(1, 2, 4, 8, 16, 32, 64, 128, 256))

_SOURCE = "vllm-project/flash-attention {}, hopper/flash_api.cpp, mha_fwd_get_scheduler_metadata and mha_fwd"

VECTORS = Formula(
    id="flash_attention.metadata.C",
    quantity="attention.scheduler_metadata",
    dims=("numbers",),
    unit="numbers",
    component="FlashAttention-3 with padded vectors",
    role="is",
    engine="vllm",
    versions="[0.17, )",
    inputs=(_VARLEN, _SPLIT, _SWIZZLE, _PADDED, _SEMAPHORE),
    terms=(
        (
            Term("start", "dynamic_split", "vectors"),
            Term("add", 1, "vectors"),
            Term("multiply", "varlen", "vectors"),
            Term("add", "head_swizzle", "vectors"),
            Term("multiply", "padded_batch", "fields"),
            Term("add", "semaphore", "semaphore"),
        ),
    ),
    source=_SOURCE.format("617264c1"),
    tests=(
        Vector(
            {"varlen": 1, "dynamic_split": 0, "head_swizzle": 1, "padded_batch": 4, "semaphore": 1},
            (9,),
            "vllm-project/flash-attention#161, what the planner made",
        ),
        Vector(
            {"varlen": 0, "dynamic_split": 0, "head_swizzle": 1, "padded_batch": 4, "semaphore": 1},
            (5,),
            "vllm-project/flash-attention#161, what the kernel wanted",
        ),
        Vector(
            {"varlen": 1, "dynamic_split": 1, "head_swizzle": 1, "padded_batch": 256, "semaphore": 1},
            (769,),
            "256 sequences, by reading 617264c1",
        ),
    ),
    source_prefixes=("planner", "kernel"),
)

SPLITS = Formula(
    id="flash_attention.metadata.AB",
    quantity="attention.scheduler_metadata",
    dims=("numbers",),
    unit="numbers",
    component="FlashAttention-3 with a number for each sequence",
    role="is",
    engine="vllm",
    versions="[0.8, 0.17)",
    inputs=(_SPLIT, _BATCH, _SEMAPHORE),
    terms=(
        (
            Term("start", "dynamic_split", "vectors"),
            Term("multiply", "batch", "fields"),
            Term("add", "semaphore", "semaphore"),
        ),
    ),
    source=_SOURCE.format("6d21ae21 and 2d3b7508"),
    tests=(
        Vector({"dynamic_split": 1, "batch": 8, "semaphore": 1}, (9,), "vllm-project/vllm#17283, planned for all"),
        Vector({"dynamic_split": 1, "batch": 1, "semaphore": 1}, (2,), "vllm-project/vllm#17283, the prefix alone"),
    ),
    source_prefixes=("planner", "kernel"),
)

_SEQS = Input("max_num_seqs", "scheduler_config.max_num_seqs")
_GRAPH = Input("max_cudagraph_capture_size", "compilation_config.max_cudagraph_capture_size")

PERSISTENT = Formula(
    id="vllm.flash_attention.metadata.buffer",
    quantity="attention.metadata_buffer",
    dims=("numbers",),
    unit="numbers",
    component="FlashAttention metadata builder",
    role="provides",
    engine="vllm",
    versions="[0.17, 0.34)",
    inputs=(_SEQS, _GRAPH),
    terms=(
        (
            Term("start", "max_num_seqs", "base"),
            Term("at_least", "max_cudagraph_capture_size", "graph padding"),
            Term("round_up", 4, "padding"),
            Term("multiply", 4, "fields"),
            Term("add", 1, "semaphore"),
        ),
    ),
    source="vLLM 0.32.0, v1/attention/backends/flash_attn.py, FlashAttentionMetadataBuilder",
    tests=(Vector({"max_num_seqs": 256, "max_cudagraph_capture_size": 512}, (2049,), "vLLM 0.32.0, read"),),
    when="FlashAttention-3 and full CUDA graphs",
    source_prefixes=("FlashAttentionMetadataBuilder", "FlashAttnMLAMetadataBuilder"),
)

PERSISTENT_BEFORE = Formula(
    id="vllm.flash_attention.metadata.buffer.before",
    quantity="attention.metadata_buffer",
    dims=("numbers",),
    unit="numbers",
    component="FlashAttention metadata builder",
    role="provides",
    engine="vllm",
    versions="[0.9, 0.17)",
    inputs=(_SEQS,),
    terms=((Term("start", "max_num_seqs", "base"), Term("add", 1, "semaphore")),),
    source="vLLM 0.11.1, v1/attention/backends/flash_attn.py, FlashAttentionMetadataBuilder",
    tests=(Vector({"max_num_seqs": 256}, (257,), "vLLM 0.11.1, read"),),
    when="FlashAttention-3 and full CUDA graphs",
    source_prefixes=("FlashAttentionMetadataBuilder", "FlashAttnMLAMetadataBuilder"),
)

WORST_CASE = Formula(
    id="flash_attention.metadata.worst_case",
    quantity="attention.metadata_buffer",
    dims=("numbers",),
    unit="numbers",
    component="FlashAttention-3 at the largest batch",
    role="requires",
    engine="vllm",
    versions="[0.17, )",
    inputs=(_SEQS, _GRAPH),
    terms=(
        (
            Term("start", "max_num_seqs", "base"),
            Term("at_least", "max_cudagraph_capture_size", "graph padding"),
            Term("round_up", 4, "padding"),
            Term("multiply", 3, "fields"),
            Term("add", 1, "semaphore"),
        ),
    ),
    source=_SOURCE.format("617264c1"),
    tests=(Vector({"max_num_seqs": 256, "max_cudagraph_capture_size": 256}, (769,), "by reading 617264c1"),),
    when="FlashAttention-3 and full CUDA graphs",
    source_prefixes=("kernel",),
)

FORMULAS = (VECTORS, SPLITS, PERSISTENT, PERSISTENT_BEFORE, WORST_CASE)
