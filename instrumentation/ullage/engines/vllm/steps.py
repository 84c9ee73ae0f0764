"""What each step of a worker fills, under the same names whichever runner it has."""

from __future__ import annotations

from typing import Any, NamedTuple

from ullage.buffers import Buffer, buffer
from ullage.engines.vllm._identity import location


class Steps(NamedTuple):
    """Buffers that a step fills: places for requests, tokens, and tokens with their padding."""

    slots: Buffer
    tokens: Buffer
    padded: Buffer


def steps(config: Any, *, slots: int, tokens: int, padded: int) -> Steps:
    """Register the three with these capacities, for an engine of this configuration."""
    return Steps(
        buffer("request_slots", capacity=slots, unit="requests", kind="managed", limit="max_num_seqs"),
        buffer("step_tokens", capacity=tokens, unit="tokens", kind="managed", limit="max_num_batched_tokens"),
        buffer(  # fixed: padding is there to be seen, and says nothing that step_tokens does not warn of
            "padded_tokens",
            capacity=padded,
            unit="tokens",
            kind="fixed",
            location=location(config),
            limit="max_num_batched_tokens",
        ),
    )
