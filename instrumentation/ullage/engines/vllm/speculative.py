"""Speculative decoding of the V1 runner, in a worker: the buffers of a proposer that runs a draft model.

A proposer without a model (ngram, suffix) allocates none of them, and nothing is registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.buffers import Buffer, buffer
from ullage.engines._patch import Hook, argument
from ullage.engines._probe import SharedProbe
from ullage.engines.vllm._identity import location
from ullage.engines.vllm.rehearsal import observe

if TYPE_CHECKING:
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


class _Watched:
    """The buffers of this process's proposer."""

    tokens: Buffer | None = None
    arange: Buffer | None = None


_watched = _Watched()


def _loaded(_result: Any, args: Args, _kwargs: Kwargs) -> None:
    """Only now: subclasses allocate some of the buffers anew after the base class made them."""
    proposer = args[0]
    where = location(proposer.vllm_config)
    _watched.arange = buffer(
        "draft_arange",
        capacity=proposer.arange.shape[0],
        unit="rows",
        kind="hard",
        location=where,
        limit="max_num_seqs",
    )
    _watched.arange.warn_at(proposer.max_batch_size + 1)
    if proposer.method != "dflash":  # whose tokens are divided between buffers of its own
        _watched.tokens = buffer(
            "draft_tokens",
            capacity=proposer.input_ids.shape[0],
            unit="tokens",
            kind="hard",
            location=where,
            limit="max_num_batched_tokens",
        )
        _watched.tokens.warn_at(proposer.input_ids.shape[0])  # chunked prefill fills it


def _proposes(args: Args, kwargs: Kwargs) -> None:
    """Before the writes: what is too long raises in torch, or in a kernel spills over."""
    requests = argument("common_attn_metadata", 7, args, kwargs).batch_size()
    if _watched.arange is not None:
        observe(_watched.arange, requests + 1)  # the start of each request, and the end of the last
    if _watched.tokens is not None:
        slots = getattr(args[0], "net_num_new_slots_per_request", 0)
        observe(_watched.tokens, argument("target_token_ids", 2, args, kwargs).shape[0] + slots * requests)


_MODULE = "vllm.v1.spec_decode.llm_base_proposer"
_PROBE = SharedProbe("SpecDecodeBaseProposer")

HOOKS = (
    Hook(_MODULE, "SpecDecodeBaseProposer.load_model", after=_loaded, shared=_PROBE),
    Hook(
        _MODULE,
        "SpecDecodeBaseProposer.propose",
        ("target_token_ids", "common_attn_metadata"),
        before=_proposes,
        shared=_PROBE,
    ),
)
