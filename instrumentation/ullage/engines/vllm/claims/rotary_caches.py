"""Caches of rotary embeddings: a row for each position that a sequence can reach, in the model and in the draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.engines.vllm.contract_registry import source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ullage.engines.runner_view import Limits, RotaryCache, RunnerView
    from ullage.engines.vllm.contract_registry import ContractRegistry
    from ullage.recording.contracts import Contract

ROWS, DRAFT_ROWS = "rope.rows", "rope.rows/draft"


def claim(view: RunnerView, sizes: ContractRegistry) -> None:
    """Claim the rows of the caches, and the longest sequence that the model, or the draft, is asked for."""
    if view.rotary_caches:
        contract, longest = sizes.contract(ROWS), view.max_model_len
        _claim_caches(view.rotary_caches, view.limits, contract)
        needed = view.limits.inputs(max_model_len=longest)
        contract.claim("model runner", (longest,), role="requires", inputs=needed)
    if view.draft_rotary_caches:
        contract, longest = sizes.contract(DRAFT_ROWS), view.draft_max_model_len
        _claim_caches(view.draft_rotary_caches, view.limits, contract)
        contract.claim("drafter", (longest,), role="requires", inputs={"draft_max_model_len": longest})


def _claim_caches(caches: Iterable[RotaryCache], limits: Limits, contract: Contract) -> None:
    for cache in caches:
        given = limits.inputs("max_model_len", max_position_embeddings=cache.max_position_embeddings)
        contract.claim(source("rotary embedding", cache.name), (cache.rows,), role="provides", inputs=given)
