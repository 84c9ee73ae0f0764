"""The audit of a runner when its KV cache is initialised: inventory, and claims from each side of every size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage import safety
from ullage.engines.vllm.claims import (
    attention_heads,
    backends,
    block_tables,
    int32_limits,
    limits,
    rotary_caches,
    row_buffers,
    spec_decode,
)
from ullage.recording.inventory import inventory

if TYPE_CHECKING:
    from ullage.engines.runner_view import RunnerView
    from ullage.engines.vllm.contract_registry import ContractRegistry

CLAIMS = (
    limits.claim,
    block_tables.claim,
    row_buffers.claim,
    spec_decode.claim,
    backends.claim,
    rotary_caches.claim,
    int32_limits.claim,
    attention_heads.claim,
)


def audit(view: RunnerView, sizes: ContractRegistry) -> None:
    """Record the tensors of a view, and make the claims that follow from it; each claim fails alone."""
    for owner, tensors in view.tensors.items():
        inventory(sizes.engine, owner, tensors)
    for claim in CLAIMS:
        with safety.shield(f"startup audit: {claim.__module__}"):
            claim(view, sizes)
