"""Block tables of the V1 runner: how far each reaches, and who keeps a copy of which width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.engines.vllm._sizes import agreed, inputs, source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ullage.contracts import Contract

WIDTH = "block_table.width"
COPIES = ("expanded_block_table_buffer",)
"""Tensors of metadata builders as wide as the block table: (rows, columns)."""

_POSITIONAL = "FullAttentionSpec"
"""The kind of cache, with those derived from it, whose tables have a column for each block of a sequence."""


class Table(NamedTuple):
    """The block table of one KV-cache group.

    Attributes:
        group: Its number.
        columns: How many blocks a row has, in blocks of ``block_size`` tokens.
        block_size: What one column stands for on this rank.
        shards: Over how many ranks a sequence's blocks are spread.
        positional: Whether a row has a place for each block of a sequence; a window or a state has its own sizes.
    """

    group: int
    columns: int
    block_size: int
    shards: int
    positional: bool
    spec: Any
    builders: tuple[Any, ...]

    @property
    def tokens(self) -> int:
        """How long a sequence can be."""
        return self.columns * self.block_size * self.shards


def tables(runner: Any) -> list[Table]:
    """Return the tables of a runner whose KV cache is initialised. Encoder-only layers have none."""
    made = runner.input_batch.block_table.block_tables
    groups = runner.kv_cache_config.kv_cache_groups
    return [
        Table(
            group=number,
            columns=int(table.block_table.gpu.shape[1]),
            block_size=table.block_size,
            shards=table.dcp_world_size * table.pcp_world_size,
            positional=any(base.__name__ == _POSITIONAL for base in type(_layer(group.kv_cache_spec)).__mro__),
            spec=_layer(group.kv_cache_spec),
            builders=tuple(builder for builder, of in each_builder(runner) if of == number),
        )
        for number, (table, group) in enumerate(zip(made, groups, strict=False))
    ]


def claim(runner: Any) -> None:
    """Claim what each table reaches and what it must reach; and the width of each copy of one."""
    config = runner.vllm_config
    found = tables(runner)
    reach = agreed("block_table.tokens")
    # What it was when the tables were allocated: vLLM may fit the limit to the memory afterwards.
    longest = getattr(runner.input_batch, "max_model_len", config.model_config.max_model_len)
    for table in found:
        if table.positional:
            given = inputs(config, max_model_len=longest, columns=table.columns, block_size=table.block_size)
            if table.spec.block_size != table.block_size:
                given["manager_block_size"] = table.spec.block_size
            reach.claim(_named("runner block table", table, found), (table.tokens,), role="provides", inputs=given)
        _claim_copies(config, table, found)
    needed = inputs(config, max_model_len=runner.max_model_len)
    reach.claim("model runner", (runner.max_model_len,), role="requires", inputs=needed)


def _claim_copies(config: Any, table: Table, found: list[Table]) -> None:
    """Compare widths in the columns of whoever keeps the copy: its kernel may want smaller blocks."""
    for builder in table.builders:
        contract = width_contract(builder, table, found)
        if contract is None:
            continue
        block_size = builder.kv_cache_spec.block_size
        given = inputs(config, "max_model_len", block_size=block_size)
        width = table.columns * table.block_size // block_size
        split = {"table_block_size": table.block_size} if block_size != table.block_size else {}
        contract.claim(_named("runner block table", table, found), (width,), inputs={**given, **split})
        for name, copy in _copies(builder):
            contract.claim(source(type(builder).__name__, name), (int(copy.shape[1]),), inputs=given)


def each_builder(runner: Any) -> Iterator[tuple[Any, int]]:
    """Yield the metadata builders of a runner, those of its proposer included, with their KV-cache group."""
    proposer = getattr(runner, "drafter", None)
    groups = [(one, number) for number, groups in enumerate(runner.attn_groups) for one in groups]
    groups += [(one, one.kv_cache_group_id) for one in getattr(proposer, "draft_attn_groups", ())]
    for one, number in groups:
        for builder in one.metadata_builders:
            yield builder, number


def width_contract(builder: Any, table: Table, found: list[Table]) -> Contract | None:
    """Return the contract on the width of a table in the columns of ``builder``; None if that keeps no copy of it."""
    if not any(_copies(builder)):
        return None
    block_size = builder.kv_cache_spec.block_size
    apart = [str(table.group)] if len(found) > 1 else []
    apart += [f"blocks of {block_size}"] if block_size != table.block_size else []
    return agreed("/".join([WIDTH, *apart]))


def compare_given(builder: Any, given: Any) -> None:
    """Hold a table that ``builder`` was given against its copy."""
    known = inputs(builder.vllm_config, "max_model_len", block_size=builder.kv_cache_spec.block_size)
    for name, copy in _copies(builder):
        sources = (source(type(builder).__name__, name), "runner block table")
        agreed(WIDTH).compare(int(copy.shape[1]), int(given.shape[1]), inputs=lambda: known, sources=sources)


def _copies(builder: Any) -> Iterator[tuple[str, Any]]:
    found = ((name, getattr(builder, name, None)) for name in COPIES)
    return ((name, copy) for name, copy in found if copy is not None)


def _named(what: str, table: Table, found: list[Table]) -> str:
    return f"{what} {table.group}" if len(found) > 1 else what


def _layer(spec: Any) -> Any:
    """Return the specification of one layer of a group that has one for each."""
    each = getattr(spec, "kv_cache_specs", None)
    return next(iter(each.values())) if each else spec
