"""Speculative decoding of the V1 runner, in a worker: the buffers of a proposer that runs a draft model.

A proposer without a model (ngram, suffix) allocates none of them, and nothing is registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.engines.patch import Patch, argument
from ullage.engines.probe import SharedProbe
from ullage.engines.vllm.identity import engine_of, location

if TYPE_CHECKING:
    from ullage.engines.instance import EngineInstance
    from ullage.recording.buffers import Buffer

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


class DraftBuffers:
    """The buffers of one engine instance's proposer."""

    def __init__(self, engine: EngineInstance) -> None:
        self._engine = engine
        self._tokens: Buffer | None = None
        self._arange: Buffer | None = None

    def loaded(self, proposer: Any) -> None:
        """Register them. Only now: subclasses allocate some of them again after the base class made them."""
        where = location(proposer.vllm_config)
        self._arange = self._engine.buffer(
            "draft_arange",
            capacity=proposer.arange.shape[0],
            unit="rows",
            kind="hard",
            location=where,
            limit="max_num_seqs",
        )
        self._arange.warn_at(proposer.max_batch_size + 1)
        if proposer.method != "dflash":  # whose tokens are divided between buffers of its own
            self._tokens = self._engine.buffer(
                "draft_tokens",
                capacity=proposer.input_ids.shape[0],
                unit="tokens",
                kind="hard",
                location=where,
                limit="max_num_batched_tokens",
            )
            self._tokens.warn_at(proposer.input_ids.shape[0])  # chunked prefill fills it

    def observe(self, requests: int, tokens: int) -> None:
        """Observe a draft of ``tokens`` for ``requests``."""
        if self._arange is not None:
            self._engine.observe(self._arange, requests + 1)  # the start of each request, and the end of the last
        if self._tokens is not None:
            self._engine.observe(self._tokens, tokens)


def _loaded(_result: Any, args: Args, _kwargs: Kwargs) -> None:
    engine_of(args[0]).part(DraftBuffers).loaded(args[0])


def _proposes(args: Args, kwargs: Kwargs) -> None:
    """Before the writes: what is too long raises in torch, or in a kernel spills over."""
    proposer, requests = args[0], argument("common_attn_metadata", 7, args, kwargs).batch_size()
    slots = getattr(proposer, "net_num_new_slots_per_request", 0)
    tokens = argument("target_token_ids", 2, args, kwargs).shape[0] + slots * requests
    engine_of(proposer).part(DraftBuffers).observe(requests, tokens)


_MODULE = "vllm.v1.spec_decode.llm_base_proposer"
_PROBE = SharedProbe("SpecDecodeBaseProposer")

PATCHES = (
    Patch(_MODULE, "SpecDecodeBaseProposer.load_model", after=_loaded, shared=_PROBE),
    Patch(
        _MODULE,
        "SpecDecodeBaseProposer.propose",
        ("target_token_ids", "common_attn_metadata"),
        before=_proposes,
        shared=_PROBE,
    ),
)
