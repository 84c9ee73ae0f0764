"""How often each class of cause was the root of a public report: 116 reports on LLM inference servers."""

from __future__ import annotations

import math

COUNTS = {
    "two formulas": 26,
    "alignment": 12,
    "static assumption": 11,
    "stale input": 9,
    "hard-coded constant": 9,
    "unit confusion": 7,
    "look-ahead": 7,
    "foreign input": 5,
    "warm-up gap": 5,
    "no bounds check": 4,
    "integer overflow": 4,
    "dimensions or dtype": 3,
    "unknown": 3,
    "connector fields": 3,
    "version skew": 2,
    "off by one": 2,
    "lifetime race": 2,
    "reserved slot": 1,
    "capacity accounting": 1,
}
"""Root causes as classified when the reports were read (2026-11-29)."""


def log_prior(cause: str, without: str = "") -> float:
    """Return the log of the share of ``cause``, smoothed by one report for each class.

    ``without`` leaves one report of that class out: a case must not be judged by itself.
    """
    total = sum(COUNTS.values()) + len(COUNTS) - bool(without)
    return math.log((COUNTS[cause] + 1 - (cause == without)) / total)
