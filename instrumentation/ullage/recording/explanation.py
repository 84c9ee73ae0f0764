"""Explanations of sizes that differ, from the packages that offer one: the entry-point group ``ullage.explain``.

The sidecar's package does. Where only the hook is installed, messages go without an explanation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ullage import safety

if TYPE_CHECKING:
    from ullage.segment.agreement import Claim

GROUP = "ullage.explain"


class Explanation(NamedTuple):
    """Why two sizes differ; empty if no package explains it.

    Attributes:
        text: A few sentences.
        causes: The likeliest causes in words, the likeliest first.
    """

    text: str = ""
    causes: tuple[str, ...] = ()


def explanation(contract: str, provider: Claim, requirement: Claim, relations: tuple[str, ...]) -> Explanation:
    """Explain why ``provider`` does not satisfy ``requirement``, for a message that is about to be shown.

    Looks up the entry point on each call, which takes milliseconds. Raises nothing.

    Args:
        contract: The name of the contract.
        provider: The claim with the size that does not fit.
        requirement: The claim that it does not satisfy.
        relations: The contract's, one for each dimension.
    """
    place = safety.shield("explanation")
    if place.off:
        return Explanation()
    with place:
        from importlib.metadata import entry_points  # noqa: PLC0415  most processes never need it

        for point in entry_points(group=GROUP):
            try:
                explain = point.load()
            except ModuleNotFoundError:  # what the sidecar needs is not there, such as tomli on Python 3.10
                continue
            finding = explain(contract, provider, requirement, relations=relations)
            return Explanation(finding.text, finding.causes)
    return Explanation()
