"""Limits that a kernel or a library has of itself: widths of indices, workspaces of a constant size."""

from __future__ import annotations

from ullage_sidecar.formulas import Formula, Input, Term, Vector

INT32 = 2**31
MIB = 2**20


def _addressable(quantity: str, unit: str, stride: Input, source: str, *tests: Vector) -> Formula:
    """Return how many things lie within 2^31 elements, so far apart: those whose first element can be addressed."""
    return Formula(
        id=f"kernel.{quantity.partition('.')[0]}.int32",
        quantity=quantity,
        dims=(unit,),
        unit=unit,
        component="a kernel that computes offsets in 32 bits",
        role="provides",
        engine="any",
        versions="[, )",
        inputs=(Input("index_limit"), stride),
        terms=((Term("start", "index_limit", "index width"), Term("ceil_div", stride.name, "divisor")),),
        source=source,
        tests=tests,
        source_prefixes=("kernel offsets",),
    )


ADDRESSABLE_BLOCKS = _addressable(
    "kv_cache.blocks",
    "blocks",
    Input("block_stride", live="kv_cache.stride(block dimension)"),
    "offset = block x stride must stay below 2^31",
    Vector({"index_limit": INT32, "block_stride": 480 * 576}, (7768,), "vllm-project/vllm#47671: pages 0 to 7767"),
    Vector({"index_limit": INT32, "block_stride": 1_039_680}, (2066,), "vllm-project/vllm-xpu-kernels#445"),
)

ADDRESSABLE_ADAPTERS = _addressable(
    "lora.slots",
    "adapters",
    Input("slot_stride", live="lora_b_stacked.stride(0)"),
    "vLLM 0.32.0, lora/ops/triton_ops/kernel_utils.py, do_expand_kernel: lora_d0_stride x lora_index",
    Vector({"index_limit": INT32, "slot_stride": 152_064 * 256}, (56,), "vLLM 0.32.0, read: rank 256 of 152064 logits"),
)

KV_BLOCKS = Formula(
    id="vllm.kv_cache.blocks",
    quantity="kv_cache.blocks",
    dims=("blocks",),
    unit="blocks",
    component="KV cache",
    role="requires",
    engine="vllm",
    versions="[0.8, 0.34)",
    inputs=(Input("num_gpu_blocks", "cache_config.num_gpu_blocks"),),
    terms=((Term("start", "num_gpu_blocks", "base"),),),
    source="vLLM 0.32.0, v1/core/block_pool.py, BlockPool.num_gpu_blocks",
    tests=(Vector({"num_gpu_blocks": 8192}, (8192,), "vLLM 0.32.0 on CPU"),),
    source_prefixes=("KV cache",),
)

FLASHINFER_WORKSPACE = Formula(
    id="vllm.flashinfer.workspace",
    quantity="flashinfer.workspace",
    dims=("bytes",),
    unit="bytes",
    component="FlashInfer workspace",
    role="provides",
    engine="vllm",
    versions="[0.12, 0.27)",
    inputs=(),
    terms=((Term("start", 394 * MIB, "constant"),),),
    source="vLLM 0.22.1, envs.py, VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE",
    tests=(Vector({}, (413_138_944,), "vllm-project/vllm#40381"),),
    source_prefixes=("FlashInfer workspace",),
)

FLASHINFER_WORKSPACE_GROWN = Formula(
    id="vllm.flashinfer.workspace.since",
    quantity="flashinfer.workspace",
    dims=("bytes",),
    unit="bytes",
    component="FlashInfer workspace",
    role="provides",
    engine="vllm",
    versions="[0.27, 0.34)",
    inputs=(
        Input("max_num_batched_tokens", "scheduler_config.max_num_batched_tokens"),
        Input("num_qo_heads"),
        Input("head_dim"),
    ),
    terms=(
        (
            Term("start", "max_num_batched_tokens", "base"),
            Term("multiply", "num_qo_heads", "fields"),
            Term("multiply", "head_dim", "fields"),
            Term("multiply", 16, "unit"),
            Term("at_least", 394 * MIB, "constant"),
        ),
    ),
    source="vLLM 0.27.1, v1/attention/backends/flashinfer.py, _get_workspace_buffer",
    tests=(
        Vector(
            {"max_num_batched_tokens": 8192, "num_qo_heads": 32, "head_dim": 256}, (1_073_741_824,), "vLLM 0.27.1, read"
        ),
        Vector(
            {"max_num_batched_tokens": 2048, "num_qo_heads": 8, "head_dim": 128}, (413_138_944,), "vLLM 0.27.1, read"
        ),
    ),
    source_prefixes=("FlashInfer workspace",),
)

