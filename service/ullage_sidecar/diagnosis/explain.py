"""Explains why two sizes differ: rival causes with their arithmetic, and what would tell them apart.

A cause is kept only if it reproduces both numbers from what the two sides recorded, or fits what they are. Its weight
is the prior of its class, times the share of the values it was free to choose that fit, times what it cost to find
the formula, less what it leaves unused of the recorded inputs. Two transformations at once are tried only where no
single one does, and pay for both. *Unknown* always competes. Within a factor of two is a tie.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ullage.segment.agreement import EQUAL, differing
from ullage_sidecar.diagnosis.contextual_rules import contextual_rules
from ullage_sidecar.diagnosis.finding import MAX_CAUSE, UNKNOWN, Cause, Finding, discriminator, shortened
from ullage_sidecar.diagnosis.numeric import Pair, numeric
from ullage_sidecar.diagnosis.pair_transformations import pair_transformations
from ullage_sidecar.diagnosis.priors import log_prior
from ullage_sidecar.diagnosis.reports import reported
from ullage_sidecar.diagnosis.structure import structural

if TYPE_CHECKING:
    from ullage.segment.agreement import Claim

UNKNOWN_FIT = 1 / 20


def explain(
    contract: str, provider: Claim, requirement: Claim, *, relations: tuple[str, ...] = (), without: str = ""
) -> Finding:
    """Explain why ``provider`` does not satisfy ``requirement``.

    Args:
        contract: The contract's name; formulas of this quantity are tried first.
        provider: The side that has too little, or another size.
        requirement: The side that needs it.
        relations: The contract's, by dimension; what is not stated is ``==``.
        without: A class of cause to take one report away from, when a report is judged by the others.
    """
    found = structural(provider, requirement, without)
    if found is None:
        dims = differing(provider.shape, requirement.shape, relations) or differing(
            provider.shape, requirement.shape, ()
        )
        assert dims
        dim = dims[0]
        relation = relations[dim] if dim < len(relations) else EQUAL
        pair = Pair(contract, provider, requirement, dim, relation, without)
        causes = [*(list(numeric(pair)) or pair_transformations(pair)), *contextual_rules(pair)]
    else:
        causes = [Cause(*fields) for fields in found]
    sufficient = found is not None or bool(provider.inputs or requirement.inputs)
    best: dict[str, Cause] = {}
    for cause in causes:
        if cause.rule not in best or cause.weight > best[cause.rule].weight:
            best[cause.rule] = replace(cause, text=shortened(cause.text, MAX_CAUSE))
    # Unknown, too, takes one side's number as explained: it pays for the same formula.
    weight = math.exp(log_prior("unknown", without)) * UNKNOWN_FIT / min((c.tries for c in causes), default=1)
    rivals = sorted((*best.values(), Cause(UNKNOWN, UNKNOWN, "something else", weight)), key=lambda c: -c.weight)
    tied = Finding(tuple(rivals), sufficient).tied
    told_apart = shortened(discriminator(tied), MAX_CAUSE) if len(tied) > 1 else ""
    return Finding(tuple(rivals), sufficient, told_apart, reported(contract, [cause.rule for cause in tied]))
