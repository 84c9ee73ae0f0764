"""Explains why two sizes differ: rival causes with their arithmetic, and what would tell them apart.

A cause is kept only if it reproduces both numbers from what the two sides recorded. Its weight is the prior of its
class, times the share of the values it was free to choose that fit, times what it cost to find the formula, less
what it leaves unused of the recorded inputs. *Unknown* always competes. Within a factor of two is a tie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ullage.diagnosis.bases import Base, bases, derived
from ullage.diagnosis.edits import EDITS, Variant
from ullage.diagnosis.priors import log_prior
from ullage.diagnosis.structure import structural
from ullage.formulas import Term, Terms, evaluate, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ullage.diagnosis.claims import Claim

    Inputs = Mapping[str, Any]
    _Rule = tuple[str, str, list[Variant], str, str, tuple[str, ...]]

TIE = 2.0
UNUSED_COST = 0.7
MAX_UNUSED = 3
UNKNOWN_FIT = 1 / 20
NEARBY = 64


@dataclass(frozen=True)
class Side:
    """One side of a cause: its formula (empty where the cause has none) and the inputs it was evaluated with."""

    terms: Terms
    inputs: Inputs


@dataclass(frozen=True)
class Cause:
    """One explanation.

    Attributes:
        rule: Which rule found it.
        cause: Its class among the priors.
        text: The arithmetic, in words.
        weight: Not normalised; see ``Finding.shares``.
        advice: What to do; ``avoid``: what not to do.
        missing: Inputs that nobody recorded and that would decide.
    """

    rule: str
    cause: str
    text: str
    weight: float
    advice: str = ""
    avoid: str = ""
    tries: int = 1
    sides: tuple[Side, Side] | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """The rivals, the likeliest first (``unknown`` among them), and how they can be told apart.

    Attributes:
        sufficient: Whether enough was recorded to judge.
        discriminator: What would tell tied rivals apart; empty without a tie.
    """

    rivals: tuple[Cause, ...]
    sufficient: bool
    discriminator: str = ""

    @property
    def shares(self) -> tuple[float, ...]:
        """The weight of each rival as a share of all."""
        total = sum(cause.weight for cause in self.rivals)
        return tuple(cause.weight / total for cause in self.rivals)

    @property
    def tied(self) -> tuple[Cause, ...]:
        """The rivals within a factor of two of the likeliest; one of them without a tie."""
        return tuple(cause for cause in self.rivals if cause.weight * TIE >= self.rivals[0].weight)

    @property
    def causes(self) -> tuple[str, ...]:
        """The likeliest causes in words, without *unknown*."""
        return tuple(cause.text for cause in self.rivals if cause.rule != "unknown")

    @property
    def text(self) -> str:
        """The finding in a few sentences."""
        if not self.sufficient:
            possible = f" Possible: {'; or '.join(self.causes[:3])}." if self.causes else ""
            return (
                "Too little is recorded to tell the cause: neither side says what it computed its size from "
                f"(inputs of a claim).{possible}"
            )
        tied = [cause for cause in self.tied if cause.rule != "unknown"]
        if not tied or self.rivals[0].rule == "unknown":
            return "No known cause reproduces both numbers from what is recorded."
        if len(tied) > 1:
            return f"A tie: {'; or '.join(cause.text for cause in tied)}. {self.discriminator}".rstrip()
        first = tied[0]
        return f"Likeliest: {first.text}. {first.advice} {first.avoid}".rstrip()


def explain(contract: str, provider: Claim, requirement: Claim, *, without: str = "") -> Finding:
    """Explain why ``provider`` does not satisfy ``requirement``.

    Args:
        contract: The contract's name; formulas of this quantity are tried first.
        provider: Who has too little, or something else.
        requirement: Who needs it.
        without: A class of cause to take one report away from, when a report is judged by the others.
    """
    found = structural(provider, requirement, without)
    if found is None:
        dim = next(i for i, (a, b) in enumerate(zip(provider.shape, requirement.shape, strict=True)) if a != b)
        causes = list(_numeric(contract, provider, requirement, dim, without))
        causes += _circumstances(provider, requirement, dim, without)
    else:
        causes = [Cause(*fields) for fields in found]
    sufficient = found is not None or bool(provider.inputs or requirement.inputs)
    best: dict[str, Cause] = {}
    for cause in causes:
        if cause.rule not in best or cause.weight > best[cause.rule].weight:
            best[cause.rule] = cause
    # Unknown, too, takes one side's number as explained: it pays for the same formula.
    weight = math.exp(log_prior("unknown", without)) * UNKNOWN_FIT / min((c.tries for c in causes), default=1)
    rivals = sorted((*best.values(), Cause("unknown", "unknown", "something else", weight)), key=lambda c: -c.weight)
    finding = Finding(tuple(rivals), sufficient)
    if len(finding.tied) > 1:
        return Finding(finding.rivals, sufficient, _discriminator(finding.tied))
    return finding


def _numeric(contract: str, provider: Claim, requirement: Claim, dim: int, without: str) -> Iterator[Cause]:
    """Try each formula for one side, and each edit of it for the other."""
    sides = ((provider, requirement), (requirement, provider))
    for plain, edited in sides:
        have, need = plain.shape[dim], edited.shape[dim]
        assert have is not None
        assert need is not None
        known = plain.inputs or edited.inputs
        merged = {**known, **edited.inputs}
        for base in bases(contract, known, have):
            stale = [name for name in base.uses if name in edited.inputs and edited.inputs[name] != known[name]]
            if stale and evaluate(base.terms, merged) == need:
                values = ", ".join(
                    f"{name} is {known[name]} for {plain.source}, {merged[name]} for {edited.source}" for name in stale
                )
                yield Cause(
                    "stale input",
                    "stale input",
                    f"both have {say(base.terms)}, but {values}",
                    _weight("stale input", base, 1.0, edited, base.terms, without),
                    "Compute the size again when the limit changes, or take it from the side that knows.",
                    "Do not clip the larger side.",
                    base.tries,
                    _pair(Side(base.terms, known), Side(base.terms, merged), swapped=plain is not provider),
                )
            unedited = evaluate(base.terms, merged)
            for rule, cause, variants, advice, avoid, records in _edits(base, known, merged):
                fitting = [variant for variant in variants if evaluate(variant.terms, merged) == need]
                if fitting and unedited != need:
                    fit = len(fitting) / len(variants)
                    variant = fitting[0]
                    weight = _weight(cause, base, fit, edited, variant.terms, without)
                    words = (
                        f"{plain.source} has {say(base.terms)} = {have}, {edited.source} has "
                        f"{say(variant.terms)} = {need}: {variant.words}"
                    )
                    missing = () if variant.free is None else records
                    pair = _pair(Side(base.terms, known), Side(variant.terms, merged), swapped=plain is not provider)
                    yield Cause(rule, cause, words, weight, advice, avoid, base.tries, pair, missing)


def _edits(base: Base, known: Inputs, merged: Inputs) -> Iterator[_Rule]:
    for edit in EDITS:
        variants = list(edit.variants(base.terms, merged))
        yield edit.id, edit.cause, variants, edit.advice, edit.avoid, edit.records
    foreign = [
        Variant((Term("start", name, "base"), *base.terms[1:]), f"it is computed from {name}")
        for name, value in merged.items()
        if isinstance(value, int) and name not in base.uses and name in known
    ]
    advice = "Read the input from one place, for both sides."
    yield "foreign input", "foreign input", foreign, advice, "Do not copy the value: it goes stale.", ()
    if base.plain:
        others = [Variant(other.terms, "it is another formula", uses=other.uses) for other in derived(merged)]
        others = [other for other in others if set(other.uses) - set(base.uses)]
        advice = "Keep one of the formulas, and have the other side ask for its result."
        yield "other formula", "two formulas", others, advice, "Do not adjust one formula until the numbers fit.", ()


def _pair(plain: Side, edited: Side, *, swapped: bool) -> tuple[Side, Side]:
    return (edited, plain) if swapped else (plain, edited)


def _circumstances(provider: Claim, requirement: Claim, dim: int, without: str) -> list[Cause]:
    """Causes that need no formula: another version on each side, or a need that no formula foresaw."""
    found = []
    versions = [
        name
        for name in provider.inputs.keys() & requirement.inputs.keys()
        if name.endswith("version") and provider.inputs[name] != requirement.inputs[name]
    ]
    for name in versions:
        ours, theirs = provider.inputs[name], requirement.inputs[name]
        words = f"{name} is {ours} for {provider.source}, {theirs} for {requirement.source}"
        weight = math.exp(log_prior("version skew", without))
        advice = "Install both sides from one build."
        found.append(Cause("version skew", "version skew", words, weight, advice, "Do not pin one side alone."))
    have, need = provider.shape[dim] or 0, requirement.shape[dim] or 0
    if need > have and requirement.role == "requires" and not requirement.inputs:
        words = f"{requirement.source} needs {need}, more than the worst case that {provider.source} assumed ({have})"
        weight = math.exp(log_prior("static assumption", without)) / 8
        advice = "Compute the capacity from the worst case, with a margin; guard the write."
        found.append(
            Cause("static assumption", "static assumption", words, weight, advice, "Do not retry the request.")
        )
    return found


def _weight(cause: str, base: Base, fit: float, edited: Claim, terms: Terms, without: str) -> float:
    used = {term.operand for term in terms} | {term.unit for term in terms} | set(base.uses)
    unused = sum(isinstance(value, int) and name not in used for name, value in edited.inputs.items())
    cost = UNUSED_COST * min(unused, MAX_UNUSED)
    return math.exp(log_prior(cause, without) + math.log(fit) - math.log(base.tries) - cost)


def _discriminator(tied: tuple[Cause, ...]) -> str:
    """Name the configuration near the present one in which the rivals predict different things."""
    judged = [cause for cause in tied if cause.sides is not None]
    if len(judged) < 2:
        return "Record the inputs of both sides to tell them apart."
    first = judged[0].sides
    assert first is not None
    start, step = first[0].terms[0].operand, 1
    divisor = next((t.operand for t in first[0].terms if t.operation in ("ceil_div", "floor_div")), 1)
    step = first[0].inputs.get(divisor, 1) if isinstance(divisor, str) else divisor
    if not isinstance(start, str) or not isinstance(step, int):
        return "Record the inputs of both sides to tell them apart."
    present = first[0].inputs[start]
    for nearby in range(1, NEARBY):
        value = present + nearby * step
        predicted = [_predict(cause, start, value) for cause in judged]
        if len({pair[0] == pair[1] for pair in predicted}) > 1:
            each = "; ".join(f"with {c.rule}, {a} and {b}" for c, (a, b) in zip(judged, predicted, strict=True))
            return f"{start} = {value} would tell them apart: {each}."
    missing = sorted({name for cause in judged for name in cause.missing})
    return f"Record on both sides: {', '.join(missing)}." if missing else "No nearby configuration tells them apart."


def _predict(cause: Cause, name: str, value: int) -> tuple[int | None, int | None]:
    assert cause.sides is not None
    ours, theirs = (evaluate(side.terms, {**side.inputs, name: value}) for side in cause.sides)
    return ours, theirs
