"""Reads a family of formulas from TOML, and refuses an invalid file.

``[inputs]`` names each input of the family: its path in the configuration (``config``), in the live object (``live``),
and the values it can have (``domain``), all optional. Each ``[[formula]]`` has the fields of ``Formula``;
``terms.DIMENSION`` is a list of ``[operation, operand, label]``, to which ``align_tokens`` adds the input that holds
the block size. Each ``[[pair]]`` has the fields of ``Pair``.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ullage_sidecar.formulas import OPERATIONS, RELATIONS, ROLES, SEVERITIES, Formula, Input, Pair, Term

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ullage_sidecar.formulas import Terms

One = TypeVar("One")

VERSIONS = re.compile(r"\[(\d+(\.\d+)*)?, (\d+(\.\d+)*)?\)")
INPUT_KEYS = ("config", "live", "domain")
FORMULA_KEYS = (
    *("id", "quantity", "unit", "component", "role", "engine", "versions", "when"),
    *("source", "source_prefixes", "terms"),
)
PAIR_KEYS = ("provider", "requirement", "relation", "severity", "silent", "phase", "reports")


class FormulaError(ValueError):
    """A file of formulas is not valid; the message names file, formula and key, and what is allowed."""


class Family(NamedTuple):
    """The contents of one file."""

    formulas: tuple[Formula, ...]
    pairs: tuple[Pair, ...]


def parse(file: str, text: str) -> Family:
    """Return the formulas and pairs in ``text``; ``file`` is its name in messages.

    Raises:
        FormulaError: It is no TOML, or a key is missing, unknown or has a value that is not allowed.
    """
    try:
        document = _Table(file, tomllib.loads(text), ("inputs", "formula", "pair"))
    except tomllib.TOMLDecodeError as error:
        raise FormulaError(f"{file}: {error}") from error
    inputs = {name: _input(f"{file}, inputs.{name}", name, given) for name, given in document.table("inputs").items()}
    formulas: dict[str, Formula] = {}
    for number, given in enumerate(document.tables("formula"), start=1):
        formula = _formula(file, number, given, inputs)
        if formula.id in formulas:
            raise FormulaError(
                f"{file}, formula {formula.id}, key id: is taken by an earlier formula; allowed: a new id"
            )
        formulas[formula.id] = formula
    unused = inputs.keys() - {item.name for formula in formulas.values() for item in formula.inputs}
    if unused:
        raise FormulaError(f"{file}, inputs.{min(unused)}: no formula uses it; allowed: the inputs in terms")
    pairs = tuple(_pair(f"{file}, pair {number}", given) for number, given in enumerate(document.tables("pair"), 1))
    return Family(tuple(formulas.values()), pairs)


class _Table:
    """A table of a file: returns values of the requested type, and refuses all others."""

    def __init__(self, place: str, given: object, keys: Sequence[str]) -> None:
        self._place = place
        self._given = _dict(place, given)
        for key in self._given:
            if key not in keys:
                raise self.refused(key, "is unknown", ", ".join(keys))

    def refused(self, key: str, fault: str, allowed: str) -> FormulaError:
        return FormulaError(f"{self._place}, key {key}: {fault}; allowed: {allowed}")

    def text(self, key: str, *, optional: bool = False) -> str:
        value = self._given.get(key, "" if optional else None)
        if not isinstance(value, str) or not (value or optional):
            raise self.refused(key, _fault(value), "a text" + (" or no such key" if optional else ""))
        return value

    def choice(self, key: str, allowed: tuple[One, ...]) -> One:
        value = self._given.get(key)
        for one in allowed:
            if one == value and type(one) is type(value):
                return one
        raise self.refused(key, _fault(value), ", ".join(map(str, allowed)))

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._given.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise self.refused(key, _fault(value), "a list of texts")
        return tuple(value)

    def numbers(self, key: str) -> tuple[int, ...]:
        value = self._given.get(key, [])
        if not isinstance(value, list) or not all(type(one) is int for one in value):
            raise self.refused(key, _fault(value), "a list of whole numbers")
        return tuple(value)

    def table(self, key: str) -> dict[str, Any]:
        return _dict(f"{self._place}, key {key}", self._given.get(key, {}))

    def tables(self, key: str) -> list[Any]:
        value = self._given.get(key, [])
        if not isinstance(value, list):
            raise self.refused(key, _fault(value), f"tables [[{key}]]")
        return value


def _dict(place: str, given: object) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise FormulaError(f"{place}: {_fault(given)}; allowed: a table")
    return given


def _fault(value: object) -> str:
    return "is missing" if value is None else f"is {value!r}"


def _input(place: str, name: str, given: object) -> Input:
    table = _Table(place, given, INPUT_KEYS)
    config, live = table.text("config", optional=True), table.text("live", optional=True)
    return Input(name, config, live, table.numbers("domain"))


def _formula(file: str, number: int, given: object, inputs: dict[str, Input]) -> Formula:
    name = given.get("id") if isinstance(given, dict) else None
    place = f"{file}, formula {name or number}"
    table = _Table(place, given, FORMULA_KEYS)
    versions = table.text("versions")
    if not VERSIONS.fullmatch(versions):
        raise table.refused(
            "versions", _fault(versions), "a range such as [0.22, 0.34), either end of which may be missing"
        )
    dims = table.table("terms")
    if not dims:
        raise table.refused(
            "terms", "is missing", "terms.DIMENSION, a list of [operation, operand, label] for each dimension"
        )
    terms = {dim: _terms(f"{place}, key terms.{dim}", given, inputs) for dim, given in dims.items()}
    used = {name for each in terms.values() for term in each for name in (term.operand, term.unit)}
    return Formula(
        id=table.text("id"),
        quantity=table.text("quantity"),
        dims=tuple(terms),
        unit=table.text("unit"),
        component=table.text("component"),
        role=table.choice("role", ROLES),
        engine=table.text("engine"),
        versions=versions,
        inputs=tuple(item for name, item in inputs.items() if name in used),
        terms=tuple(terms.values()),
        source=table.text("source"),
        when=table.text("when", optional=True),
        source_prefixes=table.texts("source_prefixes"),
    )


def _terms(place: str, given: object, inputs: dict[str, Input]) -> Terms:
    if not isinstance(given, list) or not given:
        raise FormulaError(f"{place}: {_fault(given)}; allowed: a list of [operation, operand, label]")
    terms = tuple(_term(f"{place}[{number}]", one, inputs) for number, one in enumerate(given))
    for number, term in enumerate(terms):
        if (term.operation == "start") is (number > 0):
            raise FormulaError(
                f"{place}[{number}]: is {term.operation!r}; allowed: start in the first place, and only there"
            )
    return terms


def _term(place: str, given: object, inputs: dict[str, Input]) -> Term:
    operation = given[0] if isinstance(given, list) and given else None
    if operation not in OPERATIONS:
        raise FormulaError(f"{place}: operation {_fault(operation)}; allowed: {', '.join(OPERATIONS)}")
    aligns = operation == "align_tokens"
    form = f"[{operation}, operand, label{', input with the block size' if aligns else ''}]"
    if not isinstance(given, list) or len(given) != (4 if aligns else 3):
        raise FormulaError(f"{place}: is {given}; allowed: {form}")
    _, operand, label, unit = (*given, "")[:4]
    if not isinstance(label, str) or not label:
        raise FormulaError(f"{place}: label is {label!r}; allowed: a text that says what the term is for")
    if type(operand) is not int and not _is_input(operand, inputs):
        raise FormulaError(f"{place}: operand is {operand!r}; allowed: a whole number, {', '.join(inputs)}")
    if aligns and not _is_input(unit, inputs):
        raise FormulaError(f"{place}: block size is {unit!r}; allowed: {', '.join(inputs)}")
    return Term(operation, operand, label, unit)


def _is_input(name: object, inputs: dict[str, Input]) -> bool:
    return isinstance(name, str) and name in inputs


def _pair(place: str, given: object) -> Pair:
    table = _Table(place, given, PAIR_KEYS)
    return Pair(
        provider=table.text("provider"),
        requirement=table.text("requirement"),
        relation=table.choice("relation", RELATIONS),
        severity=table.choice("severity", SEVERITIES),
        silent=table.choice("silent", (True, False)),
        phase=table.text("phase"),
        reports=table.texts("reports"),
    )
