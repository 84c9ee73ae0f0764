"""Numbers from the host, made exact once: plain integers that fit the segment's 64-bit words."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import SupportsIndex

MAX = 2**63 - 1


def exact(what: str, value: SupportsIndex) -> int:
    """Return ``value`` as a plain integer: whatever has ``__index__``, numpy's integers too.

    Raises:
        ValueError: It is no whole number, or has more than 63 bits and a sign.
        TypeError: It is a tensor on a device: to read it would wait for the device.
    """
    if value.__class__ is not int:
        device = getattr(value, "device", None)
        if device is not None and not str(device).startswith("cpu"):
            raise TypeError(f"{what} is a tensor on {device}: reading it waits for the device; give a host integer")
        try:
            value = int(index(value))
        except TypeError:
            raise ValueError(f"{what} is a {type(value).__name__}; it must be a whole number") from None
    if not -MAX - 1 <= value <= MAX:
        raise ValueError(f"{what} is {value}; it must fit 63 bits")
    return value


def size(what: str, value: SupportsIndex, least: int = 0) -> int:
    """Return ``value`` as a plain integer of ``least`` or more.

    Raises:
        ValueError, TypeError: As ``exact``; or it is less, or a boolean, which is a mistake where a size is meant.
    """
    number = exact(what, value)
    if number < least or value.__class__ is bool:
        raise ValueError(f"{what} is {value}; it must be a whole number, {least} or more")
    return number
