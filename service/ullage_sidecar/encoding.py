"""Content codings: what a request accepts (RFC 9110, section 12.5.3)."""

from __future__ import annotations

import re

_ITEM = re.compile(r"\s*([a-z0-9*!#$%&'+.^_`|~-]+)\s*(?:;\s*q\s*=\s*(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\s*)?")


def accepts_gzip(header: str) -> bool:
    """Return whether an ``Accept-Encoding`` header accepts gzip, by its name or by ``*``. A malformed item is void."""
    weights = {}
    for item in header.lower().split(","):
        match = _ITEM.fullmatch(item)
        if match is not None:
            coding, weight = match.groups()
            weights[coding] = float(weight or 1)
    return weights.get("gzip", weights.get("*", 0.0)) > 0
