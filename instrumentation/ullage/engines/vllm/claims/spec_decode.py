"""Speculative decoding: the rows of what drafts, and those that drafts need.

Read in vLLM 0.22.1, 0.25.1, 0.27.1, 0.32.0 and 0.33.0: v1/spec_decode/llm_base_proposer.py and
v1/worker/gpu/spec_decode/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.engines.vllm.claims.row_buffers import alike, claim_holder
from ullage.engines.vllm.contract_registry import DRAFT_SAMPLES, DRAFT_STEP_TOKENS, SEQUENCE_TOKENS, source

if TYPE_CHECKING:
    from ullage.engines.runner_view import Drafter, DraftStep, RunnerView
    from ullage.engines.vllm.contract_registry import ContractRegistry

REACH = f"{SEQUENCE_TOKENS}/draft"


def claim(view: RunnerView, sizes: ContractRegistry) -> None:
    """Claim the rows of the drafter of a view, and those that a step with drafts needs."""
    drafter = view.drafter
    if drafter is None:
        return
    claim_holder(drafter.rows, view, sizes)
    _claim_samples(drafter, view, sizes)
    _claim_reach(drafter, view, sizes)
    _claim_step(drafter, view, sizes)


def needed_rows(step: DraftStep, slots: int) -> int:
    """Return the rows of the largest step, if each of its requests adds ``slots`` to its own tokens."""
    requests = range(1, most_requests(step) + 1)
    return max(min(step.tokens, step.rows - step.reserved * count) + slots * count for count in requests)


def most_requests(step: DraftStep) -> int:
    """Return the most requests of a step, each with one token."""
    return max(1, min(step.requests, step.tokens, step.rows // (1 + step.reserved)))


def _claim_samples(drafter: Drafter, view: RunnerView, sizes: ContractRegistry) -> None:
    """Tokens that are drafted at once are sampled at once: a row for each draft token of each sequence."""
    given = view.limits.inputs("max_num_seqs", "num_speculative_tokens")
    at_allocation = {name: drafter.rows.allocated_for.get(name, value) for name, value in given.items()}
    needed = given["max_num_seqs"] * given["num_speculative_tokens"]
    for (_, rows), names in alike(drafter.sample_rows).items():
        contract = sizes.contract(DRAFT_SAMPLES)
        contract.claim(source(drafter.rows.owner, names[0]), (rows,), role="provides", inputs=at_allocation)
        contract.claim("drafts of all sequences", (needed,), role="requires", inputs=given)


def _claim_reach(drafter: Drafter, view: RunnerView, sizes: ContractRegistry) -> None:
    """Drafting one token after another goes on past the last position of the target, up to the drafter's own limit.

    The last position that is scheduled is the second last of the longest sequence (scheduler.py, schedule). Blocks of
    a position beyond its row are read from the next row (block_table.py, _compute_slot_mappings_kernel).
    """
    if drafter.reach is None or view.max_model_len is None:
        return
    contract, longest = sizes.contract(REACH), view.max_model_len
    for table in view.tables:
        if table.positional:
            held = {"max_model_len": longest, "columns": table.columns, "block_size": table.block_size}
            contract.claim(f"block table {table.group}", (table.tokens,), role="provides", inputs=held)
    given = view.limits.inputs("num_speculative_tokens", max_model_len=longest, draft_max_model_len=drafter.reach)
    reached = min(drafter.reach, longest - 2 + given["num_speculative_tokens"])
    contract.claim("drafter", (reached,), role="requires", inputs=given)


def _claim_step(drafter: Drafter, view: RunnerView, sizes: ContractRegistry) -> None:
    """All tokens of a sequence are drafted in a pass of their own, or the target's pass has some more of each."""
    step, queries, slots = drafter.step, drafter.queries_per_request, drafter.slots_per_request
    if step is None or (queries <= 1 and slots <= 0):
        return
    limits = view.limits.inputs("max_num_batched_tokens", "max_num_seqs")
    if queries > 1:
        given, needed = {**limits, "queries_per_request": queries}, queries * most_requests(step)
    else:
        given, needed = {**limits, "slots_per_request": slots}, needed_rows(step, slots)
    admitted = {**given, "max_num_scheduled_tokens": step.tokens, "reserved_per_request": step.reserved}
    contract = sizes.contract(DRAFT_STEP_TOKENS)
    for (_, rows), names in alike(drafter.step_rows).items():
        contract.claim(source(drafter.rows.owner, names[0]), (rows,), role="provides", inputs=given)
        contract.claim("drafts of the largest step", (needed,), role="requires", inputs=admitted)
