"""Never break the host: what our code raises is counted per place, logged once and dropped."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

from ullage.segment.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

log = logging.getLogger("ullage")

MAX_ERRORS = 10
"""A place is off after that many errors."""
MAX_PLACES = 1_024
"""Places that are remembered by name, and logged; a host can make names without end."""
_MESSAGE_MAX = 400

_logged: set[str] = set()
_listeners: list[Callable[[str, BaseException], None]] = []


def disabled() -> bool:
    """Tell whether ``ULLAGE_DISABLE=1`` switches everything off."""
    return os.environ.get("ULLAGE_DISABLE") == "1"


def strict() -> bool:
    """Tell whether ``ULLAGE_STRICT=1`` asks for our own errors to be raised, as the tests do."""
    return os.environ.get("ULLAGE_STRICT") == "1"


def log_once(place: str, message: str) -> None:
    """Warn in one line, once per process and place, whatever the message; of at most ``MAX_PLACES`` places."""
    if place not in _logged and len(_logged) < MAX_PLACES:
        _logged.add(place)
        with contextlib.suppress(Exception):  # a handler is the host's, and may raise
            log.warning("%s", clean(message[:_MESSAGE_MAX]))


def told(thing: object) -> str:
    """Return the text of an object of the host; its type if that cannot be made."""
    try:
        return str(thing)
    except Exception:
        return f"a {type(thing).__name__}"


def on_error(listener: Callable[[str, BaseException], None]) -> None:
    """Have ``listener(place, error)`` called for each error of ours."""
    _listeners.append(listener)


class Place:
    """A place in our code that the host's threads pass: a buffer, a contract, a probe or an entry point.

    As a context manager it keeps errors of the block from the host. After ``MAX_ERRORS`` errors it is off, and says
    so: who owns it does nothing there any more, and all other places go on.

    Attributes:
        name: For the log.
        errors: How many there were.
        off: There were too many.
    """

    __slots__ = ("_when_off", "errors", "name", "off")

    def __init__(self, name: str, when_off: Callable[[str], None] | None = None) -> None:
        """Name the place; ``when_off(why)`` is called once, when it goes off."""
        self.name = name
        self.errors = 0
        self.off = False
        self._when_off = when_off

    def caught(self, error: Exception) -> None:
        """Account for an error of ours that was just caught.

        Call it inside the ``except`` block. Raises the error again under ``ULLAGE_STRICT=1``, and only then.
        """
        self.errors += 1
        for listener in _listeners:
            with contextlib.suppress(Exception):
                listener(self.name, error)
        if not self.off:
            said = f"{type(error).__name__}: {told(error)}"
            log_once(self.name, f"{self.name}: {said} (counted, the host is not affected)")
            if self.errors >= MAX_ERRORS:
                self._switch_off(f"{self.errors} errors, last {type(error).__name__}")
        if strict():
            raise error

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.caught(error)
        return True

    def _switch_off(self, why: str) -> None:
        self.off = True
        log_once(f"{self.name} is off", f"{self.name} switched itself off: {why}")
        if self._when_off is not None:
            with contextlib.suppress(Exception):
                self._when_off(why)


_places: dict[str, Place] = {}


def shield(name: str) -> Place:
    """Return the place of that name; as a context manager it keeps errors of the block from the host."""
    known = _places.get(name)
    if known is None:
        known = Place(name)
        if len(_places) < MAX_PLACES:
            _places[name] = known
    return known


def shielded(place: str, function: Callable[[], None]) -> None:
    """Call ``function``; its errors are kept from the host and counted for ``place``."""
    with shield(place):
        function()