FLASHINFER_ESTIMATE = Formula(
    id="vllm.flashinfer.workspace.estimate",
    quantity="flashinfer.workspace",
    dims=("bytes",),
    unit="bytes",
    component="a FlashInfer builder's estimate of its prefills",
    role="requires",
    engine="vllm",
    versions="[0.27, 0.34)",
    inputs=FLASHINFER_WORKSPACE_GROWN.inputs,
    terms=(FLASHINFER_WORKSPACE_GROWN.terms[0][:-1],),
    source="vLLM 0.27.1, v1/attention/backends/flashinfer.py, _get_workspace_buffer: est",
    tests=(
        Vector(
            {"max_num_batched_tokens": 8192, "num_qo_heads": 32, "head_dim": 256}, (1_073_741_824,), "vLLM 0.27.1, read"
        ),
    ),
    source_prefixes=("FlashInferMetadataBuilder",),
)

FLASHINFER_SPLITS = Formula(
    id="flashinfer.prefill.workspace",
    quantity="flashinfer.workspace",
    dims=("bytes",),
    unit="bytes",
    component="FlashInfer's prefill plan",
    role="requires",
    engine="flashinfer",
    versions="[, )",
    inputs=(Input("num_qo_heads"), Input("padded_batch"), Input("cta_tile_q"), Input("head_dim")),
    terms=(
        (
            Term("start", "num_qo_heads", "base"),
            Term("multiply", "padded_batch", "fields"),
            Term("multiply", "cta_tile_q", "fields"),
            Term("multiply", "head_dim", "fields"),
            Term("multiply", 4, "unit"),
        ),
    ),
    source="flashinfer-ai/flashinfer, prefill plan: partial outputs of each split, float32",
    tests=(
        Vector(
            {"num_qo_heads": 32, "padded_batch": 1023, "cta_tile_q": 16, "head_dim": 256},
            (536_346_624,),
            "vllm-project/vllm#40381",
        ),
    ),
    source_prefixes=("FlashInfer plan",),
)

FLASHINFER_MLA = Formula(
    id="flashinfer.mla.workspace",
    quantity="flashinfer.workspace",
    dims=("bytes",),
    unit="bytes",
    component="FlashInfer's MLA decode",
    role="requires",
    engine="flashinfer",
    versions="[, )",
    inputs=(Input("num_heads"), Input("max_num_batched_tokens", "scheduler_config.max_num_batched_tokens")),
    terms=(
        (
            Term("start", "num_heads", "base"),
            Term("multiply", "max_num_batched_tokens", "fields"),
            Term("multiply", 2048, "fields"),
            Term("add", MIB, "boundary"),
        ),
    ),
    source="vllm-project/vllm#50791: 8 x heads x tokens x 256 bytes and 1 MiB, with context parallelism",
    tests=(Vector({"num_heads": 64, "max_num_batched_tokens": 16_384}, (2_148_532_224,), "vllm-project/vllm#50781"),),
    source_prefixes=("FlashInfer MLA decode",),
)

ASCEND_DISPATCH = Formula(
    id="vllm_ascend.moe.dispatch",
    quantity="moe.dispatch_bytes",
    dims=("bytes",),
    unit="bytes",
    component="dispatch to the routed experts of a rank, twice",
    role="requires",
    engine="vllm_ascend",
    versions="[0.11, )",
    inputs=(Input("hidden_size"), Input("local_experts"), Input("tokens_per_rank"), Input("expert_parallel_size")),
    terms=(
        (
            Term("start", "hidden_size", "base"),
            Term("multiply", 2, "unit"),
            Term("round_up", 32, "padding"),
            Term("add", 64, "fields"),
            Term("round_up", 512, "padding"),
            Term("multiply", "local_experts", "fields"),
            Term("multiply", "tokens_per_rank", "fields"),
            Term("multiply", "expert_parallel_size", "fields"),
            Term("multiply", 2, "fields"),
        ),
    ),
    source="vllm-project/vllm-ascend#3073, vllm_ascend/utils.py; without the smaller part of the shared experts",
    tests=(
        Vector(
            {"hidden_size": 7168, "local_experts": 16, "tokens_per_rank": 8, "expert_parallel_size": 16},
            (60_817_408,),
            "by reading #3073",
        ),
    ),
    source_prefixes=("experts' dispatch",),
)

FORMULAS = (
    ASCEND_DISPATCH,
    ADDRESSABLE_BLOCKS,
    ADDRESSABLE_ADAPTERS,
    KV_BLOCKS,
    FLASHINFER_WORKSPACE,
    FLASHINFER_WORKSPACE_GROWN,
    FLASHINFER_ESTIMATE,
    FLASHINFER_SPLITS,
    FLASHINFER_MLA,
)
