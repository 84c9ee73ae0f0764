"""Formulas that give a size from what was recorded: those that are known by name, and simple ones made up."""

from __future__ import annotations

import re
from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage_sidecar.formulas import Formula, Term, Terms, evaluate
from ullage_sidecar.formulas.catalogue import formulas_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Inputs = Mapping[str, Any]

CONSTANTS = (2, 4, 8, 16, 32, 64, 128)
MIB = 2**20
MAX_INPUTS = 12
MAX_CANDIDATES = 32
"""Simple expressions that are followed up: inputs that are all equal, or a size of 1, are given by a hundred."""


class Candidate(NamedTuple):
    """A formula that gives one side's number.

    Attributes:
        uses: The recorded inputs in it.
        tries: How many formulas were tried to find it; 1 for one that is known by name.
        formula: The one that is known by name; None for an expression with no knowledge of the engine in it.
    """

    terms: Terms
    uses: tuple[str, ...]
    tries: int
    formula: Formula | None = None


def candidate_formulas(quantity: str, dim: int, inputs: Inputs, size: int) -> list[Candidate]:
    """Return the formulas that give ``size``, those known for ``quantity`` before simple expressions of the inputs.

    An expression with a constant in it counts only if none without gives the size. Without inputs, it is the size
    itself.
    """
    named = [
        Candidate(formula.terms[dim], _names(formula.terms[dim]), 1, formula)
        for formula in known(quantity, dim, inputs)
        if evaluate(formula.terms[dim], inputs) == size
    ]
    if not inputs and not named:
        return [Candidate((Term("start", size, "size"),), (), 1)]
    simple = list(_expressions(inputs))
    fitting = [terms for terms in simple if evaluate(terms, inputs) == size]
    made_up = [
        Candidate(terms, _names(terms), len(simple))
        for terms in fitting
        if all(terms != known_one.terms for known_one in named)
    ]
    if named or made_up:
        return [*named, *made_up[:MAX_CANDIDATES]]
    more = list(derived(inputs))
    return [candidate._replace(tries=len(more)) for candidate in more if evaluate(candidate.terms, inputs) == size][
        :MAX_CANDIDATES
    ]


def known(quantity: str, dim: int, inputs: Inputs) -> list[Formula]:
    """Return the formulas known for a quantity that fit the engine's version, if that was recorded."""
    return [
        formula
        for formula in formulas_of(quantity)
        if dim < len(formula.terms) and holds(formula.versions, inputs.get("engine_version"))
    ]


def matches_source(formula: Formula, source: str) -> bool:
    """Return whether it is what ``source`` computes."""
    return source.startswith(formula.source_prefixes) if formula.source_prefixes else False


def holds(versions: str, version: object) -> bool:
    """Return whether a version is in a range such as ``[0.22, 0.27)``; one that was not recorded is."""
    if not isinstance(version, str):
        return True
    first, end = (_version(bound) for bound in versions.strip("[)").split(","))
    return (not first or _version(version) >= first) and (not end or _version(version) < end)


def apart(one: Formula, other: Formula) -> bool:
    """Return whether no version computes it both ways."""
    (first, end), (other_first, other_end) = (
        tuple(_version(bound) for bound in formula.versions.strip("[)").split(",")) for formula in (one, other)
    )
    return bool((end and other_first and end <= other_first) or (other_end and first and other_end <= first))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:3])


def derived(inputs: Inputs) -> Iterator[Candidate]:
    """Yield the simple expressions of the inputs, and those with one constant in them."""
    for terms in _expressions(inputs):
        yield Candidate(terms, _names(terms), 1)
    for name in _sizes(inputs):
        yield Candidate((Term("start", name, "base"), Term("multiply", MIB, "unit")), (name,), 1)
        for constant in CONSTANTS:
            yield Candidate((Term("start", name, "base"), Term("floor_div", constant, "divisor")), (name,), 1)


def _expressions(inputs: Inputs) -> Iterator[Terms]:
    names = _sizes(inputs)
    for name in names:
        yield (Term("start", name, "base"),)
    names = [name for name in names if inputs[name] > 1]
    for first, second in permutations(names, 2):
        start = Term("start", first, "base")
        yield start, Term("ceil_div", second, "divisor")
        if inputs[first] % inputs[second]:
            yield start, Term("floor_div", second, "divisor")
        if first < second:
            yield start, Term("multiply", second, "fields")
            yield start, Term("add", second, "addition")
    if len(names) > 2:
        yield (Term("start", names[0], "base"), *(Term("multiply", name, "fields") for name in names[1:]))


def _sizes(inputs: Inputs) -> list[str]:
    """Names of the inputs that are sizes: whole numbers above zero."""
    sizes = [
        name for name, value in inputs.items() if isinstance(value, int) and not isinstance(value, bool) and value > 0
    ]
    return sizes[:MAX_INPUTS]


def _names(terms: Terms) -> tuple[str, ...]:
    return tuple(term.operand for term in terms if isinstance(term.operand, str))
