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
from ullage.exact import MAX, exact, size
from ullage.host.record_views import EMPTY_RECORD, NULL_RECORD, LazyRecord
from ullage.segment.layout import HOT_WORDS, B, EventKind

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import SupportsIndex

    from ullage.host.records import Owner

_clock = time.time_ns
_PPM = 1_000_000

# The hot path stores by literal index: a global constant would cost as much as the store.
assert [b - B.USED for b in (B.USED, B.HIGH_WATER, B.N50, B.N75, B.N90, B.N95, B.N99, B.N100)] == [*range(8)]
assert (B.BEYOND, B.HIGH_WATER_NS, B.CHECKS, B.VIOLATIONS) == (2, 3, 8, 9)
assert HOT_WORDS.start == B.USED

Views = memoryview | LazyRecord
_ONCE = 1  # by identity: to compare a tensor on a device waits for the device


class Counting(NamedTuple):
    """What can be done with one buffer's numbers, as plain functions: the hot ones are called from compiled code."""

    observe: Callable[..., None]
    resize: Callable[[SupportsIndex], None]
    exhausted: Callable[..., None]
    deferred: Callable[[], None]
    checked: Callable[[SupportsIndex], None]
    violated: Callable[..., None]
    bind: Callable[[Views, Views], None]
    zero: Callable[[], None]
    resume: Callable[[Views], None]
    capacity: Callable[[], int]


class _Ladder(NamedTuple):
    """``observe``, and what sets the numbers that it works with."""

    observe: Callable[..., None]
    limit: Callable[[int, int], None]
    high_water: Callable[[], int]
    bind: Callable[[Views, Views], None]
    resume: Callable[[Views], None]


class _Facts(NamedTuple):
    """The counts of what rarely happens."""

    exhausted: Callable[..., None]
    deferred: Callable[[], None]
    checked: Callable[[SupportsIndex], None]
    violated: Callable[..., None]
    bind: Callable[[Views], None]
    resume: Callable[[Views], None]


def counting(name: str, capacity: int, owner: Owner) -> Counting:  # noqa: PLR0915  what the groups of cells share
    """Return the functions of a buffer that has counted nothing; they store nowhere until ``bind``."""
    cold: Views = NULL_RECORD

    def happened(kind: EventKind, count: int, *numbers: int, detail: str = "") -> None:
        if cold is not NULL_RECORD:
            owner.session.emit(kind, name, count=count, numbers=(*numbers, capacity), detail=detail)

    def off(why: str) -> None:
        if cold is not NULL_RECORD:
            owner.session.emit(EventKind.PROBE_DISABLED, name, detail=why)
        bind(NULL_RECORD, NULL_RECORD)

    place = safety.Place(f"buffer {name}", off)

    def overflowed(used: int, total: int, more: int) -> None:
        now = _clock()
        cold[B.VIOLATION_NS] = now
        if used == ladder.high_water():
            cold[B.HIGH_WATER_NS] = now
            cold[B.WORST_INDEX] = used - 1
        happened(EventKind.BOUNDS_VIOLATION, _milestone(total, more), used)

    def resize(new: SupportsIndex) -> None:
        nonlocal capacity
        try:
            wanted = size("capacity", new)
            with owner.session.lock:
                if wanted == capacity:
                    return
                old, used = capacity, cold[B.USED]
                direction = B.GROWS if wanted > old else B.SHRINKS
                epoch = cold[B.EPOCH] + 1
                cold[B.EPOCH_CHECK] = epoch
                _keep_marks(cold, ladder.high_water(), old)
                cold[B.CAPACITY] = wanted
                cold[direction] = cold[direction] + 1
                capacity = wanted
                ladder.limit(wanted, used)
                cold[B.EPOCH] = epoch
                count = cold[B.GROWS] + cold[B.SHRINKS]
            happened(EventKind.RESIZE, count, old)
        except Exception as error:
            place.caught(error)

    def bind(new_hot: Views, new_cold: Views) -> None:
        nonlocal cold
        hot, cold = (NULL_RECORD, NULL_RECORD) if place.off else (new_hot, new_cold)
        ladder.bind(hot, cold)
        facts.bind(cold)

    def zero() -> None:
        ladder.resume(EMPTY_RECORD)
        facts.resume(EMPTY_RECORD)

    def resume(words: Views) -> None:
        """Go on from the record of a buffer of this name that was closed: nothing that it counted is lost."""
        _keep_marks(words, words[B.HIGH_WATER], words[B.CAPACITY])
        ladder.resume(words)
        facts.resume(words)

    ladder, facts = _ladder(capacity, place, overflowed), _facts(place, happened, lambda: capacity)
    return Counting(
        ladder.observe,
        resize,
        facts.exhausted,
        facts.deferred,
        facts.checked,
        facts.violated,
        bind,
        zero,
        resume,
        lambda: capacity,
    )


