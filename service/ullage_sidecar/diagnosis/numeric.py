"""Causes that follow from arithmetic: a formula for one side's number, and a transformation of it for the other's."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.segment.agreement import EQUAL
from ullage_sidecar.diagnosis import vocabulary
from ullage_sidecar.diagnosis.candidate_formulas import (
    Candidate,
    apart,
    candidate_formulas,
    derived,
    known,
    matches_source,
)
from ullage_sidecar.diagnosis.finding import Cause, Side
from ullage_sidecar.diagnosis.priors import log_prior
from ullage_sidecar.diagnosis.transformations import TRANSFORMATIONS, Variant
from ullage_sidecar.formulas import Formula, Terms, evaluate, format_terms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ullage.segment.agreement import Claim

    Inputs = Mapping[str, Any]
    _Rule = tuple[str, str, list[Variant], str, str, tuple[str, ...]]

UNUSED_COST = 0.7
MAX_UNUSED = 3
KNOWN_FIT = 1 / 4
"""Two known formulas show how the sides differ, not why: a named transformation weighs more."""
OWN_FORMULAS = 8.0
"""Factor on the weight of a transformation that turns the formula of one side into that of the other."""
TRANSFORMATION_COST = 0.3
"""Of the second of two transformations, as a logarithm: two faults at once are rarer than their shares say."""
MAX_COMPLETIONS = 4096
KEEP_ONE = "Keep one of the formulas, and have the other side ask for its result."


class Pair(NamedTuple):
    """Two claims that do not fit, and the dimension in which they differ."""

    contract: str
    provider: Claim
    requirement: Claim
    dim: int
    relation: str
    without: str

    @property
    def sizes(self) -> tuple[int, int]:
        """What is provided and what is required."""
        return self.provider.shape[self.dim] or 0, self.requirement.shape[self.dim] or 0


def numeric(pair: Pair) -> Iterator[Cause]:
    """Yield what arithmetic explains; the same rule perhaps several times."""
    for side in views(pair):
        for candidate in candidate_formulas(pair.contract, pair.dim, side.known, side.size):
            yield from _same_formula(side, candidate)
            yield from _transformed(side, candidate)
    yield from _own_formulas(pair)
    yield from _derived_twice(pair)


def views(pair: Pair) -> tuple[View, View]:
    """Return both ways of explaining one side's number by a transformation of the other's."""
    have, need = pair.sizes
    return (
        View(pair, pair.provider, have, pair.requirement, need),
        View(pair, pair.requirement, need, pair.provider, have),
    )


class View:
    """One side whose number is explained, and the other, whose number a transformation must give."""

    def __init__(self, pair: Pair, plain: Claim, size: int, transformed: Claim, other: int) -> None:
        self.pair, self.plain, self.size, self.transformed, self.other = pair, plain, size, transformed, other
        self.known: Inputs = plain.inputs or transformed.inputs
        self.merged: Inputs = {**self.known, **transformed.inputs}

    def differing(self, variant: Variant) -> tuple[str, ...] | None:
        """Return the inputs that must differ for ``variant`` to give the other's number, besides those it brought.

        None if it does not give that: the transformed side computes with its own inputs.
        """
        if evaluate(variant.terms, self.merged) != self.other:
            return None
        kept = {name for term in variant.terms for name in (term.operand, term.unit)}.difference(variant.uses)
        differ = {name: value for name, value in self.known.items() if name in kept and self.merged[name] != value}
        if evaluate(variant.terms, {**self.merged, **differ}) == self.other:
            return ()
        each = [name for name in differ if evaluate(variant.terms, {**self.merged, name: differ[name]}) != self.other]
        return tuple(each or differ)

    def computed(self, candidate: Candidate, other: Variant) -> bool:
        """Return whether the need is computed: where more than the need would do, a mere limit is no formula."""
        need = candidate.terms if self.plain is self.pair.requirement else other.terms
        return self.pair.relation == EQUAL or len(need) > 1

    def both(self, terms: Terms, transformed: Terms) -> tuple[Side, Side]:
        """Return the provider's side and the requirement's."""
        ours, theirs = Side(terms, self.known), Side(transformed, self.merged)
        return (ours, theirs) if self.plain is self.pair.provider else (theirs, ours)


def _same_formula(side: View, candidate: Candidate) -> Iterator[Cause]:
    """Explain by inputs that differ: the formula is the same."""
    differ = [name for name in candidate.uses if side.merged.get(name) != side.known.get(name)]
    for count in range(1, len(differ) + 1):
        for names in combinations(differ, count):
            inputs = {**side.known, **{name: side.merged[name] for name in names}}
            if evaluate(candidate.terms, inputs) == side.other:
                fault = other_inputs(side, candidate, names)
                yield Cause(
                    fault.rule,
                    fault.cause,
                    f"both have {format_terms(candidate.terms)}, but {fault.words}",
                    weigh(side, (fault.cause,), candidate, 1.0, candidate.terms),
                    fault.advice,
                    fault.avoid,
                    candidate.tries,
                    side.both(candidate.terms, candidate.terms),
                )
                return


class Fault(NamedTuple):
    """What went wrong on one side, in words, and what to do."""

    rule: str
    cause: str
    words: str
    advice: str
    avoid: str


def other_inputs(side: View, candidate: Candidate, names: tuple[str, ...]) -> Fault:
    """Return what it means that the sides have other values of ``names``."""
    words = ", ".join(
        f"{name} is {side.known[name]} for {side.plain.source}, {side.merged[name]} for {side.transformed.source}"
        for name in names
    )
    derived_by_each = candidate.formula is not None and all(
        item.domain for item in candidate.formula.inputs if item.name in names
    )
    peers = side.known.get(vocabulary.ROLE) != side.transformed.inputs.get(vocabulary.ROLE)
    if peers and side.transformed.inputs.get(vocabulary.ROLE):
        rule, cause = "peers differ", "connector fields"
        advice = "Compare both engines' settings at the handshake, and refuse a peer that differs."
        avoid = "Do not cut the transfer to the smaller side."
    elif derived_by_each:
        rule, cause = f"derived twice: {names[0]}", "two formulas"
        advice = "Derive it once, and pass it to planner and kernel."
        avoid = "Do not enlarge the buffer: the kernel checks for the exact size."
    else:
        rule = cause = "stale input"
        advice = "Compute the size again when the limit changes, or take it from the side that knows."
        avoid = "Do not clip the larger side."
    return Fault(rule, cause, words, advice, avoid)


def _transformed(side: View, candidate: Candidate) -> Iterator[Cause]:
    """Explain by a transformation of the formula; where inputs have to differ as well, that is two."""
    if evaluate(candidate.terms, side.merged) == side.other:
        return
    owned = candidate.formula is not None and matches_source(candidate.formula, side.plain.source)
    theirs = {
        formula.terms[side.pair.dim]
        for formula in known(side.pair.contract, side.pair.dim, side.merged)
        if owned and matches_source(formula, side.transformed.source)
    }
    for rule, cause, variants, advice, avoid, records in _transformations(candidate, side):
        fitting = [variant for variant in variants if side.differing(variant) == ()]
        if not fitting:
            continue
        computed = [variant for variant in fitting if variant.terms in theirs]
        variant = (computed or fitting)[0]
        fit = OWN_FORMULAS if computed else len(fitting) / len(variants)
        words = (
            f"{side.plain.source} has {format_terms(candidate.terms)} = {side.size}, {side.transformed.source} has "
            f"{format_terms(variant.terms)} = {side.other}: {variant.words}"
        )
        yield Cause(
            rule,
            cause,
            words,
            weigh(side, (cause,), candidate, fit, variant.terms, variant.uses),
            advice,
            avoid,
            candidate.tries,
            side.both(candidate.terms, variant.terms),
            () if variant.free is None else records,
        )


def _transformations(candidate: Candidate, side: View) -> Iterator[_Rule]:
    for rule in TRANSFORMATIONS:
        variants = list(rule.variants(candidate.terms, side.merged))
        yield rule.id, rule.cause, variants, rule.advice, rule.avoid, rule.records
    if candidate.formula is None:
        others = [Variant(other.terms, "it is another formula", uses=other.uses) for other in derived(side.merged)]
        others = [
            other for other in others if set(other.uses) - set(candidate.uses) and side.computed(candidate, other)
        ]
        yield "other formula", "two formulas", others, KEEP_ONE, "Do not adjust one formula until the numbers fit.", ()


def _own_formulas(pair: Pair) -> Iterator[Cause]:
    """Explain by the formulas that the two sides are known to compute; by two eras of one, if no version has both."""
    have, need = pair.sizes
    ours = _computed(pair, pair.provider, have)
    theirs = _computed(pair, pair.requirement, need)
    pairs = [(a, b) for a in ours for b in theirs if a.terms != b.terms and not _another_input(pair, a, b)]
    eras = [(a, b) for a, b in pairs if apart(a, b)]
    for a, b in eras or (pairs if pair.relation == EQUAL else []):
        rule, cause = ("two eras", "version skew") if eras else ("known formulas", "two formulas")
        words = (
            f"{pair.provider.source} has {format_terms(a.terms[pair.dim])} = {have} ({a.source}), "
            f"{pair.requirement.source} has {format_terms(b.terms[pair.dim])} = {need} ({b.source})"
        )
        advice = "Install both sides from one build." if eras else KEEP_ONE
        avoid = "Do not pin one side alone." if eras else "Do not adjust one formula until the numbers fit."
        weight = math.exp(log_prior(cause, pair.without)) * (1 if eras else KNOWN_FIT) / len(eras or pairs)
        sides = (
            Side(a.terms[pair.dim], _inputs(pair.provider, pair.requirement)),
            Side(b.terms[pair.dim], _inputs(pair.requirement, pair.provider)),
        )
        yield Cause(rule, cause, words, weight, advice, avoid, 1, sides)


def _computed(pair: Pair, claim: Claim, size: int) -> list[Formula]:
    """Return what a side is known to compute, if that gives its size."""
    other = pair.requirement if claim is pair.provider else pair.provider
    inputs = _inputs(claim, other)
    return [
        formula
        for formula in known(pair.contract, pair.dim, inputs)
        if matches_source(formula, claim.source) and evaluate(formula.terms[pair.dim], inputs) == size
    ]


def _another_input(pair: Pair, ours: Formula, theirs: Formula) -> bool:
    """Return whether an input of both differs: that alone may be the cause."""
    shared = {item.name for item in ours.inputs} & {item.name for item in theirs.inputs}
    mine, other = _inputs(pair.provider, pair.requirement), _inputs(pair.requirement, pair.provider)
    return any(mine.get(name) != other.get(name) for name in shared)


def _inputs(claim: Claim, other: Claim) -> Inputs:
    return claim.inputs or other.inputs


def _derived_twice(pair: Pair) -> Iterator[Cause]:
    """Explain by one fact that each side derives for itself and neither recorded: all that fit are rivals.

    Any of the facts may be the one: that more values of it fit makes it no likelier.
    """
    have, need = pair.sizes
    recorded = {**pair.provider.inputs, **pair.requirement.inputs}
    for formula in known(pair.contract, pair.dim, recorded):
        terms = formula.terms[pair.dim]
        free = [item for item in formula.inputs if item.domain and item.name not in recorded]
        size = math.prod(len(item.domain) for item in free)
        if not free or size > MAX_COMPLETIONS:
            continue
        found: dict[str, tuple[Inputs, int]] = {}
        for values in product(*(item.domain for item in free)):
            inputs: dict[str, Any] = dict(recorded)
            inputs.update((item.name, value) for item, value in zip(free, values, strict=True))
            if evaluate(terms, inputs) != have:
                continue
            for item in free:
                for value in item.domain:
                    if evaluate(terms, {**inputs, item.name: value}) == need:
                        found.setdefault(item.name, (inputs, value))
        for name, (facts, value) in found.items():
            words = (
                f"{name} would be {facts[name]} for {pair.provider.source} and {value} for {pair.requirement.source} "
                f"in {format_terms(terms)}"
            )
            weight = math.exp(log_prior("two formulas", pair.without)) / len(free)
            yield Cause(
                f"derived twice: {name}",
                "two formulas",
                words,
                weight,
                "Derive it once, and pass it to planner and kernel.",
                "Do not enlarge the buffer: the kernel checks for the exact size.",
                1,
                (Side(terms, facts), Side(terms, {**facts, name: value})),
                tuple(found),
            )


def weigh(
    side: View, causes: tuple[str, ...], candidate: Candidate, fit: float, terms: Terms, uses: tuple[str, ...] = ()
) -> float:
    """Return how much an explanation weighs that takes one transformation of each class in ``causes``."""
    used = {term.operand for term in terms} | {term.unit for term in terms} | {*candidate.uses, *uses}
    inputs = side.transformed.inputs
    unused = sum(isinstance(value, int) and name not in used for name, value in inputs.items())
    cost = UNUSED_COST * min(unused, MAX_UNUSED) + TRANSFORMATION_COST * (len(causes) - 1)
    prior = sum(log_prior(cause, side.pair.without) for cause in causes)
    return math.exp(prior + math.log(fit) - math.log(candidate.tries) - cost)
