"""Two sizes that do not fit, and what is said of them."""

from __future__ import annotations

from ullage.segment.agreement import Claim
from ullage_sidecar.diagnosis.explain import explain


def judge(
    provided,
    required,
    ours=None,
    theirs=None,
    *,
    role="is",
    contract="size",
    sources=("provider", "requirement"),
    **options,
):
    """Explain a provider's size and inputs against a requirement's."""
    shapes = [(size,) if isinstance(size, int) else size for size in (provided, required)]
    provider = Claim(sources[0], "is", shapes[0], ours or {})
    requirement = Claim(sources[1], role, shapes[1], theirs or {})
    return explain(contract, provider, requirement, **options)


def rules(finding):
    """The rules of the rivals, the likeliest first."""
    return [cause.rule for cause in finding.rivals]


def table(max_model_len):
    """Inputs of a table in blocks of 64 tokens."""
    return {"max_model_len": max_model_len, "block_size": 64}
