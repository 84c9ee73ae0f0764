"""vLLM's block tables: how wide they are, how far they reach, and who keeps a copy."""

from __future__ import annotations

from ullage_sidecar.formulas import Formula, Input, Pair, Term, Vector

_MAX_MODEL_LEN = Input("max_model_len", "model_config.max_model_len")
_BLOCK_SIZE = Input("block_size", "cache_config.block_size", "block_table.block_size")
_RANKS = Input("decode_context_parallel_size", "parallel_config.decode_context_parallel_size")

_BLOCKS = (Term("start", "max_model_len", "base"), Term("ceil_div", "block_size", "divisor"))
_BLOCKS_OF_A_RANK = (*_BLOCKS, Term("ceil_div", "decode_context_parallel_size", "divisor"))
_ALIGNED = Term("align_tokens", 128, "alignment", unit="block_size")

RUNNER_TABLE_WIDTH = Formula(
    id="vllm.runner.block_table.width",
    quantity="block_table.width",
    dims=("columns",),
    unit="columns",
    component="model runner",
    role="is",
    engine="vllm",
    versions="[0.22, 0.34)",
    inputs=(_MAX_MODEL_LEN, _BLOCK_SIZE),
    terms=((*_BLOCKS, _ALIGNED),),
    source="vLLM 0.32.0, v1/worker/block_table.py, get_block_table_width",
    tests=(
        Vector({"max_model_len": 200_000, "block_size": 64}, (3126,), "vllm-project/vllm#44827 and its relatives"),
        Vector({"max_model_len": 350_000, "block_size": 64}, (5470,), "vllm-project/vllm#46074"),
        Vector(
            {"max_model_len": 512, "block_size": 32}, (16,), "vLLM 0.32.0 on CPU, BlockTable.max_num_blocks_per_req"
        ),
    ),
    source_prefixes=("runner block table", "model runner"),
)

RUNNER_TABLE_WIDTH_OF_A_RANK = Formula(
    id="vllm.runner.block_table.width.context_parallel",
    quantity="block_table.width",
    dims=("columns",),
    unit="columns",
    component="model runner",
    role="is",
    engine="vllm",
    versions="[0.22, 0.34)",
    inputs=(_MAX_MODEL_LEN, _BLOCK_SIZE, _RANKS),
    terms=((*_BLOCKS_OF_A_RANK, _ALIGNED),),
    source="vLLM 0.32.0, v1/kv_cache_interface.py, max_num_blocks_per_req; v1/worker/block_table.py",
    tests=(
        Vector(
            {"max_model_len": 480_000, "block_size": 64, "decode_context_parallel_size": 4},
            (1876,),
            "local-inference-lab/vllm#166",
        ),
    ),
    when="decode context parallelism",
    source_prefixes=("runner block table", "model runner"),
)

INDEXER_TABLE_WIDTH = Formula(
    id="vllm.indexer.block_table.width",
    quantity="block_table.width",
    dims=("columns",),
    unit="columns",
    component="sparse-attention indexer",
    role="is",
    engine="vllm",
    versions="[0.22, 0.27)",
    inputs=(_MAX_MODEL_LEN, _BLOCK_SIZE),
    terms=(_BLOCKS,),
    source="vLLM 0.22.1, v1/attention/backends/mla/indexer.py, DeepseekV32IndexerMetadataBuilder",
    tests=(
        Vector({"max_model_len": 200_000, "block_size": 64}, (3125,), "vllm-project/vllm#44827 and its relatives"),
        Vector({"max_model_len": 350_000, "block_size": 64}, (5469,), "vllm-project/vllm#46074"),
    ),
    when="sparse attention",
    source_prefixes=("sparse-attention indexer", "DeepseekV32IndexerMetadataBuilder"),
)

INDEXER_TABLE_WIDTH_OF_A_RANK = Formula(
    id="vllm.indexer.block_table.width.context_parallel",
    quantity="block_table.width",
    dims=("columns",),
    unit="columns",
    component="sparse-attention indexer",
    role="is",
    engine="vllm",
    versions="[0.22, 0.27)",
    inputs=(_MAX_MODEL_LEN, _BLOCK_SIZE, _RANKS),
    terms=(_BLOCKS_OF_A_RANK,),
    source="vLLM 0.22.1, v1/attention/backends/mla/indexer.py, DeepseekV32IndexerMetadataBuilder",
    tests=(
        Vector(
            {"max_model_len": 480_000, "block_size": 64, "decode_context_parallel_size": 4},
            (1875,),
            "local-inference-lab/vllm#166",
        ),
    ),
    when="sparse attention with decode context parallelism",
    source_prefixes=("sparse-attention indexer", "DeepseekV32IndexerMetadataBuilder"),
)

