"""All formulas, by what they are a size of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage_sidecar.formulas import drafts, flash_attention, graphs, limits, quantity, rows, vllm

if TYPE_CHECKING:
    from ullage_sidecar.formulas import Formula

FORMULAS = (
    *vllm.FORMULAS,
    *rows.FORMULAS,
    *drafts.FORMULAS,
    *graphs.FORMULAS,
    *flash_attention.FORMULAS,
    *limits.FORMULAS,
)
PAIRS = vllm.PAIRS

BY_ID = {formula.id: formula for formula in FORMULAS}


def formulas_of(contract: str) -> tuple[Formula, ...]:
    """Return the formulas for the size that a contract is about."""
    wanted = quantity(contract)
    return tuple(formula for formula in FORMULAS if formula.quantity == wanted)
