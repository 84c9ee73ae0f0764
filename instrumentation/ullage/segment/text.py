"""Text on its way into a segment and out of it: cleaned by the same function on both sides."""

from __future__ import annotations

REPLACEMENT = "\ufffd"


def clean(value: str) -> str:
    """Return ``value`` with a replacement for each character that is not printable.

    These are the control characters, line and paragraph separators, direction marks and lone surrogates: what forges
    lines of a log, drives a terminal, or cannot be encoded.
    """
    if value.isprintable():
        return value
    return "".join(character if character.isprintable() else REPLACEMENT for character in value)


def encode(value: str, size: int) -> bytes:
    """Encode ``value``, cleaned, as UTF-8 in at most ``size`` bytes, cut between characters."""
    data = clean(value).encode()
    return data if len(data) <= size else data[:size].decode("utf-8", "ignore").encode()


def decode(field: bytes) -> str:
    """Decode a zero-padded field, and clean it."""
    return clean(field.rstrip(b"\0").decode("utf-8", "replace"))
