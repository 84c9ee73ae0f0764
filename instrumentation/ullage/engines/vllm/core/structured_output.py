"""Structured output: the bitmask that says which tokens a grammar allows, in the engine core and in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.engines.patch import Patch
from ullage.engines.vllm.contract_registry import ContractRegistry
from ullage.engines.vllm.identity import engine_of
from ullage.engines.vllm.views.common import limits_of, look_ahead_tokens

if TYPE_CHECKING:
    from ullage.engines.instance import EngineInstance
    from ullage.recording.buffers import Buffer

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


BITS = 32
"""Tokens in one number of the mask."""


class Bitmask:
    """The bitmask of one engine instance.

    Attributes:
        columns: Columns of the mask that the worker was last given; 0 before that.
    """

    def __init__(self, engine: EngineInstance) -> None:
        self._engine = engine
        self._sizes = engine.part(ContractRegistry)
        self._rows: Buffer | None = None
        self.columns = 0

    def filled(self, manager: Any, rows: int) -> None:
        """The core filled ``rows`` of the mask, which is allocated for the first batch that needs it."""
        allocated = manager._grammar_bitmask.shape[0]  # noqa: SLF001  as vLLM names it
        if self._rows is None or self._rows.capacity != allocated:
            # It has a row for each position of each sequence: the worst case fills it, and that is no reason to warn.
            self._rows = self._engine.buffer(
                "grammar_bitmask", capacity=allocated, unit="rows", kind="fixed", limit="max_num_seqs"
            )
            self._claim_allocated(manager)
        self._rows.observe(rows)
        self._engine.clock.sample()  # a worker in this process is given it next

    def _claim_allocated(self, manager: Any) -> None:
        """Claim both dimensions of the mask: a row for each position of each sequence, a bit for each token."""
        config, mask = manager.vllm_config, manager._grammar_bitmask  # noqa: SLF001
        given = limits_of(config).inputs("max_num_seqs")
        rows = self._sizes.contract("bitmask.rows")
        rows.claim("StructuredOutputManager", (int(mask.shape[0]),), role="provides", inputs=given)
        worst = config.scheduler_config.max_num_seqs * (1 + look_ahead_tokens(config))
        rows.claim("decode batch", (worst,), role="requires", inputs=given)
        given = {"vocab_size": manager.backend.vocab_size}
        columns = self._sizes.contract("bitmask.columns")
        columns.claim("StructuredOutputManager", (int(mask.shape[1]),), role="provides", inputs=given)

    def given_to(self, vocabulary: int, mask: Any) -> None:
        """A worker is given a mask: it must have a bit for each token of its own vocabulary."""
        columns = mask.shape[1]
        if columns != self.columns:
            self.columns = columns
            needed, given = -(-vocabulary // BITS), {"vocab_size": vocabulary}
            contract = self._sizes.contract("bitmask.columns")
            contract.claim("model runner", (needed,), role="requires", inputs=given)
            contract.compare(int(columns), needed, inputs=lambda: given, sources=("mask of a step", "model runner"))


def _filled(result: Any, args: Args, _kwargs: Kwargs) -> None:
    if result is not None:
        engine_of(args[0]).part(Bitmask).filled(args[0], result.shape[0])


def _fill_failed(error: BaseException, args: Args, _kwargs: Kwargs) -> None:
    engine_of(args[0]).session.note_exception("StructuredOutputManager.grammar_bitmask", error)


PATCHES = (
    Patch(
        "vllm.v1.structured_output",
        "StructuredOutputManager.grammar_bitmask",
        after=_filled,
        failed=_fill_failed,
        reads=("StructuredOutputManager._grammar_bitmask", "StructuredOutputManager.backend"),
    ),
)
