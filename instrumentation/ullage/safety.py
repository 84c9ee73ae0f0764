"""Never break the host: what our code raises is counted, logged once and dropped; tests may raise it again."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger("ullage")

_logged: set[str] = set()
_listeners: list[Callable[[str, BaseException], None]] = []


def disabled() -> bool:
    """Tell whether ``ULLAGE_DISABLE=1`` switches everything off."""
    return os.environ.get("ULLAGE_DISABLE") == "1"


def strict() -> bool:
    """Tell whether ``ULLAGE_STRICT=1`` asks for our own errors to be raised, as the tests do."""
    return os.environ.get("ULLAGE_STRICT") == "1"


def log_once(message: str) -> None:
    """Warn in one line, once per process and message."""
    if message not in _logged:
        _logged.add(message)
        log.warning(message)


def on_error(listener: Callable[[str, BaseException], None]) -> None:
    """Have ``listener(where, error)`` called for each error of ours."""
    _listeners.append(listener)


def caught(where: str, error: Exception) -> None:
    """Account for an error of ours that was just caught.

    Call it inside the ``except`` block. Raises the error again under ``ULLAGE_STRICT=1``, and only then.
    """
    for listener in _listeners:
        with contextlib.suppress(Exception):
            listener(where, error)
    if strict():
        raise error
    log_once(f"{where}: {type(error).__name__}: {error} (counted, the host is not affected)")


@contextlib.contextmanager
def shield(where: str) -> Iterator[None]:
    """Keep errors of the block from the host. For cold paths: it costs more than a bare try."""
    try:
        yield
    except Exception as error:
        caught(where, error)
