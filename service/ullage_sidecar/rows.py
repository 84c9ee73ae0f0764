"""Rows: one that cannot be judged or rendered is left out and counted; the others are served."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

Item = TypeVar("Item")
Row = TypeVar("Row")

log = logging.getLogger("ullage")
WHERE = ("process", "contract", "finding", "post_mortem", "warning", "buffer", "event", "metrics")
"""Kinds of rows: the values of the label ``where``."""
MAX_KNOWN = 1_000


class Rows:
    """Counts the rows left out. Safe to share between threads.

    Attributes:
        counts: Rows left out so far, by kind; a row that fails again with the same key is not counted again.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(dict.fromkeys(WHERE, 0))
        self._known: dict[tuple[str, Hashable], None] = {}
        self._logged: set[str] = set()
        self._lock = threading.Lock()

    def each(
        self,
        where: str,
        items: Iterable[Item],
        make: Callable[[Item], Row],
        key: Callable[[Item], Hashable],
    ) -> list[Row]:
        """Return ``make(item)`` for each of ``items``, without those for which it raises.

        Args:
            where: The kind of row, one of ``WHERE``.
            items: What the rows are made of.
            make: Makes a row. Whatever it raises costs this row alone.
            key: Tells rows of one kind apart.
        """
        made = []
        for item in items:
            try:
                made.append(make(item))
            except Exception as error:
                self._drop(where, key(item), error)
        return made

    def _drop(self, where: str, key: Hashable, error: Exception) -> None:
        with self._lock:
            if (where, key) not in self._known:
                self.counts[where] += 1
                self._known[where, key] = None
                if len(self._known) > MAX_KNOWN:
                    del self._known[next(iter(self._known))]
            first = where not in self._logged
            self._logged.add(where)
        if first:
            message = "a row of kind %s is left out; later ones of this kind are counted, not logged"
            log.error(message, where, exc_info=error)
