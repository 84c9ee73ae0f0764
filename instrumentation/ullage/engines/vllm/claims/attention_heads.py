"""Heads that an attention planner counts on, and those of the layers that it plans for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.engines.vllm.contract_registry import source

if TYPE_CHECKING:
    from ullage.engines.runner_view import RunnerView
    from ullage.engines.vllm.contract_registry import ContractRegistry


def claim(view: RunnerView, sizes: ContractRegistry) -> None:
    """Claim the heads of each planner and of the layers of its group: query heads, KV heads, head size."""
    for number, group in enumerate(view.attention_groups):
        for builder in group.builders:
            if builder.planned_heads is None:
                continue
            contract = sizes.contract(f"attention.heads/{number}" if number else "attention.heads", own=True)
            contract.claim(builder.name, builder.planned_heads)
            for heads in {layer.heads for layer in group.layers if layer.heads is not None}:
                contract.claim(source("attention layers", *map(str, heads)), heads)
