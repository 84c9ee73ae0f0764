"""Causes that are seen from the form of two shapes: their number of dimensions, or the dtype."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ullage_sidecar.diagnosis.priors import log_prior

if TYPE_CHECKING:
    from ullage.segment.agreement import Claim

Fields = tuple[str, str, str, float, str, str]
"""Rule, class, words, weight, advice, what to avoid."""

FIELDS_DOMAIN = 8


def structural(provider: Claim, requirement: Claim, without: str) -> list[Fields] | None:
    """Return what the form of the shapes says; None if they differ in numbers only."""
    if len(provider.shape) != len(requirement.shape):
        return [*_connector(provider, requirement, without), *_dimensions(provider, requirement, without)]
    if all(a == b or a is None or b is None for a, b in zip(provider.shape, requirement.shape, strict=True)):
        words = f"{provider.source} has {provider.dtype}, {requirement.source} has {requirement.dtype}"
        weight = math.exp(log_prior("dimensions or dtype", without))
        advice = "Allocate with the dtype that the kernel reads."
        return [("dtype", "dimensions or dtype", words, weight, advice, "Do not reinterpret the bytes.")]
    return None


def _connector(provider: Claim, requirement: Claim, without: str) -> list[Fields]:
    """A KV connector's fields make a second dimension that the other side does not have."""
    flat, wide = sorted((provider, requirement), key=lambda claim: len(claim.shape))
    if (len(flat.shape), len(wide.shape)) != (1, 2):
        return []
    numbers, rows, width = flat.shape[0], wide.shape[0], wide.shape[1]
    inputs = {**flat.inputs, **wide.inputs}
    fields = inputs.get("fields_per_seq", 1)
    if None in (numbers, rows, width) or not _is_count(fields) or rows is None or width is None:
        return []
    extra = width - fields
    if numbers != rows * fields or extra <= 0:
        return []
    recorded = {name: value for name, value in inputs.items() if name.startswith("connector_fields.")}
    if recorded and (not all(map(_is_count, recorded.values())) or sum(recorded.values()) != extra):
        return []
    named = ", ".join(name.partition(".")[2] for name in recorded)
    words = (
        f"{flat.source} does not count the connector's fields: {wide.source} has {fields} + {extra} = {width} for each "
        f"sequence{f' ({named})' if named else f', a connector of {extra} field{chr(115) * (extra > 1)}'}"
    )
    weight = math.exp(log_prior("connector fields", without)) * (1 if recorded else 1 / FIELDS_DOMAIN)
    advice = "Compute the shape in one place (ullage.SchedulerMetadata) and give it the connector's fields."
    return [("connector fields", "connector fields", words, weight, advice, "Do not flatten the wider one.")]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _dimensions(provider: Claim, requirement: Claim, without: str) -> list[Fields]:
    """The same elements in another form, or another form altogether."""
    same = math.prod(n or 1 for n in provider.shape) == math.prod(n or 1 for n in requirement.shape)
    words = (
        f"{provider.source} has {len(provider.shape)} dimension(s), {requirement.source} has {len(requirement.shape)}"
        f"{': the same elements in another form' if same else ''}"
    )
    weight = math.exp(log_prior("dimensions or dtype", without)) * (1 if same else 1 / 20)
    advice = "Reshape where the tensor is made, not where it is used."
    return [("dimensions", "dimensions or dtype", words, weight, advice, "Do not squeeze whatever comes.")]
