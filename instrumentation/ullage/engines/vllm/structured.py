"""Structured output, in the engine core: rows of the bitmask that says which tokens a grammar allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.buffers import Buffer, buffer
from ullage.engines._patch import Hook
from ullage.session import session

if TYPE_CHECKING:
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


class _Watched:
    """The bitmask of this process."""

    rows: Buffer | None = None


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
    rows.observe(result.shape[0])


def _fill_failed(error: BaseException, _args: Args, _kwargs: Kwargs) -> None:
    session.note_exception("StructuredOutputManager.grammar_bitmask", error)


HOOKS = (
    Hook(
        "vllm.v1.structured_output",
        "StructuredOutputManager.grammar_bitmask",
        after=_filled,
        failed=_fill_failed,
    ),
)
