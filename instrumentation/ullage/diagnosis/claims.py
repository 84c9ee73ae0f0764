"""Which claims on one size satisfy each other, dimension by dimension."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, combinations, product, repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Shape = tuple[int | None, ...]
PROVIDES, REQUIRES, IS = "provides", "requires", "is"
ROLES = (PROVIDES, REQUIRES, IS)
EQUAL, AT_LEAST = "==", ">="
RELATIONS = (EQUAL, AT_LEAST)


@dataclass(frozen=True)
class Claim:
    """What one source says of a size.

    Attributes:
        source: Who says it.
        role: ``provides`` (it allocated so much), ``requires`` (it will use so much) or ``is`` (both).
        shape: Sizes, one for each dimension; None is not compared.
        inputs: What the size was computed from: JSON scalars by name.
        dtype: The element type, if that is part of the claim.
        process: Where it was said, if claims of several processes are joined.
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
    """

    provider: Claim
    requirement: Claim
    dims: tuple[int, ...]

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


def disagreements(claims: Iterable[Claim], relations: Sequence[str]) -> list[Disagreement]:
    """Compare all pairs of claims, and return those that disagree in the order of the claims."""
    claims = list(claims)
    # Claims that say the same agree with each other, and all with the same others: hundreds may say the same.
    alike: dict[tuple[str, Shape, str], list[int]] = {}
    for position, claim in enumerate(claims):
        alike.setdefault((claim.role, claim.shape, claim.dtype), []).append(position)
    pairs: list[tuple[int, int]] = []
    for one, other in combinations(alike.values(), 2):
        if disagreement(claims[one[0]], claims[other[0]], relations) is not None:
            pairs += [(min(pair), max(pair)) for pair in product(one, other)]
    found = (disagreement(claims[first], claims[second], relations) for first, second in sorted(pairs))
    return [one for one in found if one is not None]


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
