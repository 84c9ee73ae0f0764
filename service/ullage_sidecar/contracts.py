"""Contracts as the whole pod sees them: the claims of one engine, joined across its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ullage.diagnosis import claims
from ullage.diagnosis.claims import Disagreement, disagreements
from ullage.diagnosis.explain import Finding, explain
from ullage.segment.layout import Relation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ullage.segment.snapshot import Claim as Recorded
    from ullage_sidecar.state import Life

_SYMBOLS = {Relation.EQUAL: claims.EQUAL, Relation.AT_LEAST: claims.AT_LEAST}


@dataclass(frozen=True)
class Contract:
    """One contract of one engine.

    Attributes:
        engine: The engine's id.
        claims: Those of all its processes.
        counts: Checks and violations, by process.
    """

    engine: str
    name: str
    dims: tuple[str, ...]
    unit: str
    relations: tuple[str, ...]
    claims: tuple[claims.Claim, ...]
    disagreements: tuple[Disagreement, ...]
    counts: dict[str, tuple[int, int, int]]

    @property
    def processes(self) -> tuple[str, ...]:
        """The processes that have to do with it."""
        return tuple(sorted(self.counts.keys() | {claim.process for claim in self.claims}))

    def disagreements_of(self, process: str) -> int:
        """How many disagreements count as those of ``process``: the one that requires, else provides, the less."""
        return sum(found.requirement.process == process for found in self.disagreements)

    def findings(self) -> list[tuple[Disagreement, Finding]]:
        """Explain each disagreement."""
        return [(found, explain(self.name, found.provider, found.requirement)) for found in self.disagreements]


def join(lives: Iterable[Life]) -> tuple[Contract, ...]:
    """Join the claims of the processes that are shown, by engine and contract."""
    recorded: dict[tuple[str, str], list[tuple[str, Recorded]]] = {}
    for life in lives:
        for claim in life.snapshot.claims:
            recorded.setdefault((life.snapshot.engine_id, claim.contract), []).append((life.process, claim))
    return tuple(_contract(engine, name, said) for (engine, name), said in sorted(recorded.items()))


def _contract(engine: str, name: str, said: list[tuple[str, Recorded]]) -> Contract:
    first = said[0][1]
    relations = tuple(_SYMBOLS.get(relation, claims.EQUAL) for relation in first.relations)
    joined = tuple(_claim(process, claim) for process, claim in said if not claim.tally)
    return Contract(
        engine=engine,
        name=name,
        dims=first.dims,
        unit=first.unit,
        relations=relations,
        claims=joined,
        disagreements=tuple(disagreements(joined, relations)),
        counts={
            process: (claim.checks, claim.violations, claim.violation_first_ns)
            for process, claim in said
            if claim.tally
        },
    )


def _claim(process: str, claim: Recorded) -> claims.Claim:
    return claims.Claim(
        source=claim.source,
        role=claim.role.name.lower(),
        shape=claim.shape,
        inputs=claim.inputs,
        dtype=claim.dtype,
        process=process,
    )
