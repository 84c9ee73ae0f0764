"""Which claims on one size satisfy each other, dimension by dimension. Pure: hook and sidecar compare alike."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain, combinations, repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Shape = tuple[int | None, ...]
PROVIDES, REQUIRES, IS = "provides", "requires", "is"
ROLES = (PROVIDES, REQUIRES, IS)
EQUAL, AT_LEAST = "==", ">="
RELATIONS = (EQUAL, AT_LEAST)
MAX_GROUPS = 64
"""Groups of a contract that are compared."""


@dataclass(frozen=True)
class Claim:
    """What one source says of a size.

    Attributes:
        source: The component that states the size.
        role: ``provides`` (it allocated so much), ``requires`` (it will use so much) or ``is`` (both).
        shape: Sizes, one for each dimension; None is not compared.
        inputs: What the size was computed from: JSON scalars by name.
        dtype: The element type, if that is part of the claim.
        process: The process that states it, if claims of several processes are joined.
    """

    source: str
    role: str
    shape: Shape
    inputs: dict[str, Any] = field(default_factory=dict, hash=False)
    dtype: str = ""
    process: str = ""


@dataclass(frozen=True)
class Disagreement:
    """A provider that does not satisfy a requirement.

    Attributes:
        dims: Which dimensions differ; empty if it is their number, or the dtype.
        providers: The claims that state the same as ``provider``, itself first; empty where it was compared alone.
        requirements: Likewise for ``requirement``.
    """

    provider: Claim
    requirement: Claim
    dims: tuple[int, ...]
    providers: tuple[Claim, ...] = ()
    requirements: tuple[Claim, ...] = ()

    def counts_for(self, process: str) -> bool:
        """Tell whether a claim of ``process`` is one that is not satisfied."""
        return any(claim.process == process for claim in self.requirements or (self.requirement,))

    @property
    def numbers(self) -> tuple[int, int, int]:
        """The first pair of sizes that differ (provided, required) and their dimension, as the event has it.

        Where the number of dimensions differs, the numbers of elements that are stated, and -1.
        """
        if not self.dims:
            return _elements(self.provider.shape), _elements(self.requirement.shape), -1
        dim = self.dims[0]
        return self.provider.shape[dim] or 0, self.requirement.shape[dim] or 0, dim


def differing(provided: Shape, required: Shape, relations: Sequence[str]) -> tuple[int, ...] | None:
    """Return the dimensions in which ``provided`` does not satisfy ``required``; None if it satisfies it.

    An empty tuple means that they have another number of dimensions.
    """
    if len(provided) != len(required):
        return ()
    # A relation that is not stated is the strict one.
    stated = chain(relations, repeat(EQUAL))
    pairs = zip(provided, required, stated, strict=False)
    wrong = tuple(dim for dim, (have, need, relation) in enumerate(pairs) if not _satisfies(have, need, relation))
    return wrong or None


def groups(claims: Iterable[Claim]) -> list[tuple[Claim, ...]]:
    """Group claims of the same role, shape and dtype: they agree, and disagree with the same others.

    Groups are in the order of their first claims.
    """
    alike: dict[tuple[str, Shape, str], list[Claim]] = {}
    for claim in claims:
        alike.setdefault((claim.role, claim.shape, claim.dtype), []).append(claim)
    return [tuple(group) for group in alike.values()]


def disagreements(claims: Iterable[Claim], relations: Sequence[str]) -> list[Disagreement]:
    """Compare the groups of ``claims`` in pairs; return one disagreement for each pair that does not fit.

    Of more than ``MAX_GROUPS`` groups the first are compared. A disagreement holds the first claim of each group.
    """
    found = []
    for one, other in combinations(groups(claims)[:MAX_GROUPS], 2):
        pair = disagreement(one[0], other[0], relations)
        if pair is not None:
            sides = (one, other) if pair.provider is one[0] else (other, one)
            found.append(replace(pair, providers=sides[0], requirements=sides[1]))
    return found


def disagreement(first: Claim, second: Claim, relations: Sequence[str]) -> Disagreement | None:
    """Compare two claims; either may be the provider. They disagree at most once."""
    for provider, requirement in ((first, second), (second, first)):
        if provider.role == REQUIRES or requirement.role == PROVIDES:
            continue
        dims = differing(provider.shape, requirement.shape, relations)
        if dims is None and provider.dtype and requirement.dtype and provider.dtype != requirement.dtype:
            dims = ()
        if dims is not None:
            return Disagreement(provider, requirement, dims)
    return None


def _satisfies(have: int | None, need: int | None, relation: str) -> bool:
    if have is None or need is None:
        return True
    return have == need if relation == EQUAL else have >= need


def _elements(shape: Shape) -> int:
    elements = 1
    for size in shape:
        elements *= 1 if size is None else size
    return elements
