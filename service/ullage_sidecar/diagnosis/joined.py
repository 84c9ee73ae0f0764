"""Contracts as several processes see them: their recorded claims, joined by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ullage.segment.agreement import MAX_GROUPS, Claim, Disagreement, differing, disagreements, groups
from ullage_sidecar.diagnosis.explain import explain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ullage.segment.snapshot import Claim as Recorded
    from ullage_sidecar.diagnosis.finding import Finding

MAX_EXPLAINED = 16
"""Disagreements of a contract that are explained; the others are counted."""


@dataclass(frozen=True)
class Contract:
    """One size that several components must agree on.

    Attributes:
        claims: Those of all processes.
        disagreements: Between the first ``MAX_GROUPS`` groups of equal claims.
        violations: What two sides had when it was violated in a process, the last that was recorded.
        counts: Checks, violations and the date of the first violation (ns), by process.
    """

    name: str
    dims: tuple[str, ...]
    unit: str
    relations: tuple[str, ...]
    claims: tuple[Claim, ...]
    disagreements: tuple[Disagreement, ...]
    violations: tuple[Disagreement, ...]
    counts: dict[str, tuple[int, int, int]]

    @property
    def processes(self) -> tuple[str, ...]:
        """The processes that have to do with it."""
        return tuple(sorted(self.counts.keys() | {claim.process for claim in self.claims}))

    @cached_property
    def groups(self) -> tuple[tuple[Claim, ...], ...]:
        """The claims, those that are equal in one group."""
        return tuple(groups(self.claims))

    @property
    def uncompared(self) -> int:
        """Groups of claims that are too many to be compared."""
        return max(0, len(self.groups) - MAX_GROUPS)

    def disagreements_of(self, process: str) -> list[Disagreement]:
        """Return those that count as ``process``'s: a need of it is not met."""
        return [found for found in self.disagreements if found.counts_for(process)]

    def findings(self) -> list[tuple[Disagreement, Finding]]:
        """Explain the first ``MAX_EXPLAINED`` disagreements."""
        return [(found, self.explained(found)) for found in self.disagreements[:MAX_EXPLAINED]]

    def explained(self, found: Disagreement, *, without: str = "") -> Finding:
        """Explain one of them; ``without`` as ``explain`` has it."""
        return explain(self.name, found.provider, found.requirement, relations=self.relations, without=without)


def joined(recorded: Iterable[tuple[str, Iterable[Recorded]]]) -> tuple[Contract, ...]:
    """Join recorded claims, given as (process, claims), by contract."""
    return tuple(contract_of(name, found) for name, found in by_contract(recorded).items())


def summaries(recorded: Iterable[Recorded]) -> dict[str, tuple[str, ...]]:
    """Explain what does not fit in the recorded claims of one process: a sentence each, by contract.

    Violations come first; of the disagreements of a contract, the first ``MAX_EXPLAINED`` are explained.
    """
    return {
        contract.name: tuple(contract.explained(found).summary for found in (*contract.violations, *disagreeing))
        for contract in joined([("", recorded)])
        if (disagreeing := contract.disagreements[:MAX_EXPLAINED]) or contract.violations
    }


def by_contract(recorded: Iterable[tuple[str, Iterable[Recorded]]]) -> dict[str, list[tuple[str, Recorded]]]:
    """Sort recorded claims, given as (process, claims), by contract: (process, claim) of each."""
    by_name: dict[str, list[tuple[str, Recorded]]] = {}
    for process, claims in recorded:
        for claim in claims:
            by_name.setdefault(claim.contract, []).append((process, claim))
    return dict(sorted(by_name.items()))


def contract_of(name: str, recorded: list[tuple[str, Recorded]]) -> Contract:
    """Join the claims of one contract: (process, claim), at least one."""
    first = recorded[0][1]
    relations = first.relation_signs
    joint = tuple(claim.stated(process) for process, claim in recorded if not claim.tally and not claim.witness)
    seen = {(process, claim.witness): claim.stated(process) for process, claim in recorded if claim.witness}
    return Contract(
        name=name,
        dims=first.dims,
        unit=first.unit,
        relations=relations,
        claims=joint,
        disagreements=tuple(disagreements(joint, relations)),
        violations=tuple(
            Disagreement(one, other, differing(one.shape, other.shape, relations) or ())
            for (process, side), one in seen.items()
            if side == "provided" and (other := seen.get((process, "required")))
        ),
        counts=_counts(recorded),
    )


def _counts(recorded: list[tuple[str, Recorded]]) -> dict[str, tuple[int, int, int]]:
    """Add up what the processes counted: one may have several contracts of a name."""
    counts: dict[str, tuple[int, int, int]] = {}
    for process, claim in recorded:
        if claim.tally:
            checks, violations, first_ns = counts.get(process, (0, 0, 0))
            dates = [ns for ns in (first_ns, claim.violation_first_ns) if ns]
            counts[process] = (checks + claim.checks, violations + claim.violations, min(dates, default=0))
    return counts
