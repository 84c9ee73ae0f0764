"""Block tables: the longest sequence that each has room for, and the width of its copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.engines.vllm.contract_registry import SEQUENCE_TOKENS, TABLE_WIDTH, source

if TYPE_CHECKING:
    from ullage.engines.runner_view import BlockTable, Builder, RunnerView
    from ullage.engines.vllm.contract_registry import ContractRegistry
    from ullage.recording.contracts import Contract


def claim(view: RunnerView, sizes: ContractRegistry) -> None:
    """Claim the tokens that a row of each table has room for, and those that it must have; and the width of copies."""
    reach = sizes.contract(SEQUENCE_TOKENS)
    for table in view.tables:
        if table.positional:
            given = view.limits.inputs(
                max_model_len=table.max_model_len, columns=table.columns, block_size=table.block_size
            )
            if table.manager_block_size != table.block_size:
                given["manager_block_size"] = table.manager_block_size
            reach.claim(_name(view, table), (table.tokens,), role="provides", inputs=given)
        for builder in view.builders:
            if builder.group == table.group:
                _claim_copies(view, table, builder, sizes)
    if view.max_model_len is not None:
        needed = view.limits.inputs(max_model_len=view.max_model_len)
        reach.claim("model runner", (view.max_model_len,), role="requires", inputs=needed)


def width_contract(view: RunnerView, table: BlockTable, builder: Builder, sizes: ContractRegistry) -> Contract | None:
    """Return the contract on the width of ``table`` in columns of ``builder``; None if that keeps no copy of it."""
    if not builder.table_copies:
        return None
    apart = [str(table.group)] if len(view.tables) > 1 else []
    apart += [f"blocks of {builder.block_size}"] if builder.block_size != table.block_size else []
    return sizes.contract("/".join([TABLE_WIDTH, *apart]))


def _claim_copies(view: RunnerView, table: BlockTable, builder: Builder, sizes: ContractRegistry) -> None:
    """Compare widths in columns of the builder, whose kernel may want smaller blocks."""
    contract = width_contract(view, table, builder, sizes)
    if contract is None:
        return
    given = view.limits.inputs("max_model_len", block_size=builder.block_size)
    width = table.columns * table.block_size // builder.block_size
    split = {"table_block_size": table.block_size} if builder.block_size != table.block_size else {}
    contract.claim(_name(view, table), (width,), inputs={**given, **split})
    for name, columns in builder.table_copies.items():
        contract.claim(source(builder.name, name), (columns,), inputs=given)


def _name(view: RunnerView, table: BlockTable) -> str:
    return f"runner block table {table.group}" if len(view.tables) > 1 else "runner block table"
