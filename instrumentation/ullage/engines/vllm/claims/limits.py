"""Limits that all processes of one engine must share: one that changes at run time must change everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.engines.vllm.contract_registry import SEQUENCE_TOKENS

if TYPE_CHECKING:
    from ullage.engines.runner_view import Limits, RunnerView
    from ullage.engines.vllm.contract_registry import ContractRegistry


def claim(view: RunnerView, sizes: ContractRegistry) -> None:
    """Claim the limits that a worker's buffers were allocated for."""
    limits = view.limits
    shape = (view.max_model_len, limits.max_num_seqs, limits.max_num_batched_tokens, view.num_blocks)
    sizes.contract("limits").claim("model runner", shape)


def claim_of_scheduler(limits: Limits, max_model_len: int, num_blocks: int, sizes: ContractRegistry) -> None:
    """Claim the limits by which a scheduler admits requests; a block table must reach as far as these may."""
    shape = (max_model_len, limits.max_num_seqs, limits.max_num_batched_tokens, num_blocks)
    sizes.contract("limits").claim("scheduler", shape)
    needed = limits.inputs(max_model_len=max_model_len)
    sizes.contract(SEQUENCE_TOKENS).claim("scheduler", (max_model_len,), role="requires", inputs=needed)
