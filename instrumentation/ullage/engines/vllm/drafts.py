"""Speculative decoding: what a proposer (V1 runner) or speculator (V2 runner) has rows for, and what drafts need.

Read in vLLM 0.22.1, 0.25.1, 0.27.1, 0.32.0 and 0.33.0: v1/spec_decode/llm_base_proposer.py and
v1/worker/gpu/spec_decode/.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ullage.engines.vllm import tables
from ullage.engines.vllm._sizes import agreed, inputs, source
from ullage.engines.vllm.rows import BOUNDARIES, DRAFTS, REQUESTS, TOKENS, Rows, claim_rows, largest_graph, sizes

STEP, SAMPLES, REACH = "draft.step_tokens", "draft.sample_rows", "block_table.tokens/draft"

PROPOSER = (
    Rows(
        TOKENS,
        "input_ids positions hidden_states inputs_embeds _slot_mapping_buffer token_arange_np is_rejected_token_mask "
        "is_masked_token_mask",
    ),
    Rows(TOKENS, "mrope_positions", dim=1, beyond=1),
    Rows(BOUNDARIES, "arange"),
    Rows(REQUESTS, "backup_next_token_ids"),
)
SPECULATOR = (
    Rows(TOKENS, "input_ids positions is_padding hidden_states inputs_embeds context_positions"),
    Rows(TOKENS, "_context_slot_mappings", dim=1),
    Rows(
        REQUESTS,
        "seq_lens dcp_local_seq_lens idx_mapping temperature seeds draft_tokens draft_is_prefilling "
        "draft_token_confidence_probs draft_logits last_token_indices sample_src_positions draft_input_id_overrides "
        "cached_draft_input_ids cached_draft_input_embeds cached_target_hidden_states anchor_hidden anchor_valid "
        "_num_rejected _anchor_idx _draft_scatter_buf drafts scratch",
    ),
    Rows(REQUESTS, "query_start_loc", beyond=1),
    Rows(BOUNDARIES, "arange arange_np arange_gpu"),
    Rows(DRAFTS, "draft_tokens draft_token_confidence_probs draft_logits drafts", dim=1),
)
"""With its input buffers, which are of the same kind as the runner's but its own."""
SAMPLED = (Rows(SAMPLES, "sample_indices sample_pos sample_idx_mapping sample_col"),)
EXPANDED = (Rows(STEP, "expanded_input_ids expanded_positions"), Rows(STEP, "expanded_slot_mappings", dim=1))
_INPUTS = (Rows(STEP, "input_ids"),)
_ADVANCING = ("sample_src_positions", "expanded_positions")
"""What those have, since 0.32, that draft one token after another, each at the next position."""

RESERVES_IN_ADVANCE = (0, 28)
"""Before, the largest step is made smaller by the slots that all requests may add."""
RESERVES_PER_REQUEST = (0, 32)
"""Since, the scheduler counts the slots of each request that it schedules. Between the two nothing was read."""


