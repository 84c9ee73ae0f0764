"""The result of a diagnosis: rival causes, the likeliest first, and what would tell them apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ullage_sidecar.formulas import evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ullage_sidecar.formulas import Terms

    Inputs = Mapping[str, Any]

TIE = 2.0
NEARBY = 64
UNKNOWN = "unknown"
NAMED = 3
"""Reports that a text names."""
MAX_TEXT = 4_000
MAX_CAUSE = 1_000
"""Characters of the text of a finding, and of the text of one cause."""


@dataclass(frozen=True)
class Side:
    """One side of a cause: its formula (empty where the cause has none) and the inputs it was evaluated with."""

    terms: Terms
    inputs: Inputs


@dataclass(frozen=True)
class Cause:
    """One explanation.

    Attributes:
        rule: Which rule found it; two, joined by *and*, if it takes two transformations.
        cause: Its class among the priors; likewise.
        text: The arithmetic, in words.
        weight: Not normalised; see ``Finding.shares``.
        advice: What to do; ``avoid``: what not to do.
        missing: Inputs that neither side recorded and that would decide.
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
        reports: Public reports of the likeliest causes in the same place; looked up afterwards.
    """

    rivals: tuple[Cause, ...]
    sufficient: bool
    discriminator: str = ""
    reports: tuple[str, ...] = ()

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
        return tuple(cause.text for cause in self.rivals if cause.rule != UNKNOWN)

    @property
    def summary(self) -> str:
        """The first sentence of ``text``, of at most ``MAX_TEXT`` characters."""
        return shortened(self._summary(), MAX_TEXT)

    @property
    def text(self) -> str:
        """The finding in a few sentences, of at most ``MAX_TEXT`` characters."""
        return shortened(f"{self._summary()} {self._more()}".rstrip(), MAX_TEXT)

    @property
    def _named(self) -> list[Cause]:
        """The likeliest known causes: several in a tie, none if *unknown* is likelier."""
        return [] if self.rivals[0].rule == UNKNOWN else [cause for cause in self.tied if cause.rule != UNKNOWN]

    def _summary(self) -> str:
        if not self.sufficient:
            return (
                "Too little is recorded to tell the cause: neither side says what it computed its size from "
                "(inputs of a claim)."
            )
        named = self._named
        if not named:
            return "No known cause reproduces both numbers from what is recorded."
        causes = "; or ".join(cause.text for cause in named)
        return f"A tie: {causes}." if len(named) > 1 else f"Likeliest: {causes}."

    def _more(self) -> str:
        """What follows the summary: how to tell a tie apart or what to do, and public reports."""
        if not self.sufficient:
            return f"Possible: {'; or '.join(self.causes[:3])}." if self.causes else ""
        named = self._named
        if not named:
            return ""
        advice = self.discriminator if len(named) > 1 else f"{named[0].advice} {named[0].avoid}"
        before = f"Reported before: {', '.join(self.reports[:NAMED])}." if self.reports else ""
        return f"{advice.rstrip()} {before}".strip()


def shortened(text: str, length: int) -> str:
    """Return ``text``, cut to ``length`` characters if it is longer."""
    return text if len(text) <= length else f"{text[: length - 4]} ..."


def discriminator(tied: tuple[Cause, ...]) -> str:
    """Name the configuration near the present one in which the rivals predict different things."""
    judged = [cause for cause in tied if cause.sides is not None]
    missing = sorted({name for cause in tied for name in cause.missing})
    otherwise = f"Record on both sides: {', '.join(missing)}." if missing else ""
    if len(judged) < 2:
        return otherwise or "Record the inputs of both sides to tell them apart."
    first = judged[0].sides
    assert first is not None
    start = first[0].terms[0].operand
    divisor = next((t.operand for t in first[0].terms if t.operation in ("ceil_div", "floor_div")), 1)
    step = first[0].inputs.get(divisor, 1) if isinstance(divisor, str) else divisor
    present = first[0].inputs.get(start) if isinstance(start, str) else None
    if not isinstance(start, str) or not isinstance(step, int) or not isinstance(present, int):
        return otherwise or "Record the inputs of both sides to tell them apart."
    for nearby in range(1, NEARBY):
        value = present + nearby * step
        predicted = [_predict(cause, start, value) for cause in judged]
        if len({pair[0] == pair[1] for pair in predicted}) > 1:
            each = "; ".join(f"with {c.rule}, {a} and {b}" for c, (a, b) in zip(judged, predicted, strict=True))
            return f"{start} = {value} would tell them apart: {each}."
    return otherwise or "No nearby configuration tells them apart."


def _predict(cause: Cause, name: str, value: int) -> tuple[int | None, int | None]:
    assert cause.sides is not None
    ours, theirs = (evaluate(side.terms, {**side.inputs, name: value}) for side in cause.sides)
    return ours, theirs
