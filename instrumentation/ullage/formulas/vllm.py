"""vLLM's own formulas: what diagnosis knows of them so far."""

from __future__ import annotations

from ullage.formulas import Formula, Input, Pair, Term, Vector

_MAX_MODEL_LEN = Input("max_model_len", "model_config.max_model_len")
_BLOCK_SIZE = Input("block_size", "cache_config.block_size", "block_table.block_size")

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
    terms=(
        (
            Term("start", "max_model_len", "base"),
            Term("ceil_div", "block_size", "divisor"),
            Term("align_tokens", 128, "alignment", unit="block_size"),
        ),
    ),
    source="vLLM 0.32.0, v1/worker/block_table.py, get_block_table_width",
    tests=(
        Vector({"max_model_len": 200_000, "block_size": 64}, (3126,), "vllm-project/vllm#44827 and its relatives"),
        Vector({"max_model_len": 350_000, "block_size": 64}, (5470,), "vllm-project/vllm#46074"),
        Vector(
            {"max_model_len": 512, "block_size": 32}, (16,), "vLLM 0.32.0 on CPU, BlockTable.max_num_blocks_per_req"
        ),
    ),
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
    terms=((Term("start", "max_model_len", "base"), Term("ceil_div", "block_size", "divisor")),),
    source="vLLM 0.22.1, v1/attention/backends/mla/indexer.py, DeepseekV32IndexerMetadataBuilder",
    tests=(
        Vector({"max_model_len": 200_000, "block_size": 64}, (3125,), "vllm-project/vllm#44827 and its relatives"),
        Vector({"max_model_len": 350_000, "block_size": 64}, (5469,), "vllm-project/vllm#46074"),
    ),
    when="sparse attention",
)

FORMULAS = (RUNNER_TABLE_WIDTH, INDEXER_TABLE_WIDTH)

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
)
