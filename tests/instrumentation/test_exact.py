"""Numbers that the host gives: exact or refused, and never half-counted."""

from __future__ import annotations

import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ullage
from ullage.exact import exact, size
from ullage.host.process import process
from ullage.recording.counting import counting
from ullage.segment import reader
from ullage.segment.layout import HOT_WORDS, B

np = pytest.importorskip("numpy")


class Device:
    """A number on a device: who asks it for its value waits for the device."""

    device = "cuda:0"

    def __index__(self) -> int:
        raise AssertionError("the device was waited for")

    __int__ = __lt__ = __le__ = __gt__ = __bool__ = __index__


@pytest.fixture
def rows():
    """A buffer's functions over plain words, with capacity 10,000."""
    words = memoryview(bytearray(8 * 64)).cast("q")
    words[B.CAPACITY] = 10_000
    functions = counting("rows", 10_000, process)
    functions.bind(words[HOT_WORDS], words)
    return functions, words


@pytest.mark.parametrize("number", [np.int32(5000), np.uint16(5000), np.array(5000), 5000])
def test_a_small_integer_of_numpy_does_not_overflow(rows, number):
    functions, words = rows

    functions.observe(number)
    functions.resize(np.int32(20_000))

    assert words[B.PRIOR_RATIO_PPM] == 500_000
    assert (words[B.USED], words[B.CAPACITY]) == (5000, 20_000)


def test_no_violation_is_lost_between_threads(rows):
    functions, words = rows
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        work = [threading.Thread(target=lambda: [functions.violated(10_000) for _ in range(10_000)]) for _ in range(4)]
        for thread in work:
            thread.start()
        for thread in work:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert words[B.VIOLATIONS] == 40_000


def test_no_violations_are_no_event(program, segments):
    program("""
        import ullage
        rows = ullage.buffer("rows", capacity=10, unit="rows")
        rows.resize(20)
        for _ in range(1_100): rows.violated(30, 0)
        """).finish()

    (path,) = segments.glob("*.ullage")
    assert [event.kind.name for event in reader.read(path).events] == ["RESIZE", "STOP"]


def test_checks_are_added_up_exactly(rows):
    functions, words = rows

    functions.checked(np.int32(2**31 - 1))
    functions.checked(np.int32(5))

    assert words[B.CHECKS] == 2**31 + 4


@pytest.mark.parametrize(
    ("call", "word", "good"),
    [
        (lambda buffer, number: buffer.checked(number), B.CHECKS, 1),
        (lambda buffer, number: buffer.violated(3, number), B.VIOLATIONS, 1),
        (lambda buffer, number: buffer.exhausted(number), B.EXHAUSTIONS, 1),
        (lambda buffer, number: buffer.observe(number), B.N50, 1),
        (lambda buffer, number: buffer.observe(number, 0), B.USED, 1),
        (lambda buffer, number: buffer.observe(1, number), B.N50, 1),
        (lambda buffer, number: buffer.resize(number), B.SHRINKS, 9_999),
    ],
)
@pytest.mark.parametrize("bad", [2**63, 2**64, -(2**63) - 1, 2.5, "7", None, Device()], ids=str)
def test_what_is_refused_changes_nothing_and_spoils_no_later_call(rows, monkeypatch, call, word, good, bad):
    monkeypatch.setenv("ULLAGE_STRICT", "0")
    functions, words = rows
    before = list(words)

    call(functions, bad)

    assert list(words) == before
    call(functions, good)
    assert words[word] == 1


@pytest.mark.parametrize("call", ["observe", "checked", "exhausted", "resize", "violated"])
def test_a_number_on_a_device_is_refused_without_a_look_at_it(rows, call):
    functions, _ = rows

    with pytest.raises(TypeError, match="tensor on cuda:0: reading it waits for the device"):
        getattr(functions, call)(Device())


def test_a_capacity_may_be_any_integer(program, segments):
    program("""
        import numpy as np, ullage
        rows = ullage.buffer("rows", capacity=np.int64(100), unit="rows", bytes=np.int32(4096))
        rows.observe(np.int64(7)); rows.warn_at(np.uint8(90))
        assert type(rows.capacity) is int
        """).finish()

    (path,) = segments.glob("*.ullage")
    (rows,) = reader.read(path).buffers
    assert (rows.capacity, rows.nbytes, rows.used, rows.warn_at) == (100, 4096, 7, 90)


def test_a_dimension_of_a_claim_is_exact_or_refused():
    contract = ullage.Contract("exact dimensions", dims=("rows", "columns"))
    contract.claim("numpy", (np.int64(4), None))
    assert contract.claims[0].shape == (4, None)

    with pytest.raises(ValueError, match="a dimension is a float"):
        contract.claim("float", (4.7, 1))

    contract.close()


@given(st.integers())
def test_exact_takes_what_fits_63_bits_and_nothing_else(number):
    if -(2**63) <= number < 2**63:
        assert exact("it", number) == number
    else:
        with pytest.raises(ValueError, match="63 bits"):
            exact("it", number)
    if number < 0:
        with pytest.raises(ValueError, match=r"0 or more|63 bits"):
            size("it", number)
