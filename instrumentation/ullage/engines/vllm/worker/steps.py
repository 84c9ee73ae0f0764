"""What each step of a worker fills, under the same names whichever runner it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.engines.vllm.identity import location

if TYPE_CHECKING:
    from ullage.engines.instance import EngineInstance
    from ullage.recording.buffers import Buffer


class Steps(NamedTuple):
    """Buffers that a step fills: places for requests, tokens, and tokens with their padding."""

    slots: Buffer
    tokens: Buffer
    padded: Buffer


def steps(engine: EngineInstance, config: Any, *, slots: int, tokens: int, padded: int) -> Steps:
    """Register the three with these capacities, for an engine of this configuration."""
    return Steps(
        engine.buffer("request_slots", capacity=slots, unit="requests", kind="managed", limit="max_num_seqs"),
        engine.buffer("step_tokens", capacity=tokens, unit="tokens", kind="managed", limit="max_num_batched_tokens"),
        engine.buffer(  # fixed: padding is there to be seen, and says nothing that step_tokens does not warn of
            "padded_tokens",
            capacity=padded,
            unit="tokens",
            kind="fixed",
            location=location(config),
            limit="max_num_batched_tokens",
        ),
    )
