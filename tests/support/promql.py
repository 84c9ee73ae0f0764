"""What a PromQL expression asks for."""

from __future__ import annotations

import re
from typing import NamedTuple

import promql_parser

TARGET_LABELS = {"cluster", "job", "namespace", "pod", "instance"}


class Selector(NamedTuple):
    """A metric and its matchers: (label, operator, value)."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]

    def selects(self, name, labels):
        """Tell whether a series is among those it asks for."""
        return name == self.name and all(
            self._fits(operator, value, labels.get(label, ""))
            for label, operator, value in self.matchers
            if label not in TARGET_LABELS
        )

    @staticmethod
    def _fits(operator, wanted, value):
        same = value == wanted if operator in ("=", "!=") else re.fullmatch(wanted, value) is not None
        return same is not operator.startswith("!")


_OPERATORS = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}


def _operator(op):
    return _OPERATORS[str(op).rpartition(".")[2]]


def selectors(expr):
    """Return every Selector in an expression."""
    found = []

    def visit(node):
        if isinstance(node, promql_parser.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql_parser.VectorSelector):
            matchers = tuple((m.name, _operator(m.op), m.value) for m in node.matchers.matchers)
            found.append(Selector(node.name, matchers))

    promql_parser.walk(promql_parser.parse(expr), visit)
    return list(dict.fromkeys(found))


def functions(expr):
    """Return the names of the functions that an expression calls."""
    called = set()

    def visit(node):
        if isinstance(node, promql_parser.Call):
            called.add(node.func.name)

    promql_parser.walk(promql_parser.parse(expr), visit)
    return called


def grouping(expr):
    """Return every label by which an expression aggregates or joins."""
    named = re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", expr)
    return {label for labels in named for label in re.split(r",\s*", labels) if label}
