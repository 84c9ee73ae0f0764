"""Buffers for draft tokens: of the V2 runner's speculators, and what a step needs that drafts.

Those of the V1 runner's proposers stand with the other rows.
"""

from __future__ import annotations

from ullage_sidecar.formulas import Term
from ullage_sidecar.formulas._counted import START_SEQS, START_TOKENS, counted

_SPECULATORS = "vLLM 0.32.0, v1/worker/gpu/spec_decode"
_SAMPLED = (START_SEQS, Term("multiply", "num_speculative_tokens", "look-ahead"))
_LET_IN = (START_SEQS, Term("at_most", "max_num_scheduled_tokens", "base"))

FORMULAS = (
    counted(
        "draft.arange",
        "provides",
        (START_SEQS, Term("add", 1, "boundary")),
        ({"max_num_seqs": 8}, 9, "vLLM 0.32.0 on CPU, EagleSpeculator.arange_np"),
        component="speculator of the V2 runner",
        source=f"{_SPECULATORS}/speculator.py, DraftModelSpeculator.arange_np",
        source_prefixes=("drafter",),
        suffix=".v2",
    ),
    counted(
        "draft.tokens",
        "requires",
        (Term("start", "num_speculative_tokens", "look-ahead"),),
        ({"num_speculative_tokens": 7}, 7, "vllm-project/vllm#47014"),
        component="what is drafted for a sequence",
        source="vLLM 0.32.0, v1/core/sched/scheduler.py, Scheduler.num_spec_tokens",
        source_prefixes=("scheduler",),
        unit="columns",
    ),
    counted(
        "draft.sample_rows",
        "provides",
        _SAMPLED,
        ({"max_num_seqs": 8, "num_speculative_tokens": 4}, 32, "vLLM 0.32.0 on CPU, DFlashSpeculator.sample_indices"),
        component="sampler of drafts",
        source=f"{_SPECULATORS}/dflash/speculator.py, DFlashSpeculator.sample_indices",
        versions="[0.25, 0.34)",
        source_prefixes=("drafter",),
    ),
    counted(
        "draft.sample_rows",
        "requires",
        _SAMPLED,
        ({"max_num_seqs": 8, "num_speculative_tokens": 4}, 32, "vLLM 0.32.0, read"),
        component="drafts of all sequences",
        source=f"{_SPECULATORS}/dflash/speculator.py, _prepare_dflash_inputs_kernel: request x tokens + offset",
        versions="[0.25, 0.34)",
        source_prefixes=("drafts of all sequences",),
    ),
    counted(
        "draft.step_tokens",
        "provides",
        (START_TOKENS,),
        ({"max_num_batched_tokens": 64}, 64, "vLLM 0.32.0 on CPU, DFlashSpeculator.input_buffers"),
        component="drafter",
        source=f"{_SPECULATORS}/speculator.py, DraftModelSpeculator.input_buffers; llm_base_proposer.py, input_ids",
        source_prefixes=("drafter",),
    ),
    counted(
        "draft.step_tokens",
        "provides",
        (START_TOKENS, Term("add", "max_num_seqs", "fields")),
        (
            {"max_num_batched_tokens": 64, "max_num_seqs": 8},
            72,
            "vLLM 0.32.0 on CPU, StandaloneARSpeculator.expanded_input_ids",
        ),
        component="speculator with a model of its own",
        source=f"{_SPECULATORS}/standalone_ar/speculator.py, expanded_input_ids",
        versions="[0.32, 0.34)",
        source_prefixes=("drafter StandaloneAR",),
        suffix=".expanded",
    ),
    counted(
        "draft.step_tokens",
        "requires",
        (
            *_LET_IN,
            Term("multiply", "slots_per_request", "look-ahead"),
            Term("add", "max_num_scheduled_tokens", "base"),
        ),
        (
            {"max_num_seqs": 8, "slots_per_request": 1, "max_num_scheduled_tokens": 56},
            64,
            "vLLM 0.27.1, read: 64 tokens a step, less one for each of 8 sequences",
        ),
        component="a step with its drafts",
        source="vLLM 0.27.1, config/vllm.py, _set_max_num_scheduled_tokens",
        versions="[0.22, 0.28)",
        source_prefixes=("drafts of the largest step",),
    ),
    counted(
        "draft.step_tokens",
        "requires",
        (*_LET_IN, Term("multiply", "queries_per_request", "look-ahead")),
        (
            {"max_num_seqs": 16, "max_num_scheduled_tokens": 64, "queries_per_request": 5},
            80,
            "vLLM 0.32.0 on CPU, DFlashSpeculator with 4 draft tokens, and no slots reserved",
        ),
        component="a pass that drafts all tokens at once",
        source=f"{_SPECULATORS}/dflash/speculator.py, propose: num_reqs x num_query_per_req",
        versions="[0.25, 0.34)",
        source_prefixes=("drafts of the largest step",),
        suffix=".queries",
    ),
)
