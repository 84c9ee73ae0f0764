"""Metadata builders of attention, in each step and before it: what a batch brings against what was allocated for it.

Dummy runs and captures are looked at as well: several reported faults happen only there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.breadcrumb import breadcrumb
from ullage.engines._novelty import novelty
from ullage.engines._patch import Hook, argument
from ullage.engines._probe import SharedProbe
from ullage.engines._step_hook import FAMILIAR, StepHook
from ullage.engines.vllm import rows, tables
from ullage.engines.vllm._sizes import agreed, look_ahead_tokens, source

if TYPE_CHECKING:
    from collections.abc import Callable

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


class Columns(NamedTuple):
    """The width of a table, as something with a shape."""

    shape: tuple[int, ...]
    dtype: Any


_checks: dict[int, Callable[[Any], None]] = {}
"""What to hold a batch against, by ``id`` of its builder."""


def watch(runner: Any) -> None:
    """Have each batch looked at before a builder of ``runner`` works on it."""
    _checks.clear()
    found = tables.tables(runner)
    for builder, group in tables.each_builder(runner):
        table = next((table for table in found if table.group == group), None)
        _checks[id(builder)] = _check(builder, table, found, runner)
        for hook in BUILDS:
            hook.wrap(type(builder))


def _check(builder: Any, table: tables.Table | None, found: list[tables.Table], runner: Any) -> Callable[[Any], None]:
    """Return what looks at the batches of one builder. It reads host numbers and shapes only."""
    name = source(type(builder).__name__, "build")
    tokens, requests = rows.room(builder)
    reach = math.inf
    if table is not None and table.positional:
        # With asynchronous scheduling, the longest sequence is a bound: as if all guesses had been right.
        unsure = 1 + look_ahead_tokens(runner.vllm_config) if getattr(runner, "use_async_scheduling", False) else 0
        reach = table.tokens + unsure
    width = tables.width_contract(builder, table, found) if table is not None else None
    # One may take what all others leave of their look-ahead: then it grows by that much in each step.
    growth = 1 + look_ahead_tokens(runner.vllm_config) * runner.vllm_config.scheduler_config.max_num_seqs
    columns: dict[int, Columns] = {}

    def check(batch: Any) -> None:
        if reach < math.inf:
            novelty.within(1 + int((reach - batch.max_seq_len) // growth))
        if batch.num_actual_tokens > tokens or batch.num_reqs > requests or batch.max_seq_len > reach:
            _exceeds(name, batch, tokens, requests, reach)
        if width is not None:
            count = batch.block_table_tensor.shape[1]
            if count not in columns:
                columns[count] = Columns((int(count),), batch.block_table_tensor.dtype)
            width.check(columns[count], name)

    return check


def _exceeds(name: str, batch: Any, tokens: float, requests: float, reach: float) -> None:
    """Report which number of a batch has no room. What is infinite has no limit here."""
    needs = (
        ("step.tokens", tokens, batch.num_actual_tokens),
        ("step.requests", requests, batch.num_reqs),
        ("block_table.tokens", reach, batch.max_seq_len),
    )
    what = breadcrumb.phase.name.lower().replace("_", " ") if breadcrumb.rehearsing else "batch"
    given = {"num_actual_tokens": batch.num_actual_tokens, "num_reqs": batch.num_reqs}
    for size, room, need in needs:
        if need > room:
            agreed(size).compare(int(room), int(need), inputs=lambda: given, sources=(name, what))


def _builds(builder: Any, common_attn_metadata: Any) -> None:
    check = _checks.get(id(builder))
    if check is not None:
        check(common_attn_metadata)


def _prepares(args: Args, kwargs: Kwargs) -> None:
    """The indexer copies the table of each sequence for each of its tokens. A builder that is not watched otherwise."""
    builder, table = args[0], argument("block_table", 2, args, kwargs)
    if id(builder) not in _checks:
        copy = builder.expanded_block_table_buffer
        tables.compare_given(builder, table)
        tokens = argument("num_decode_tokens", 7, args, kwargs)
        if tokens > copy.shape[0]:
            sources = (source(type(builder).__name__, "expanded_block_table_buffer"), "batch")
            agreed("step.tokens").compare(int(copy.shape[0]), int(tokens), sources=sources)


PROBE = SharedProbe("AttentionMetadataBuilder.build")
_ANY = "vllm.v1.attention.backend"

BUILDS = tuple(
    StepHook(
        _ANY,
        f"AttentionMetadataBuilder.{name}",
        before=_builds,
        outermost=True,
        unless=FAMILIAR,
        shared=PROBE,
    )
    for name in ("build", "build_for_cudagraph_capture", "build_for_drafting")
)
"""Wrapped in the classes of the builders that there are, when they are."""
HOOKS = (
    Hook(
        "vllm.v1.attention.backends.mla.indexer",
        "DeepseekV32IndexerMetadataBuilder._prepare_decode_tensors",
        ("block_table", "num_decode_tokens"),
        before=_prepares,
        reads=("DeepseekV32IndexerMetadataBuilder.expanded_block_table_buffer",),
        shared=PROBE,
    ),
)
