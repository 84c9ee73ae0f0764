"""What follows from vLLM's configuration: captured graphs, lengths of rotary tables, heads of each rank."""

from __future__ import annotations

from ullage_sidecar.formulas import Formula, Input, Term, Vector
from ullage_sidecar.formulas._counted import DECODE_ROWS, START_SEQS, START_TOKENS, counted

_HEADS = ("query heads", "kv heads", "head size")


def _heads(versions: str, owner: str, source: str, seen: tuple[int, int, int], origin: str) -> Formula:
    """Return the attention geometry as it is read from ``owner``."""
    names = [f"{owner}_{what}" for what in ("num_heads", "num_kv_heads", "head_size")]
    return Formula(
        id=f"vllm.flash_attention.heads.{owner}",
        quantity="attention.heads",
        dims=_HEADS,
        unit="heads",
        component="FlashAttention metadata builder",
        role="is",
        engine="vllm",
        versions=versions,
        inputs=tuple(Input(name) for name in names),
        terms=tuple((Term("start", name, "base"),) for name in names),
        source=source,
        tests=(Vector(dict(zip(names, seen, strict=True)), seen, origin),),
        source_prefixes=("FlashAttentionMetadataBuilder",),
    )


FORMULAS = (
    counted(
        "step.requests",
        "provides",
        (START_SEQS,),
        ({"max_num_seqs": 16}, 16, "vllm-project/vllm#41016"),
        component="a vector with a number for each sequence",
        source="vLLM 0.32.0, v1/attention/backends/mla/flashmla.py, cg_buf_num_splits without its end",
    ),
    counted(
        "step.requests",
        "requires",
        (START_SEQS, Term("at_least", "max_cudagraph_capture_size", "graph padding")),
        ({"max_num_seqs": 16, "max_cudagraph_capture_size": 32}, 32, "vllm-project/vllm-ascend#16168"),
        component="the largest graph",
        source="vLLM 0.32.0, v1/worker/gpu_model_runner.py, _dummy_run: requests are padded to the graph",
        source_prefixes=("graph capture",),
    ),
    counted(
        "step.tokens",
        "provides",
        (START_TOKENS,),
        ({"max_num_batched_tokens": 512}, 512, "vLLM 0.32.0 on CPU, GPUModelRunner.input_ids"),
        component="a buffer with a row for each token of a step",
        source="vLLM 0.32.0, v1/worker/gpu_model_runner.py, GPUModelRunner.__init__",
    ),
    counted(
        "step.tokens",
        "requires",
        (START_TOKENS, Term("at_least", "max_cudagraph_capture_size", "graph padding")),
        ({"max_num_batched_tokens": 512, "max_cudagraph_capture_size": 1024}, 1024, "vLLM 0.32.0, read"),
        component="the largest graph",
        source="vLLM 0.32.0, v1/worker/gpu_model_runner.py, _dummy_run",
        source_prefixes=("graph capture",),
    ),
    counted(
        "cuda_graph.coverage",
        "provides",
        (
            *DECODE_ROWS,
            Term("multiply", 2, "margin"),
            Term("at_most", 512, "constant"),
            Term("at_most", "max_num_batched_tokens", "base"),
        ),
        (
            {"num_speculative_tokens": 1, "max_num_seqs": 64, "max_num_batched_tokens": 8192},
            256,
            "vLLM 0.27.1, read",
        ),
        component="graphs that are captured by default",
        source="vLLM 0.27.1, config/vllm.py; 1024 instead of 512 on compute capability 10 since 0.32",
        source_prefixes=("captured graphs",),
        unit="tokens",
    ),
    counted(
        "rope.rows",
        "provides",
        (Term("start", "max_position_embeddings", "base"), Term("multiply", "rope_factor", "scaling")),
        ({"max_position_embeddings": 32_768, "rope_factor": 4}, 131_072, "vLLM 0.32.0, read"),
        component="scaled rotary embedding",
        source="vLLM 0.32.0, model_executor/layers/rotary_embedding/yarn_scaling_rope.py, _compute_cos_sin_cache",
        source_prefixes=("rotary embedding",),
        suffix=".scaled",
    ),
    _heads(
        "[0.22, 0.32)",
        "target",
        "vLLM 0.27.1, v1/attention/backends/flash_attn.py: from the model's configuration",
        (8, 1, 128),
        "vllm-project/vllm#53002, what the builder took",
    ),
    _heads(
        "[0.32, 0.34)",
        "draft",
        "vLLM 0.32.0, v1/attention/backends/flash_attn.py: from the layers and the cache's spec",
        (4, 1, 128),
        "vllm-project/vllm#53002, what the layers have",
    ),
)
