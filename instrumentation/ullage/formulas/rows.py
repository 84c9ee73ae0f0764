"""Buffers of vLLM with a row for each token, sequence or position: what they have and what can be asked of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ullage.formulas import Formula, Input, Term, Terms, Vector

if TYPE_CHECKING:
    from collections.abc import Mapping

SEQS = Input("max_num_seqs", "scheduler_config.max_num_seqs")
TOKENS = Input("max_num_batched_tokens", "scheduler_config.max_num_batched_tokens")
LENGTH = Input("max_model_len", "model_config.max_model_len")
GRAPH = Input("max_cudagraph_capture_size", "compilation_config.max_cudagraph_capture_size")
DRAFTS = Input("num_speculative_tokens", "speculative_config.num_speculative_tokens")

_INPUTS = {item.name: item for item in (SEQS, TOKENS, LENGTH, GRAPH, DRAFTS)}

_START_SEQS = Term("start", "max_num_seqs", "base")
_START_TOKENS = Term("start", "max_num_batched_tokens", "base")
_PER_SEQUENCE = (Term("start", "num_speculative_tokens", "look-ahead"), Term("add", 1, "base"))
_DECODE_ROWS = (*_PER_SEQUENCE, Term("multiply", "max_num_seqs", "fields"))


def _rows(
    name: str,
    role: Literal["provides", "requires"],
    terms: Terms,
    example: tuple[Mapping[str, int], int, str],
    *,
    component: str,
    source: str,
    versions: str = "[0.22, 0.34)",
    speakers: tuple[str, ...] = (),
    unit: str = "rows",
    suffix: str = "",
) -> Formula:
    """Return a formula of one dimension; its inputs are those in its terms."""
    names = dict.fromkeys(term.operand for term in terms if isinstance(term.operand, str))
    return Formula(
        id=f"vllm.{name}.{role}{suffix}",
        quantity=name,
        dims=(unit,),
        unit=unit,
        component=component,
        role=role,
        engine="vllm",
        versions=versions,
        inputs=tuple(_INPUTS.get(name, Input(name)) for name in names),
        terms=(terms,),
        source=source,
        tests=(Vector(example[0], (example[1],), example[2]),),
        speakers=speakers,
    )


_INDEXER = "vLLM 0.32.0, v1/attention/backends/mla/indexer.py, DeepseekV32IndexerMetadataBuilder"
_BUILDER = ("DeepseekV32IndexerMetadataBuilder", "sparse-attention indexer")

FORMULAS = (
    # The sparse-attention indexer.
    _rows(
        "indexer.arange",
        "provides",
        _DECODE_ROWS,
        ({"num_speculative_tokens": 1, "max_num_seqs": 1024}, 2048, "vllm-project/vllm#40983, defaults"),
        component="sparse-attention indexer",
        source="vLLM before #39277, v1/attention/backends/mla/indexer.py, arange_buffer",
        versions="[0.19, 0.22)",
        speakers=_BUILDER,
    ),
    _rows(
        "indexer.arange",
        "provides",
        (*_DECODE_ROWS, Term("at_least", "max_num_batched_tokens", "base")),
        (
            {"num_speculative_tokens": 1, "max_num_seqs": 1024, "max_num_batched_tokens": 8192},
            8192,
            "vLLM 0.32.0, read",
        ),
        component="sparse-attention indexer",
        source=f"{_INDEXER}, arange_buffer",
        speakers=_BUILDER,
        suffix=".since",
    ),
    _rows(
        "indexer.arange",
        "requires",
        (_START_TOKENS,),
        ({"max_num_batched_tokens": 8192}, 8192, "vllm-project/vllm#40983: a dummy batch fills the step"),
        component="a uniform decode batch",
        source=f"{_INDEXER}._prepare_decode_tensors; v1/worker/gpu_worker.py, execute_dummy_batch",
        versions="[0.19, 0.34)",
        speakers=("decode batch",),
    ),
    _rows(
        "indexer.decode_rows",
        "provides",
        (_START_TOKENS,),
        ({"max_num_batched_tokens": 8192}, 8192, "vLLM 0.32.0, read"),
        component="sparse-attention indexer",
        source=f"{_INDEXER}, decode_lens_buffer and its like",
        speakers=_BUILDER,
    ),
    _rows(
        "indexer.prefill_rows",
        "provides",
        (
            Term("start", "max_model_len", "base"),
            Term("multiply", 8, "fields"),
            Term("multiply", "sparse_mla_prefill_workspace_factor", "fields"),
        ),
        (
            {"max_model_len": 163_840, "sparse_mla_prefill_workspace_factor": 5},
            6_553_600,
            "vLLM 0.32.0: 825 MB of 132 bytes, as its comment says",
        ),
        component="prefill workspace",
        source="vLLM 0.32.0, v1/attention/backends/mla/indexer.py, get_max_prefill_buffer_size",
        speakers=_BUILDER,
    ),
    # Positions and rotary embeddings.
    _rows(
        "rope.rows",
        "provides",
        (Term("start", "max_position_embeddings", "base"),),
        ({"max_position_embeddings": 2048}, 2048, "vllm-project/vllm#48894"),
        component="rotary embedding",
        source="vLLM 0.32.0, model_executor/layers/rotary_embedding/base.py, _compute_cos_sin_cache",
        speakers=("rotary embedding",),
    ),
    _rows(
        "rope.rows",
        "requires",
        (Term("start", "max_model_len", "base"),),
        ({"max_model_len": 262_144}, 262_144, "vLLM 0.32.0, read"),
        component="a request's last position",
        source="vLLM 0.32.0, model_executor/layers/rotary_embedding/base.py, forward: indexed by position",
        speakers=("model runner",),
    ),
    _rows(
        "positions.rows",
        "provides",
        (_START_TOKENS, Term("add", 1, "boundary")),
        ({"max_num_batched_tokens": 8192}, 8193, "vLLM 0.32.0, read"),
        component="model runner",
        source="vLLM 0.32.0, v1/worker/gpu_model_runner.py, mrope_positions",
        speakers=("model runner",),
    ),
    _rows(
        "positions.rows",
        "requires",
        (
            Term("start", "num_speculative_tokens", "look-ahead"),
            Term("multiply", "max_num_seqs", "fields"),
            Term("add", "max_num_batched_tokens", "base"),
            Term("add", 1, "boundary"),
        ),
        (
            {"num_speculative_tokens": 15, "max_num_seqs": 64, "max_num_batched_tokens": 8192},
            9153,
            "vllm-project/vllm#48725",
        ),
        component="a parallel drafter",
        source="vllm-project/vllm#48725: what a step with its drafts needs",
        speakers=("drafter",),
    ),
    # Speculative decoding.
    _rows(
        "draft.arange",
        "provides",
        (_START_SEQS, Term("add", 1, "boundary"), Term("at_least", "max_num_batched_tokens", "base")),
        ({"max_num_seqs": 60, "max_num_batched_tokens": 240}, 240, "vllm-project/vllm-ascend#16316"),
        component="drafter",
        source="vLLM 0.32.0, v1/spec_decode/llm_base_proposer.py, arange",
        speakers=("drafter",),
    ),
    _rows(
        "draft.arange",
        "requires",
        (*_DECODE_ROWS, Term("add", 1, "boundary")),
        ({"num_speculative_tokens": 3, "max_num_seqs": 60}, 241, "vllm-project/vllm-ascend#16316"),
        component="boundaries of a full decode batch",
        source="vllm-project/vllm-ascend#16316, query_start_loc of a uniform decode batch",
        speakers=("decode batch",),
    ),
    _rows(
        "draft.tokens",
        "provides",
        (Term("start", "num_speculative_tokens", "look-ahead"),),
        ({"num_speculative_tokens": 5}, 5, "vllm-project/vllm#47014"),
        component="drafter",
        source="vLLM 0.32.0, v1/worker/gpu/states.py, RequestState.draft_tokens",
        speakers=("drafter",),
        unit="columns",
    ),
    # Structured output.
    _rows(
        "bitmask.columns",
        "provides",
        (Term("start", "vocab_size", "base"), Term("ceil_div", 32, "divisor")),
        ({"vocab_size": 129_280}, 4040, "vllm-project/vllm#50924"),
        component="structured output",
        source="vLLM 0.32.0, v1/structured_output/__init__.py, allocate_token_bitmask",
        speakers=("StructuredOutputManager", "StructuredOutputsWorker"),
        unit="columns",
    ),
    _rows(
        "bitmask.rows",
        "provides",
        _DECODE_ROWS,
        ({"num_speculative_tokens": 0, "max_num_seqs": 16}, 16, "vLLM 0.32.0 on CPU, grammar_bitmask"),
        component="structured output",
        source="vLLM 0.32.0, v1/structured_output/__init__.py, grammar_bitmask",
        speakers=("StructuredOutputManager", "StructuredOutputsWorker"),
    ),
    # CUDA graphs.
    _rows(
        "step.requests",
        "provides",
        (_START_SEQS,),
        ({"max_num_seqs": 16}, 16, "vllm-project/vllm#41016"),
        component="a vector with a number for each sequence",
        source="vLLM 0.32.0, v1/attention/backends/mla/flashmla.py, cg_buf_num_splits without its end",
    ),
    _rows(
        "step.requests",
        "requires",
        (_START_SEQS, Term("at_least", "max_cudagraph_capture_size", "graph padding")),
        ({"max_num_seqs": 16, "max_cudagraph_capture_size": 32}, 32, "vllm-project/vllm-ascend#16168"),
        component="the largest graph",
        source="vLLM 0.32.0, v1/worker/gpu_model_runner.py, _dummy_run: requests are padded to the graph",
        speakers=("graph capture",),
    ),
    _rows(
        "step.tokens",
        "provides",
        (_START_TOKENS,),
        ({"max_num_batched_tokens": 512}, 512, "vLLM 0.32.0 on CPU, GPUModelRunner.input_ids"),
        component="a buffer with a row for each token of a step",
        source="vLLM 0.32.0, v1/worker/gpu_model_runner.py, GPUModelRunner.__init__",
    ),
    _rows(
        "step.tokens",
        "requires",
        (_START_TOKENS, Term("at_least", "max_cudagraph_capture_size", "graph padding")),
        ({"max_num_batched_tokens": 512, "max_cudagraph_capture_size": 1024}, 1024, "vLLM 0.32.0, read"),
        component="the largest graph",
        source="vLLM 0.32.0, v1/worker/gpu_model_runner.py, _dummy_run",
        speakers=("graph capture",),
    ),
    # State-space models.
    _rows(
        "mamba.state_rows",
        "provides",
        (_START_SEQS, Term("at_most", "max_cudagraph_capture_size", "graph padding")),
        ({"max_num_seqs": 256, "max_cudagraph_capture_size": 128}, 128, "vLLM 0.32.0, read"),
        component="state index",
        source="vLLM 0.32.0, v1/attention/backends/mamba_attn.py, decode_cudagraph_max_bs; gdn_attn.py likewise",
        speakers=("Mamba", "GDN"),
    ),
    _rows(
        "mamba.blocks",
        "requires",
        (_START_SEQS,),
        ({"max_num_seqs": 1024}, 1024, "vllm-project/vllm#55148"),
        component="decode batch",
        source="vLLM 0.32.0, config/compilation.py: a state block for each sequence of a full graph",
        speakers=("decode batch",),
        unit="blocks",
    ),
    # FlashInfer and FlashMLA.
    _rows(
        "flashinfer.page_indices",
        "provides",
        (
            Term("start", "max_model_len", "base"),
            Term("ceil_div", "block_size", "divisor"),
            Term("multiply", "max_num_seqs", "fields"),
        ),
        ({"max_model_len": 4096, "block_size": 16, "max_num_seqs": 8}, 2048, "vLLM 0.32.0, read"),
        component="FlashInfer builder",
        source="vLLM 0.32.0, v1/attention/backends/flashinfer.py, paged_kv_indices",
        speakers=("FlashInferMetadataBuilder",),
    ),
    _rows(
        "flashmla.num_splits",
        "provides",
        (_START_SEQS, Term("add", 1, "boundary")),
        ({"max_num_seqs": 256}, 257, "vLLM 0.32.0, read"),
        component="FlashMLA builder",
        source="vLLM 0.32.0, v1/attention/backends/mla/flashmla.py, cg_buf_num_splits",
        speakers=("FlashMLA",),
    ),
    _rows(
        "flashmla.tile_rows",
        "provides",
        (Term("start", "num_sms", "base"), Term("floor_div", "heads_of_64", "divisor")),
        ({"num_sms": 132, "heads_of_64": 2}, 66, "vLLM 0.32.0, read: compute capability 9.0"),
        component="FlashMLA builder",
        source="vLLM 0.32.0, v1/attention/backends/mla/flashmla_sparse.py, tile_scheduler_metadata_buffer",
        speakers=("FlashMLA",),
    ),
    # Multimodal and mixture of experts.
    _rows(
        "encoder.cache",
        "provides",
        (Term("start", "encoder_cache_size", "base"), Term("at_least", "max_tokens_per_mm_item", "base")),
        ({"encoder_cache_size": 4800, "max_tokens_per_mm_item": 4096}, 4800, "vllm-project/vllm#34040"),
        component="encoder cache",
        source="vLLM 0.32.0, v1/core/encoder_cache_manager.py, compute_mm_encoder_budget",
        speakers=("encoder cache",),
        unit="tokens",
    ),
    _rows(
        "moe.dispatch_tokens",
        "requires",
        _DECODE_ROWS,
        ({"num_speculative_tokens": 4, "max_num_seqs": 128}, 640, "sgl-project/sglang#28914"),
        component="a full decode batch with its drafts",
        source="sgl-project/sglang#28914; vLLM 0.32.0, fused_moe/all2all_utils.py",
        speakers=("decode batch",),
        unit="tokens",
    ),
)