def _ladder(  # noqa: C901, PLR0915  one group of shared cells
    capacity: int, place: safety.Place, overflowed: Callable[[int, int, int], None]
) -> _Ladder:
    """Return ``observe`` and its siblings, which share their cells."""
    hot: Views = NULL_RECORD
    cold: Views = NULL_RECORD
    high_water = n50 = n75 = n90 = n95 = n99 = n100 = beyond = 0
    l50, l75, l90, l95, l99 = _limits(capacity)

    def observe(used: SupportsIndex, times: SupportsIndex = _ONCE) -> None:  # noqa: PLR0912  the hot path is written out
        nonlocal high_water, n50, n75, n90, n95, n99, n100, beyond
        try:
            # Before any comparison: that of a tensor on a device waits for the device.
            if used.__class__ is not int:
                used = exact("used", used)
            if times is not _ONCE:
                times = size("times", times)
            if used < 0:
                raise ValueError(f"used is {used}; it cannot be negative")
            hot[0] = used  # raises what does not fit 63 bits, before anything is counted; as all stores do
            if used <= l90:
                if used <= l50:
                    hot[2] = count = n50 + times
                    n50 = count
                elif used <= l75:
                    hot[3] = count = n75 + times
                    n75 = count
                else:
                    hot[4] = count = n90 + times
                    n90 = count
            elif used <= l99:
                if used <= l95:
                    hot[5] = count = n95 + times
                    n95 = count
                else:
                    hot[6] = count = n99 + times
                    n99 = count
            elif used <= capacity:
                hot[7] = count = n100 + times
                n100 = count
            else:
                cold[2] = count = beyond + times
                beyond = count
                if times:
                    if used > high_water:
                        high_water = used
                        hot[1] = used
                    overflowed(used, count, times)
                    return
            if used > high_water:
                high_water = used
                hot[1] = used
                cold[3] = _clock()
        except Exception as error:
            place.caught(_clearer(error, used=used, times=times))

    def limit(new: int, new_high_water: int) -> None:
        nonlocal capacity, high_water, l50, l75, l90, l95, l99
        capacity, high_water = new, new_high_water
        l50, l75, l90, l95, l99 = _limits(new)
        hot[1] = new_high_water

    def bind(new_hot: Views, new_cold: Views) -> None:
        nonlocal hot, cold
        hot, cold = new_hot, new_cold

    def resume(words: Views) -> None:
        nonlocal n50, n75, n90, n95, n99, n100, beyond, high_water
        n50, n75, n90, n95, n99, n100 = (words[word] for word in range(B.N50, B.N100 + 1))
        beyond, high_water = words[B.BEYOND], 0

    return _Ladder(_alone(observe), limit, lambda: high_water, bind, resume)


