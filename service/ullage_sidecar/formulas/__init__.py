"""Formulas: how a component computes a size, as data (``*.toml`` in this folder, read by ``catalogue``).

A formula is a list of named terms, applied one after another to a running value; so a diagnosis can drop, add or
change one, and name it. A size whose inputs are not all known is not judged: nothing has a default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Operation = Literal[
    "start", "add", "multiply", "ceil_div", "floor_div", "round_up", "align_tokens", "at_least", "at_most"
]
Role = Literal["provides", "requires", "is"]
Relation = Literal["==", ">="]
Severity = Literal["warning", "critical"]

OPERATIONS: tuple[Operation, ...] = get_args(Operation)
ROLES: tuple[Role, ...] = get_args(Role)
RELATIONS: tuple[Relation, ...] = get_args(Relation)
SEVERITIES: tuple[Severity, ...] = get_args(Severity)


@dataclass(frozen=True)
class Term:
    """One step of a formula.

    Attributes:
        operation: ``align_tokens`` rounds blocks up so that they hold a multiple of so many tokens; ``unit`` is then
            the block size. ``at_least`` is the larger of the two, ``at_most`` the smaller. The others mean what they
            say.
        operand: The name of an input, or a number.
        label: What it is for: base, look-ahead, divisor, alignment, fields, padding.
        unit: The name of the input that says how many tokens a block has; for ``align_tokens`` only.
    """

    operation: Operation
    operand: str | int
    label: str = ""
    unit: str = ""


Terms = tuple[Term, ...]


@dataclass(frozen=True)
class Input:
    """Where an input is found.

    Attributes:
        name: As it stands in terms and recorded inputs.
        config: Path in the engine's configuration.
        live: Path in the live object; empty where there is none.
        domain: Values it can have, if each side derives it for itself and often neither records it.
    """

    name: str
    config: str = ""
    live: str = ""
    domain: tuple[int, ...] = ()


@dataclass(frozen=True)
class Formula:
    """How one component computes one size.

    Attributes:
        quantity: What it is a size of; a contract of this name is about it.
        dims: A name for each dimension; ``terms`` has as many entries.
        versions: First version that computes it so, and first that does not, as in ``[0.22, 0.27)``.
        source: Project, version, file and symbol that it was read from.
        source_prefixes: How the sources of claims that follow it begin.
    """

    id: str
    quantity: str
    dims: tuple[str, ...]
    unit: str
    component: str
    role: Role
    engine: str
    versions: str
    inputs: tuple[Input, ...]
    terms: tuple[Terms, ...]
    source: str
    when: str = ""
    source_prefixes: tuple[str, ...] = ()

    def size(self, inputs: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Return the size; None if an input is missing."""
        sizes = tuple(evaluate(terms, inputs) for terms in self.terms)
        return None if None in sizes else tuple(size for size in sizes if size is not None)


@dataclass(frozen=True)
class Pair:
    """Two formulas for one size that must fit each other."""

    provider: str
    requirement: str
    relation: Relation
    severity: Severity
    silent: bool
    phase: str
    reports: tuple[str, ...] = ()


def evaluate(terms: Terms, inputs: Mapping[str, Any]) -> int | None:
    """Return the value of ``terms``; None if an input is missing, is no whole number, or divides by zero."""
    value = 0
    for term in terms:
        operand = inputs.get(term.operand) if isinstance(term.operand, str) else term.operand
        if not isinstance(operand, int) or isinstance(operand, bool):
            return None
        if term.operation == "align_tokens":
            block = inputs.get(term.unit)
            if not isinstance(block, int) or block <= 0 or operand <= 0:
                return None
            operand //= math.gcd(operand, block)
        if term.operation in ("ceil_div", "floor_div", "round_up", "align_tokens") and operand <= 0:
            return None
        value = _OPERATIONS[term.operation](value, operand)
    return value


_OPERATIONS: dict[Operation, Callable[[int, int], int]] = {
    "start": lambda _value, operand: operand,
    "add": lambda value, operand: value + operand,
    "multiply": lambda value, operand: value * operand,
    "floor_div": lambda value, operand: value // operand,
    "ceil_div": lambda value, operand: -(-value // operand),
    "round_up": lambda value, operand: -(-value // operand) * operand,
    "align_tokens": lambda value, operand: -(-value // operand) * operand,
    "at_least": max,
    "at_most": min,
}


def quantity(contract: str) -> str:
    """Return what a contract is about: its name up to the ``/`` that tells several of one kind apart."""
    return contract.partition("/")[0]


def format_terms(terms: Terms) -> str:
    """Return ``terms`` in the notation of a person: ``round_up(ceil(max_model_len / block_size), 2)``."""
    text = ""
    for term in terms:
        operand = str(term.operand)
        wrapped = f"({text})" if " " in text and not text.endswith(")") else text
        text = {
            "start": operand,
            "add": f"{text} {'-' if operand.startswith('-') else '+'} {operand.lstrip('-')}",
            "multiply": f"{wrapped} x {operand}",
            "floor_div": f"{wrapped} // {operand}",
            "ceil_div": f"ceil({wrapped} / {operand})",
            "round_up": f"round_up({text}, {operand})",
            "align_tokens": f"aligned({text}, {operand} tokens)",
            "at_least": f"max({text}, {operand})",
            "at_most": f"min({text}, {operand})",
        }[term.operation]
    return text
