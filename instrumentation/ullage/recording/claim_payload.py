"""What a claim is in its record: bounded text, exact numbers, inputs as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from ullage.exact import exact
from ullage.segment import layout, text
from ullage.segment.agreement import AT_LEAST, EQUAL
from ullage.segment.gate import scalar
from ullage.segment.layout import ClaimPayload, Relation, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ullage.segment.agreement import Claim
    from ullage.segment.snapshot import Scalar

SOURCE_BYTES = 64
_SCALARS = (str, bool, int, float, type(None))
_ROLE_CODES = {"provides": Role.PROVIDES, "requires": Role.REQUIRES, "is": Role.IS}
_RELATION_CODES = {EQUAL: Relation.EQUAL, AT_LEAST: Relation.AT_LEAST}


class Terms(NamedTuple):
    """What all claims on one contract share."""

    name: str
    dims: tuple[str, ...]
    relations: tuple[str, ...]
    unit: str


def claim_payload(terms: Terms, claim: Claim, flags: int) -> ClaimPayload:
    """Return the payload of a claim's record.

    Raises:
        ValueError: It has more dimensions than fit, or its source is too long.
    """
    if len(claim.shape) > layout.MAX_DIMS or len(claim.source.encode()) > SOURCE_BYTES:
        raise ValueError(
            f"{claim.source!r} says {claim.shape}: at most {layout.MAX_DIMS} dimensions, "
            f"and a source of {SOURCE_BYTES} bytes"
        )
    inputs, truncated = _encoded(claim.inputs)
    return ClaimPayload(
        shape=tuple(layout.NO_SIZE if size is None else size for size in claim.shape),
        role=_ROLE_CODES.get(claim.role, Role.UNKNOWN),
        flags=flags | (layout.FLAG_INPUTS_TRUNCATED if truncated else 0),
        relations=bytes(_RELATION_CODES[relation] for relation in terms.relations),
        dtype=text.encode(claim.dtype, 16),
        unit=text.encode(terms.unit, 16),
        dims=text.encode(",".join(terms.dims), 48),
        contract=terms.name.encode(),
        source=claim.source.encode(),
        inputs=inputs,
    )


def _encoded(inputs: Mapping[str, Any]) -> tuple[bytes, bool]:
    """Return the inputs that are finite JSON scalars as JSON, as many as fit, and whether some are missing."""
    kept: dict[str, Scalar] = {}
    encoded, truncated = b"{}", False
    for name, value in inputs.items():
        try:
            if not name:
                raise ValueError("an input without a name")
            plain = scalar(value if isinstance(value, _SCALARS) else exact(str(name), value))
        except (TypeError, ValueError):
            truncated = True
            continue
        more = {**kept, text.clean(str(name)): plain}
        longer = json.dumps(more, separators=(",", ":"), ensure_ascii=False).encode()
        if len(longer) > layout.INPUTS_BYTES:
            truncated = True
        else:
            kept, encoded = more, longer
    return encoded, truncated
