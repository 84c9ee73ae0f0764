"""The hot path: a buffer's numbers in closure cells, stored into whatever words it is bound to.

``observe`` is straight-line code without a call or a loop before its last statement: under the GIL no other
thread runs in between, so no update is lost, without a lock. It never reads the map.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from ullage import safety
from ullage.segment.layout import HOT_WORDS, B, EventKind
from ullage.session import session
from ullage.words import SINK, Pending

if TYPE_CHECKING:
    from collections.abc import Callable

_clock = time.time_ns
_PPM = 1_000_000

# The hot path stores by literal index: a global constant would cost as much as the store.
assert [b - B.USED for b in (B.USED, B.HIGH_WATER, B.N50, B.N75, B.N90, B.N95, B.N99, B.N100)] == [*range(8)]
assert (B.BEYOND, B.HIGH_WATER_NS) == (2, 3)
assert HOT_WORDS.start == B.USED

Views = memoryview | Pending


class Counting(NamedTuple):
    """What can be done with one buffer's numbers; the functions share their cells."""

    observe: Callable[[int], None]
    resize: Callable[[int], None]
    exhausted: Callable[..., None]
    deferred: Callable[[], None]
    checked: Callable[[int], None]
    violated: Callable[..., None]
    hold: Callable[[int], None]
    counted: Callable[[int, int], None]
    bind: Callable[[Views, Views], None]
    zero: Callable[[], None]
    capacity: Callable[[], int]


def _limits(capacity: int) -> tuple[int, int, int, int, int]:
    """Largest whole numbers that are at most 50, 75, 90, 95 and 99 % of ``capacity``."""
    return (
        capacity * 50 // 100,
        capacity * 75 // 100,
        capacity * 90 // 100,
        capacity * 95 // 100,
        capacity * 99 // 100,
    )


