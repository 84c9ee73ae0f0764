"""Metadata builders of attention: what each batch brings, against what was allocated for it.

Batches of dummy runs and captures are checked as well: several reported faults happen only there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.engines.instance import bind, steady
from ullage.engines.patch import Patch, argument
from ullage.engines.probe import SharedProbe
from ullage.engines.step_patch import StepPatch
from ullage.engines.vllm.claims import row_buffers
from ullage.engines.vllm.claims.block_tables import width_contract
from ullage.engines.vllm.contract_registry import (
    SEQUENCE_TOKENS,
    STEP_REQUESTS,
    STEP_TOKENS,
    TABLE_WIDTH,
    ContractRegistry,
    source,
)
from ullage.engines.vllm.identity import engine_of
from ullage.engines.vllm.views.builders import table_copies
from ullage.engines.vllm.views.common import limits_of

if TYPE_CHECKING:
    from ullage.engines.instance import EngineInstance
    from ullage.engines.runner_view import Builder, RunnerView

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


class Columns(NamedTuple):
    """The width of a table, as something with a shape."""

    shape: tuple[int, ...]
    dtype: Any


class BuilderChecks:
    """The room that each metadata builder of a runner has for a batch.

    Attributes:
        classes: The classes of the builders.
    """

    def __init__(self, view: RunnerView, sizes: ContractRegistry) -> None:
        self._checks = {id(builder.engine_object): _Check(builder, view, sizes) for builder in view.builders}
        self.classes = tuple(dict.fromkeys(type(builder.engine_object) for builder in view.builders))

    def __contains__(self, builder: object) -> bool:
        return id(builder) in self._checks

    def check(self, builder: object, batch: Any) -> None:
        """Compare a batch (vLLM's ``CommonAttentionMetadata``) with the room of ``builder``; others are ignored."""
        found = self._checks.get(id(builder))
        if found is not None:
            found.check(batch)


class _Check:
    """The room of one builder. Reads host numbers and shapes of a batch only.

    Attributes:
        name: The source of its violations.
        tokens, requests: Rows of its buffers; infinity without such buffers.
        reach: The longest sequence that its block table has room for; infinity of a table of another kind.
        growth: Tokens by which one sequence may grow in a step.
        width: The contract on the width of the block table, if the builder copies it.
    """

    __slots__ = ("_columns", "_engine", "_sizes", "growth", "name", "reach", "requests", "tokens", "width")

    def __init__(self, builder: Builder, view: RunnerView, sizes: ContractRegistry) -> None:
        self.name = source(builder.name, "build")
        self.tokens, self.requests = row_buffers.room(builder.rows)
        table = next((table for table in view.tables if table.group == builder.group), None)
        self.reach = math.inf
        if table is not None and table.positional:
            # With asynchronous scheduling, the longest sequence is a bound: as if all guesses had been right.
            unsure = 1 + view.limits.num_speculative_tokens if view.async_scheduling else 0
            self.reach = table.tokens + unsure
        self.width = width_contract(view, table, builder, sizes) if table is not None else None
        # One may take what all others leave of their look-ahead: then it grows by that much in each step.
        self.growth = 1 + view.limits.num_speculative_tokens * view.limits.max_num_seqs
        self._columns: dict[int, Columns] = {}
        self._sizes = sizes
        self._engine = sizes.engine

    def check(self, batch: Any) -> None:
        if self.reach < math.inf:
            self._engine.sampler.within(1 + int((self.reach - batch.max_seq_len) // self.growth))
        fits = batch.num_actual_tokens <= self.tokens and batch.num_reqs <= self.requests
        if not fits or batch.max_seq_len > self.reach:
            self._exceeds(batch)
        if self.width is not None:
            count = batch.block_table_tensor.shape[1]
            if count not in self._columns:
                self._columns[count] = Columns((int(count),), batch.block_table_tensor.dtype)
            self.width.check(self._columns[count], self.name)

    def _exceeds(self, batch: Any) -> None:
        """Report each number of a batch that has no room. An infinite room has no limit here."""
        needs = (
            (STEP_TOKENS, self.tokens, batch.num_actual_tokens),
            (STEP_REQUESTS, self.requests, batch.num_reqs),
            (SEQUENCE_TOKENS, self.reach, batch.max_seq_len),
        )
        phase = self._engine.phase
        what = phase.current.name.lower().replace("_", " ") if phase.dummy else "batch"
        given = {"num_actual_tokens": batch.num_actual_tokens, "num_reqs": batch.num_reqs}
        for size, room, need in needs:
            if need > room:
                contract = self._sizes.contract(size)
                contract.compare(int(room), int(need), inputs=lambda: given, sources=(self.name, what))


class CurrentChecks:
    """The checks of the runner of one engine instance; none before it has any."""

    def __init__(self, _engine: EngineInstance) -> None:
        self.checks: BuilderChecks | None = None


def watch(view: RunnerView, engine: EngineInstance) -> None:
    """Have each batch checked before one of the builders of ``view`` works on it."""
    checks = engine.part(CurrentChecks).checks = BuilderChecks(view, engine.part(ContractRegistry))
    for builder in view.builders:
        bind(builder.engine_object, engine)
    for cls in checks.classes:
        for patch in BUILDS:
            patch.wrap(cls)


def _builds(builder: Any, common_attn_metadata: Any) -> None:
    checks = engine_of(builder).part(CurrentChecks).checks
    if checks is not None:
        checks.check(builder, common_attn_metadata)


def _prepares(args: Args, kwargs: Kwargs) -> None:
    """The indexer copies the table of each sequence for each of its tokens; checked here if no batch check knows it."""
    builder, table = args[0], argument("block_table", 2, args, kwargs)
    engine = engine_of(builder)
    checks, sizes = engine.part(CurrentChecks).checks, engine.part(ContractRegistry)
    if checks is not None and builder in checks:
        return
    owner, block_size = type(builder).__name__, builder.kv_cache_spec.block_size
    given = limits_of(builder.vllm_config).inputs("max_model_len", block_size=block_size)
    for name, columns in table_copies(builder).items():
        sources = (source(owner, name), "runner block table")
        sizes.contract(TABLE_WIDTH).compare(columns, int(table.shape[1]), inputs=lambda: given, sources=sources)
    rows, tokens = builder.expanded_block_table_buffer.shape[0], argument("num_decode_tokens", 7, args, kwargs)
    if tokens > rows:
        sources = (source(owner, "expanded_block_table_buffer"), "batch")
        sizes.contract(STEP_TOKENS).compare(int(rows), int(tokens), sources=sources)


PROBE = SharedProbe("AttentionMetadataBuilder.build")
_ANY = "vllm.v1.attention.backend"

BUILDS = tuple(
    StepPatch(
        _ANY,
        f"AttentionMetadataBuilder.{name}",
        before=_builds,
        outermost=True,
        unless=steady,
        shared=PROBE,
    )
    for name in ("build", "build_for_cudagraph_capture", "build_for_drafting")
)
"""Wrapped in the classes of a runner's builders, when these exist."""
PATCHES = (
    Patch(
        "vllm.v1.attention.backends.mla.indexer",
        "DeepseekV32IndexerMetadataBuilder._prepare_decode_tensors",
        ("block_table", "num_decode_tokens"),
        before=_prepares,
        reads=("DeepseekV32IndexerMetadataBuilder.expanded_block_table_buffer",),
        shared=PROBE,
    ),
)
