"""Formulas that give a size from what was recorded: those that are known by name, and simple ones made up."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.formulas import Term, Terms, evaluate
from ullage.formulas.vllm import FORMULAS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Inputs = Mapping[str, Any]

CONSTANTS = (2, 4, 8, 16, 32, 64, 128)
MAX_INPUTS = 12


class Base(NamedTuple):
    """A formula that gives one side's number.

    Attributes:
        uses: The recorded inputs in it.
        tries: How many formulas were tried to find it; 1 for one that is known by name.
        plain: It is a single input or a simple expression, with no knowledge of the engine in it.
    """

    terms: Terms
    uses: tuple[str, ...]
    tries: int
    plain: bool


def bases(quantity: str, inputs: Inputs, size: int) -> list[Base]:
    """Return the formulas that give ``size``, those known for ``quantity`` before simple expressions of the inputs.

    An expression with a constant in it counts only if none without gives the size. Without inputs, it is the size
    itself.
    """
    if not inputs:
        return [Base((Term("start", size, "size"),), (), 1, plain=True)]
    named = [
        Base(formula.terms[0], tuple(item.name for item in formula.inputs), 1, plain=False)
        for formula in FORMULAS
        if formula.quantity == quantity and len(formula.terms) == 1 and evaluate(formula.terms[0], inputs) == size
    ]
    simple = list(_expressions(inputs))
    fitting = [terms for terms in simple if evaluate(terms, inputs) == size]
    made_up = [
        Base(terms, _names(terms), len(simple), plain=True)
        for terms in fitting
        if all(terms != known.terms for known in named)
    ]
    if named or made_up:
        return [*named, *made_up]
    more = list(derived(inputs))
    return [base._replace(tries=len(more)) for base in more if evaluate(base.terms, inputs) == size]


def derived(inputs: Inputs) -> Iterator[Base]:
    """Yield the simple expressions of the inputs, and those with one constant in them."""
    for terms in _expressions(inputs):
        yield Base(terms, _names(terms), 1, plain=True)
    for name in _sizes(inputs):
        for constant in CONSTANTS:
            yield Base((Term("start", name, "base"), Term("floor_div", constant, "divisor")), (name,), 1, plain=True)


def _expressions(inputs: Inputs) -> Iterator[Terms]:
    names = _sizes(inputs)
    for name in names:
        yield (Term("start", name, "base"),)
    for first, second in permutations(names, 2):
        start = Term("start", first, "base")
        yield start, Term("ceil_div", second, "divisor")
        if inputs[first] % inputs[second]:
            yield start, Term("floor_div", second, "divisor")
        if first < second:
            yield start, Term("multiply", second, "fields")
            yield start, Term("add", second, "addition")


def _sizes(inputs: Inputs) -> list[str]:
    """Names of the inputs that are sizes: whole numbers above zero."""
    sizes = [
        name for name, value in inputs.items() if isinstance(value, int) and not isinstance(value, bool) and value > 0
    ]
    return sizes[:MAX_INPUTS]


def _names(terms: Terms) -> tuple[str, ...]:
    return tuple(term.operand for term in terms if isinstance(term.operand, str))
