"""What the API answers about contracts: claims, disagreements, and what explains them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ullage.segment.agreement import Claim, Disagreement
    from ullage_sidecar.diagnosis.joined import Contract
    from ullage_sidecar.rows import Rows

MAX_CLAIMS = 64
"""Groups of claims of a contract that are listed."""
MAX_NAMES = 16
"""Processes, and sources, that are named of a group of claims."""
MAX_RIVALS = 8
"""Causes of a disagreement that are listed, the likeliest first."""


class ClaimModel(BaseModel):
    """Claims of one role, shape and dtype: the first of them, and how many they are.

    Null in ``shape`` is not compared; ``inputs`` are those of the first. ``processes`` and ``sources``
    name at most ``MAX_NAMES`` each.
    """

    process: str
    source: str
    role: str
    shape: list[int | None]
    dtype: str
    inputs: dict[str, str | int | float | bool | None]
    count: int
    processes: list[str]
    sources: list[str]


class CauseModel(BaseModel):
    """One explanation of a disagreement; ``share`` is its weight among the rivals."""

    rule: str
    cause: str
    share: float
    text: str
    advice: str
    avoid: str


class DisagreementModel(BaseModel):
    """Two claims, or two groups of claims that state the same, that do not fit, and why.

    ``dimensions``: which; empty if it is their number, or the dtype. ``reports``: public reports of the like.
    ``rivals``: at most ``MAX_RIVALS``.
    """

    provider: ClaimModel
    requirement: ClaimModel
    dimensions: list[int]
    finding: str
    sufficient: bool
    discriminator: str
    reports: list[str]
    rivals: list[CauseModel]


class CountsModel(BaseModel):
    """What a process has checked of a contract."""

    process: str
    checks: int
    violations: int


class ContractModel(BaseModel):
    """One size that several components of an engine must agree on.

    ``claims`` has one entry for claims of the same role, shape and dtype. The counts ``more_`` are of the entries that
    are left out of a list because it is long.
    """

    engine_id: str
    contract: str
    dims: list[str]
    unit: str
    relations: list[str]
    claims: list[ClaimModel]
    more_claims: int
    disagreements: list[DisagreementModel]
    more_disagreements: int
    violations: list[DisagreementModel]
    counts: list[CountsModel]


def contract_model(engine_id: str, contract: Contract, explained: int, rows: Rows) -> ContractModel:
    """Return a contract as a model, its first disagreements and last violations explained.

    Args:
        engine_id: The engine whose contract it is.
        contract: The contract.
        explained: How many disagreements, and how many violations, at most.
        rows: Counts those that cannot be explained, and are left out.
    """
    found = contract.disagreements[:explained]
    return ContractModel(
        engine_id=engine_id,
        contract=contract.name,
        dims=list(contract.dims),
        unit=contract.unit,
        relations=list(contract.relations),
        claims=[_claim_model(group) for group in contract.groups[:MAX_CLAIMS]],
        more_claims=len(contract.groups[MAX_CLAIMS:]),
        disagreements=_disagreement_models(engine_id, contract, found, rows),
        more_disagreements=len(contract.disagreements) - len(found),
        violations=_disagreement_models(engine_id, contract, contract.violations[:explained], rows),
        counts=[
            CountsModel(process=process, checks=checks, violations=violations)
            for process, (checks, violations, _) in sorted(contract.counts.items())
        ],
    )


def _disagreement_models(
    engine_id: str, contract: Contract, found: Iterable[Disagreement], rows: Rows
) -> list[DisagreementModel]:
    return rows.each(
        "finding",
        found,
        lambda one: _disagreement_model(contract, one),
        key=lambda one: (engine_id, contract.name, one.provider.source, one.requirement.source),
    )


def _disagreement_model(contract: Contract, found: Disagreement) -> DisagreementModel:
    finding = contract.explained(found)
    return DisagreementModel(
        provider=_claim_model(found.providers or (found.provider,)),
        requirement=_claim_model(found.requirements or (found.requirement,)),
        dimensions=list(found.dims),
        finding=finding.text,
        sufficient=finding.sufficient,
        discriminator=finding.discriminator,
        reports=list(finding.reports),
        rivals=[
            CauseModel(
                rule=cause.rule,
                cause=cause.cause,
                share=round(share, 3),
                text=cause.text,
                advice=cause.advice,
                avoid=cause.avoid,
            )
            for cause, share in list(zip(finding.rivals, finding.shares, strict=True))[:MAX_RIVALS]
        ],
    )


def _claim_model(group: tuple[Claim, ...]) -> ClaimModel:
    first = group[0]
    return ClaimModel(
        process=first.process,
        source=first.source,
        role=first.role,
        shape=list(first.shape),
        dtype=first.dtype,
        inputs=first.inputs,
        count=len(group),
        processes=list(dict.fromkeys(claim.process for claim in group))[:MAX_NAMES],
        sources=list(dict.fromkeys(claim.source for claim in group))[:MAX_NAMES],
    )