def counting(name: str, capacity: int) -> Counting:  # noqa: C901, PLR0915  one set of shared cells
    """Return the functions of a buffer that has counted nothing; they store nowhere until ``bind``."""
    hot: Views = SINK
    cold: Views = SINK
    high_water = n50 = n75 = n90 = n95 = n99 = n100 = beyond = 0
    exhaustions = deferrals = checks = violations = 0
    l50, l75, l90, l95, l99 = _limits(capacity)

    def observe(used: int) -> None:
        nonlocal high_water, n50, n75, n90, n95, n99, n100, beyond
        try:
            if used < 0:
                raise ValueError(f"used is {used}; it cannot be negative")
            hot[0] = used
            if used <= l90:
                if used <= l50:
                    n50 += 1
                    hot[2] = n50
                elif used <= l75:
                    n75 += 1
                    hot[3] = n75
                else:
                    n90 += 1
                    hot[4] = n90
            elif used <= l99:
                if used <= l95:
                    n95 += 1
                    hot[5] = n95
                else:
                    n99 += 1
                    hot[6] = n99
            elif used <= capacity:
                n100 += 1
                hot[7] = n100
            else:
                beyond += 1
                cold[2] = beyond
                if used > high_water:
                    high_water = used
                    hot[1] = used
                overflowed(used, beyond)
                return
            if used > high_water:
                high_water = used
                hot[1] = used
                cold[3] = _clock()
        except Exception as error:
            safety.caught(f"observe {name}", error)

    def hold(used: int) -> None:
        nonlocal high_water
        try:
            hot[0] = used
            if used > high_water:
                high_water = used
                hot[1] = used
                cold[3] = _clock()
        except Exception as error:
            safety.caught(f"hold {name}", error)

    def counted(used: int, times: int) -> None:
        nonlocal n50, n75, n90, n95, n99, n100, beyond
        try:
            if used <= l50:
                n50 += times
                hot[2] = n50
            elif used <= l75:
                n75 += times
                hot[3] = n75
            elif used <= l90:
                n90 += times
                hot[4] = n90
            elif used <= l95:
                n95 += times
                hot[5] = n95
            elif used <= l99:
                n99 += times
                hot[6] = n99
            elif used <= capacity:
                n100 += times
                hot[7] = n100
            else:
                for _ in range(times):
                    beyond += 1
                    cold[2] = beyond
                    overflowed(used, beyond)
        except Exception as error:
            safety.caught(f"counted {name}", error)

    def overflowed(used: int, count: int) -> None:
        now = _clock()
        cold[B.VIOLATION_NS] = now
        if used == high_water:
            cold[B.HIGH_WATER_NS] = now
            cold[B.WORST_INDEX] = used - 1
        happened(EventKind.BOUNDS_VIOLATION, count, used, capacity)

    def happened(kind: EventKind, count: int, *numbers: int, detail: str = "") -> None:
        if cold is not SINK:
            session.emit(kind, name, count=count, numbers=numbers, detail=detail)

    def resize(new: int) -> None:
        nonlocal capacity, high_water, l50, l75, l90, l95, l99
        try:
            limits = _limits(size("capacity", new))
            with session.lock:
                if new == capacity:
                    return
                old, used = capacity, cold[B.USED]
                direction = B.GROWS if new > old else B.SHRINKS
                epoch = cold[B.EPOCH] + 1
                prior = high_water * _PPM // old if old else 0
                cold[B.EPOCH_CHECK] = epoch
                cold[B.PRIOR_HIGH_WATER] = max(cold[B.PRIOR_HIGH_WATER], high_water)
                cold[B.PRIOR_RATIO_PPM] = max(cold[B.PRIOR_RATIO_PPM], prior)
                cold[B.CAPACITY] = new
                cold[direction] = cold[direction] + 1
                capacity, high_water = new, used
                l50, l75, l90, l95, l99 = limits
                hot[1] = used
                cold[B.EPOCH] = epoch
                count = cold[B.GROWS] + cold[B.SHRINKS]
            happened(EventKind.RESIZE, count, old, new)
        except Exception as error:
            safety.caught(f"resize {name}", error)

    def exhausted(needed: int = 0) -> None:
        nonlocal exhaustions
        try:
            exhaustions += 1
            count = exhaustions
            cold[B.EXHAUSTIONS] = count
            now = _clock()
            if count == 1:
                cold[B.EXHAUSTED_FIRST_NS] = now
            cold[B.EXHAUSTED_LAST_NS] = now
            happened(EventKind.EXHAUSTION, count, needed, capacity)
        except Exception as error:
            safety.caught(f"exhausted {name}", error)

    def deferred() -> None:
        nonlocal deferrals
        try:
            deferrals += 1
            cold[B.DEFERRALS] = deferrals
        except Exception as error:
            safety.caught(f"deferred {name}", error)

    def checked(count: int) -> None:
        nonlocal checks
        try:
            checks += count
            cold[B.CHECKS] = checks
        except Exception as error:
            safety.caught(f"checked {name}", error)

    def violated(index: int, count: int = 1, detail: str = "") -> None:
        nonlocal violations
        try:
            violations += count
            total = violations
            cold[B.VIOLATIONS] = total
            worst = cold[B.WORST_INDEX]
            if total == count or _outside(index, capacity) > _outside(worst, capacity):
                cold[B.WORST_INDEX] = index
            cold[B.VIOLATION_NS] = _clock()
            # A count that passes a power of two stands for it: several violations can come at once.
            passed = 1 << (total.bit_length() - 1)
            counted = passed if total - count < passed else total
            happened(EventKind.BOUNDS_VIOLATION, counted, index, capacity, detail=detail)
        except Exception as error:
            safety.caught(f"violated {name}", error)

    def bind(new_hot: Views, new_cold: Views) -> None:
        nonlocal hot, cold
        hot, cold = new_hot, new_cold

    def zero() -> None:
        nonlocal high_water, n50, n75, n90, n95, n99, n100, beyond, exhaustions, deferrals, checks, violations
        high_water = n50 = n75 = n90 = n95 = n99 = n100 = beyond = exhaustions = deferrals = checks = violations = 0

    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        lock = threading.Lock()
        observe, hold, counted = (_locked(each, lock) for each in (observe, hold, counted))
    return Counting(
        observe,
        resize,
        exhausted,
        deferred,
        checked,
        violated,
        hold,
        counted,
        bind,
        zero,
        lambda: capacity,
    )


def _outside(index: int, capacity: int) -> int:
    """How far an index is outside [0, capacity)."""
    return max(index - capacity + 1, -index, 0)


def _locked(function: Callable[..., None], lock: threading.Lock) -> Callable[..., None]:
    """Without a GIL, straight-line code is not atomic."""

    def locked(*numbers: int) -> None:
        with lock:
            function(*numbers)

    return locked


def size(what: str, value: int) -> int:
    """Return ``value`` if it is a size.

    Raises:
        ValueError: It is no whole number of 0 or more.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{what} is {value!r}; it must be a whole number, 0 or more")
    return value