class Step(NamedTuple):
    """The limits of a step: so many tokens and requests, and ``reserved`` of ``rows`` for each request."""

    tokens: int
    requests: int
    rows: int
    reserved: int

    def needs(self, added: int) -> int:
        """Return the rows of the largest step, if each request adds so many to its tokens, of which it has one."""
        most = range(1, self._most() + 1)
        return max(min(self.tokens, self.rows - self.reserved * count) + added * count for count in most)

    def asks(self, queries: int) -> int:
        """Return the rows of the largest step, if each request has so many, whatever its tokens."""
        return queries * self._most()

    def _most(self) -> int:
        return max(1, min(self.requests, self.tokens, self.rows // (1 + self.reserved)))


def claim(runner: Any) -> None:
    """Claim the rows of whatever drafts for ``runner``, and how many a step with drafts needs."""
    drafter, config = getattr(runner, "drafter", None), runner.vllm_config
    of_v2 = getattr(runner, "speculator", None) is not None
    if drafter is None or (not of_v2 and getattr(drafter, "method", "") == "dflash"):  # with a division of its own
        return
    owner, step = f"drafter {type(drafter).__name__}", _step(config)
    claim_rows(owner, drafter, SPECULATOR if of_v2 else PROPOSER, config, largest_graph(runner))
    if of_v2:
        _claim_samples(owner, drafter, config)
        _claim_reach(runner, drafter, config)
    if step is None:
        return
    queries = getattr(drafter, "num_query_per_req", 1)
    more = drafter.num_extra_query_per_req if of_v2 else getattr(drafter, "net_num_new_slots_per_request", 0)
    limits = inputs(config, "max_num_batched_tokens", "max_num_seqs")
    if queries > 1:  # all tokens of a sequence at once, in a pass of its own
        given = {**limits, "queries_per_request": queries}
        _claim_step(owner, drafter, _INPUTS, given, step, step.asks(queries))
    elif more > 0:  # the target's tokens, and some for each sequence
        given = {**limits, "slots_per_request": more}
        _claim_step(owner, drafter, EXPANDED if of_v2 else _INPUTS, given, step, step.needs(more))


def _step(config: Any) -> Step | None:
    """Return the limits of a step; None if it is not known how the scheduler reserves slots for drafts."""
    from ullage.engines.vllm import parsed  # noqa: PLC0415  the package is complete by now

    version = parsed(str(getattr(sys.modules.get("vllm"), "__version__", "")))
    scheduler, speculative = config.scheduler_config, config.speculative_config
    tokens, rows = scheduler.max_num_scheduled_tokens, scheduler.max_num_batched_tokens
    if version is None or speculative is None or not tokens:
        return None
    requests = getattr(scheduler, "max_num_active_seqs", None) or scheduler.max_num_seqs
    if version < RESERVES_IN_ADVANCE:
        return Step(tokens, requests, tokens, reserved=0)
    reserved = getattr(speculative, "max_num_new_slots_for_drafting", None)
    if version < RESERVES_PER_REQUEST or reserved is None:
        return None
    return Step(tokens, requests, rows, reserved)


def _claim_step(
    owner: str, drafter: Any, table: tuple[Rows, ...], given: dict[str, Any], step: Step, needed: int
) -> None:
    for (size, count), attributes in sizes(drafter, table).items():
        agreed(size).claim(source(owner, attributes[0]), (count,), role="provides", inputs=given)
        let_in = {"max_num_scheduled_tokens": step.tokens, "reserved_per_request": step.reserved}
        agreed(size).claim("drafts of the largest step", (needed,), role="requires", inputs={**given, **let_in})


def _claim_samples(owner: str, speculator: Any, config: Any) -> None:
    """What was drafted at once is sampled at once: a row for each draft token of each sequence."""
    given = inputs(config, "max_num_seqs", "num_speculative_tokens")
    at_first = {name: getattr(speculator, name, value) for name, value in given.items()}
    for (size, count), attributes in sizes(speculator, SAMPLED).items():
        agreed(size).claim(source(owner, attributes[0]), (count,), role="provides", inputs=at_first)
        needed = given["max_num_seqs"] * given["num_speculative_tokens"]
        agreed(size).claim("drafts of all sequences", (needed,), role="requires", inputs=given)


def _claim_reach(runner: Any, speculator: Any, config: Any) -> None:
    """Drafting one token after another goes on past the last position of the target, up to its own limit.

    That limit is of when it was made: until 0.33 it is not lowered with the runner's (speculator.py, max_model_len).
    The last position that is scheduled is the second last of the longest sequence (scheduler.py, schedule). Blocks of
    a position beyond its row are read from the next row (block_table.py, _compute_slot_mappings_kernel).
    """
    if not speculator.advance_draft_positions or not any(hasattr(speculator, name) for name in _ADVANCING):
        return
    given = inputs(config, "num_speculative_tokens", max_model_len=runner.max_model_len)
    for table in tables.tables(runner):
        if table.positional:
            holds = {"max_model_len": runner.max_model_len, "columns": table.columns, "block_size": table.block_size}
            agreed(REACH).claim(f"block table {table.group}", (table.tokens,), role="provides", inputs=holds)
    own = speculator.max_model_len
    reached = min(own, runner.max_model_len - 2 + given["num_speculative_tokens"])
    agreed(REACH).claim("drafter", (reached,), role="requires", inputs={**given, "draft_max_model_len": own})
