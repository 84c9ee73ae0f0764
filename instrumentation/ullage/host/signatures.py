"""What messages of exceptions are known, and which numbers they hold. Never anything else of a message."""

from __future__ import annotations

import re
from typing import NamedTuple

_MESSAGE_MAX = 4_000
_N = r"(\d{1,15})"
_MB = r"(\d{1,9}\.\d\d) MB"
_BYTES = 1 << 20


class Match(NamedTuple):
    """The signature that fits a message, and the numbers in it; sizes that it has in MB are in bytes here.

    ``name`` is empty if none fits.
    """

    name: str
    numbers: tuple[int, ...]


_SIGNATURES = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("expanded_size", rf"expanded size of the tensor \({_N}\) must match the existing size \({_N}\)"),
        ("tensor_sizes", rf"size of tensor a \({_N}\) must match the size of tensor b \({_N}\)"),
        ("metadata_shape", r"must have shape \(metadata_size\)"),
        ("dimension_size", rf"dimension {_N} must have size {_N}, got {_N}"),
        ("size", rf"must have size {_N}, got {_N}"),
        (
            "workspace_locked",
            rf"Workspace is locked but allocation from .{{1,400}} requires {_MB}, current size is {_MB}",
        ),
        ("row_capacity", rf"exceeds row capacity \({_N} > {_N}\)"),
        ("no_free_indices", r"No free indices"),
        ("no_free_lora_slots", r"No free lora slots"),
        ("index_capacity", rf"index (-?\d{{1,15}}), capacity {_N}"),
        ("out_of_bounds", rf"index (-?\d{{1,15}}) is out of bounds for (?:dimension|axis) {_N} with size {_N}"),
        ("free_blocks", rf"Cannot get {_N} free blocks"),
    )
)


def match(error: BaseException) -> Match:
    """Return what is known of an exception's message; nothing of one that cannot be told."""
    try:
        message = str(error)[:_MESSAGE_MAX]
    except Exception:  # the text is made by code of the host
        return Match("", ())
    for name, pattern in _SIGNATURES:
        found = pattern.search(message)
        if found is not None:
            return Match(name, tuple(map(_number, found.groups())))
    return Match("", ())


def _number(group: str) -> int:
    return round(float(group) * _BYTES) if "." in group else int(group)
