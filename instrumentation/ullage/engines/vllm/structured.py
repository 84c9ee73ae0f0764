"""Structured output: the bitmask that says which tokens a grammar allows, in the engine core and in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.buffers import Buffer, buffer
from ullage.engines._novelty import novelty
from ullage.engines._patch import Hook
from ullage.engines.vllm._sizes import agreed
from ullage.engines.vllm.view_common import limits_of, look_ahead_tokens
from ullage.session import session

if TYPE_CHECKING:
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


BITS = 32
"""Tokens in one number of the mask."""


class _Watched:
    """The bitmask of this process."""

    rows: Buffer | None = None
    columns = 0
    """How many the worker was last given; 0 before that."""


_watched = _Watched()


def _filled(result: Any, args: Args, _kwargs: Kwargs) -> None:
    """The mask is allocated for the first batch that needs it."""
    if result is None:
        return
    allocated = args[0]._grammar_bitmask.shape[0]  # noqa: SLF001  as vLLM names it
    rows = _watched.rows
    if rows is None or rows.capacity != allocated:
        # It has a row for each position of each sequence: the worst case fills it, and that is no reason to warn.
        rows = _watched.rows = buffer(
            "grammar_bitmask", capacity=allocated, unit="rows", kind="fixed", limit="max_num_seqs"
        )
        _claim_allocated(args[0])
    rows.observe(result.shape[0])
    novelty.look()  # a worker in this process is given it next


def _claim_allocated(manager: Any) -> None:
    """Claim both dimensions of the mask: a row for each position of each sequence, a bit for each token."""
    config, mask = manager.vllm_config, manager._grammar_bitmask  # noqa: SLF001
    given = limits_of(config).inputs("max_num_seqs")
    rows = agreed("bitmask.rows")
    rows.claim("StructuredOutputManager", (int(mask.shape[0]),), role="provides", inputs=given)
    worst = config.scheduler_config.max_num_seqs * (1 + look_ahead_tokens(config))
    rows.claim("decode batch", (worst,), role="requires", inputs=given)
    given = {"vocab_size": manager.backend.vocab_size}
    agreed("bitmask.columns").claim("StructuredOutputManager", (int(mask.shape[1]),), role="provides", inputs=given)


def given_to(vocabulary: int, mask: Any) -> None:
    """A worker is given a mask: it must have a bit for each token of its own vocabulary."""
    columns = mask.shape[1]
    if columns != _watched.columns:
        _watched.columns = columns
        needed, given = -(-vocabulary // BITS), {"vocab_size": vocabulary}
        contract = agreed("bitmask.columns")
        contract.claim("model runner", (needed,), role="requires", inputs=given)
        contract.compare(int(columns), needed, inputs=lambda: given, sources=("mask of a step", "model runner"))


def _fill_failed(error: BaseException, _args: Args, _kwargs: Kwargs) -> None:
    session.note_exception("StructuredOutputManager.grammar_bitmask", error)


HOOKS = (
    Hook(
        "vllm.v1.structured_output",
        "StructuredOutputManager.grammar_bitmask",
        after=_filled,
        failed=_fill_failed,
        reads=("StructuredOutputManager._grammar_bitmask", "StructuredOutputManager.backend"),
    ),
)