INDEXER_TABLE_WIDTH_GIVEN = Formula(
    id="vllm.indexer.block_table.width.given",
    quantity="block_table.width",
    dims=("columns",),
    unit="columns",
    component="sparse-attention indexer",
    role="is",
    engine="vllm",
    versions="[0.27, 0.34)",
    inputs=(_MAX_MODEL_LEN, _BLOCK_SIZE),
    terms=((*_BLOCKS, _ALIGNED),),
    source="vLLM 0.32.0, v1/worker/utils.py, AttentionGroup.create_metadata_builders: the width is handed over",
    tests=(Vector({"max_model_len": 200_000, "block_size": 64}, (3126,), "vLLM 0.32.0, read"),),
    when="sparse attention",
    source_prefixes=("sparse-attention indexer", "DeepseekV32IndexerMetadataBuilder"),
)

TABLE_REACH = Formula(
    id="vllm.runner.block_table.tokens",
    quantity="block_table.tokens",
    dims=("tokens",),
    unit="tokens",
    component="model runner's table",
    role="provides",
    engine="vllm",
    versions="[0.22, 0.34)",
    inputs=(Input("columns", live="block_table.gpu.shape[1]"), _BLOCK_SIZE),
    terms=((Term("start", "columns", "base"), Term("multiply", "block_size", "unit")),),
    source="vLLM 0.32.0, v1/worker/block_table.py, BlockTable.compute_slot_mapping",
    tests=(Vector({"columns": 410, "block_size": 128}, (52_480,), "vllm-project/vllm#54359"),),
    source_prefixes=("runner block table",),
)

REQUEST_REACH = Formula(
    id="vllm.request.tokens",
    quantity="block_table.tokens",
    dims=("tokens",),
    unit="tokens",
    component="a request",
    role="requires",
    engine="vllm",
    versions="[0.22, 0.34)",
    inputs=(_MAX_MODEL_LEN,),
    terms=((Term("start", "max_model_len", "base"),),),
    source="vLLM 0.32.0, v1/core/sched/scheduler.py, Scheduler.max_model_len",
    tests=(Vector({"max_model_len": 262_144}, (262_144,), "vllm-project/vllm#54359"),),
    source_prefixes=("model runner",),
)

CAPTURE_REACH = Formula(
    id="vllm.dummy_run.tokens",
    quantity="block_table.tokens",
    dims=("tokens",),
    unit="tokens",
    component="a request made up for a graph capture",
    role="requires",
    engine="vllm",
    versions="[0.22, 0.34)",
    inputs=(Input("max_cudagraph_capture_size", "compilation_config.max_cudagraph_capture_size"),),
    terms=((Term("start", "max_cudagraph_capture_size", "base"),),),
    source="vLLM 0.33.0, v1/worker/gpu_model_runner.py, _dummy_run: sequence lengths of a full graph",
    tests=(Vector({"max_cudagraph_capture_size": 4128}, (4128,), "vllm-project/vllm#53658"),),
    when="full CUDA graphs",
    source_prefixes=("graph capture",),
)

MAMBA_TABLE_WIDTH = Formula(
    id="vllm.mamba.block_table.width",
    quantity="block_table.width",
    dims=("columns",),
    unit="columns",
    component="state table",
    role="requires",
    engine="vllm",
    versions="[0.22, 0.34)",
    inputs=(Input("num_speculative_blocks", live="kv_cache_spec.num_speculative_blocks"),),
    terms=((Term("start", "num_speculative_blocks", "look-ahead"), Term("add", 1, "base")),),
    source="vLLM 0.32.0, v1/kv_cache_interface.py, MambaSpec.max_num_blocks_per_req without a prefix cache",
    tests=(Vector({"num_speculative_blocks": 3}, (4,), "vLLM 0.32.0, read"),),
    when="Mamba or another state-space model",
    source_prefixes=("state table",),
)

FORMULAS = (
    RUNNER_TABLE_WIDTH,
    RUNNER_TABLE_WIDTH_OF_A_RANK,
    INDEXER_TABLE_WIDTH,
    INDEXER_TABLE_WIDTH_OF_A_RANK,
    INDEXER_TABLE_WIDTH_GIVEN,
    TABLE_REACH,
    REQUEST_REACH,
    CAPTURE_REACH,
    MAMBA_TABLE_WIDTH,
)

PAIRS = (
    Pair(
        provider=INDEXER_TABLE_WIDTH.id,
        requirement=RUNNER_TABLE_WIDTH.id,
        relation="==",
        severity="critical",
        silent=True,
        phase="first mixed batch",
        reports=("vllm-project/vllm#44827", "vllm-project/vllm#46074", "vllm-project/vllm#43970"),
    ),
    Pair(
        provider=TABLE_REACH.id,
        requirement=REQUEST_REACH.id,
        relation=">=",
        severity="critical",
        silent=True,
        phase="long context",
        reports=("vllm-project/vllm#54359", "vllm-project/vllm#53982"),
    ),
    Pair(
        provider=TABLE_REACH.id,
        requirement=CAPTURE_REACH.id,
        relation=">=",
        severity="critical",
        silent=True,
        phase="graph capture",
        reports=("vllm-project/vllm#53658",),
    ),
)
