"""All formulas, by what they are a size of. The files are read when the first formula is needed."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from ullage_sidecar.formulas import quantity
from ullage_sidecar.formulas.loader import Family, FormulaError, parse

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ullage_sidecar.formulas import Formula

FAMILIES = ("block_tables", "rows", "drafts", "graphs", "flash_attention", "limits")
"""A file each. Of formulas that explain a size equally well, the first is named."""


@cache
def catalogue() -> Family:
    """Return the formulas and pairs of all families.

    Raises:
        FormulaError: A file is not valid.
    """
    folder = resources.files(__package__)
    names = (f"{family}.toml" for family in FAMILIES)
    return joined(parse(name, folder.joinpath(name).read_text(encoding="utf-8")) for name in names)


def joined(families: Iterable[Family]) -> Family:
    """Return several families as one.

    Raises:
        FormulaError: Two formulas have the same id, or a pair names one that does not exist or is of another quantity.
    """
    given = tuple(families)
    formulas = tuple(formula for family in given for formula in family.formulas)
    known = {formula.id: formula for formula in formulas}
    if len(known) < len(formulas):
        twice = next(formula for formula in formulas if known[formula.id] is not formula)
        raise FormulaError(f"formula {twice.id}, key id: is in two files; allowed: a new id")
    pairs = tuple(pair for family in given for pair in family.pairs)
    for pair in pairs:
        for key, name in (("provider", pair.provider), ("requirement", pair.requirement)):
            if name not in known:
                raise FormulaError(f"pair {pair.provider}, {pair.requirement}, key {key}: is {name!r}; allowed: an id")
        if known[pair.provider].quantity != known[pair.requirement].quantity:
            raise FormulaError(
                f"pair {pair.provider}, {pair.requirement}: sizes of two quantities; allowed: formulas of the same one"
            )
    return Family(formulas, pairs)


def formulas_of(contract: str) -> tuple[Formula, ...]:
    """Return the formulas for the size that a contract is about."""
    wanted = quantity(contract)
    return tuple(formula for formula in catalogue().formulas if formula.quantity == wanted)