def _facts(  # noqa: C901, PLR0915  another
    place: safety.Place, happened: Callable[..., None], capacity: Callable[[], int]
) -> _Facts:
    """Return the functions that count exhaustions, deferrals, checks and violations, which share their cells."""
    cold: Views = NULL_RECORD
    exhaustions = deferrals = checks = violations = 0

    def exhausted(needed: SupportsIndex = 0) -> None:
        nonlocal exhaustions
        try:
            number = exact("needed", needed)
            exhaustions += 1
            count = exhaustions
            cold[B.EXHAUSTIONS] = count
            now = _clock()
            if count == 1:
                cold[B.EXHAUSTED_FIRST_NS] = now
            cold[B.EXHAUSTED_LAST_NS] = now
            happened(EventKind.EXHAUSTION, count, number)
        except Exception as error:
            place.caught(error)

    def deferred() -> None:
        nonlocal deferrals
        try:
            deferrals += 1
            cold[B.DEFERRALS] = deferrals
        except Exception as error:
            place.caught(error)

    def checked(count: SupportsIndex) -> None:
        nonlocal checks
        try:
            if count.__class__ is not int:
                count = exact("count", count)
            if count < 0:
                raise ValueError(f"count is {count}; it cannot be negative")
            total = checks + count
            cold[8] = total  # raises what does not fit 63 bits
            checks = total
        except Exception as error:
            place.caught(_clearer(error, count=count))

    def violated(index: SupportsIndex, count: SupportsIndex = 1, detail: str = "") -> None:
        nonlocal violations
        try:
            where, more = exact("index", index), size("count", count)
            if not more:
                return
            # No call in between: another thread's violations would be lost.
            total = violations + more
            cold[9] = total  # raises what does not fit 63 bits
            violations = total
            worst = cold[B.WORST_INDEX]
            if total == more or _outside(where, capacity()) > _outside(worst, capacity()):
                cold[B.WORST_INDEX] = where
            cold[B.VIOLATION_NS] = _clock()
            happened(EventKind.BOUNDS_VIOLATION, _milestone(total, more), where, detail=detail)
        except Exception as error:
            place.caught(_clearer(error, count=count))

    def bind(new: Views) -> None:
        nonlocal cold
        cold = new

    def resume(words: Views) -> None:
        nonlocal exhaustions, deferrals, checks, violations
        exhaustions, deferrals = words[B.EXHAUSTIONS], words[B.DEFERRALS]
        checks, violations = words[B.CHECKS], words[B.VIOLATIONS]

    return _Facts(exhausted, deferred, checked, violated, bind, resume)


def _limits(capacity: int) -> tuple[int, int, int, int, int]:
    """Largest whole numbers that are at most 50, 75, 90, 95 and 99 % of ``capacity``."""
    return (
        capacity * 50 // 100,
        capacity * 75 // 100,
        capacity * 90 // 100,
        capacity * 95 // 100,
        capacity * 99 // 100,
    )


def _keep_marks(cold: Views, high_water: int, capacity: int) -> None:
    """Keep what was the most ever needed, and its share of the capacity that was then in force."""
    ratio = min(high_water * _PPM // capacity, MAX) if capacity else 0
    cold[B.PRIOR_HIGH_WATER] = max(cold[B.PRIOR_HIGH_WATER], high_water)
    cold[B.PRIOR_RATIO_PPM] = max(cold[B.PRIOR_RATIO_PPM], ratio)


def _clearer(error: Exception, **given: SupportsIndex) -> Exception:
    """Return what ``exact`` says of a number that the memory of the segment refused."""
    try:
        for what, number in given.items():
            if number.__class__ is int:
                exact(what, number)
    except ValueError as clearer:
        return clearer
    return error


def _outside(index: int, capacity: int) -> int:
    """How far an index is outside [0, capacity)."""
    return max(index - capacity + 1, -index, 0)


def _milestone(total: int, more: int) -> int:
    """Return the power of two that a count passed with ``more``, which stands for it in the events; else ``total``."""
    passed = 1 << (total.bit_length() - 1) if total else 0
    return passed if total - more < passed else total


def _alone(function: Callable[..., None]) -> Callable[..., None]:
    """Return ``function``, under a lock where there is no GIL: without one, straight-line code is not atomic."""
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        return function
    lock = threading.Lock()

    def locked(*numbers: SupportsIndex) -> None:
        with lock:
            function(*numbers)

    return locked
