"""Buffers: what is observed is what a reader sees, from any thread, before and after a fork."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.host.process import process
from ullage.recording.counting import counting
from ullage.segment import gate, reader
from ullage.segment.layout import HOT_WORDS, OCCUPANCY_STEPS, B, BufferPayload


def read(directory):
    """The living segments of a directory."""
    found = [reader.read(path) for path in directory.glob("*.ullage")]
    return [snapshot for snapshot in found if snapshot.alive]


def buffers(directory):
    (snapshot,) = read(directory)
    return {buffer.name: buffer for buffer in snapshot.buffers}


def test_what_is_observed_is_what_a_reader_sees(program, segments):
    running = program("""
        import ullage
        rows = ullage.buffer("rows", capacity=100, unit="rows", limit="max_num_seqs", bytes=4096)
        for used in (10, 50, 51, 75, 90, 91, 95, 96, 99, 100, 101, 3):
            rows.observe(used)
        print("ready", flush=True)
        input()
        """)
    assert running.line() == "ready"

    rows = buffers(segments)["rows"]

    assert (rows.used, rows.high_water, rows.capacity, rows.unit) == (3, 101, 100, "rows")
    assert rows.occupancy == (3, 2, 1, 2, 2, 1)
    assert rows.beyond == 1
    assert rows.out_of_bounds == 1
    assert rows.worst_index == 100
    assert rows.high_water_ratio == pytest.approx(1.01)
    assert rows.high_water_ns > 0
    assert (rows.limit, rows.nbytes) == ("max_num_seqs", 4096)


class Recorded:
    """A handle's closures over plain words, without a file."""

    def __init__(self, capacity):
        self.words = memoryview(bytearray(8 * 64)).cast("q")
        self.words[B.CAPACITY] = capacity
        self.buffer = counting("rows", capacity, process)
        self.buffer.bind(self.words[HOT_WORDS], self.words)


@given(st.integers(0, 300), st.lists(st.integers(0, 400), max_size=60))
@settings(max_examples=300)
def test_occupancy_counts_equal_a_naive_count(capacity, observed):
    recorded = Recorded(capacity)
    for used in observed:
        recorded.buffer.observe(used)

    counts = [0] * 7
    for used in observed:
        # Exact: 90 % of 10 is 9, not 9.000000000000002.
        step = next((i for i, edge in enumerate(OCCUPANCY_STEPS) if used * 100 <= capacity * round(edge * 100)), 6)
        counts[step] += 1
    assert [recorded.words[word] for word in range(B.N50, B.N100 + 1)] == counts[:6]
    assert recorded.words[B.BEYOND] == counts[6]
    assert recorded.words[B.HIGH_WATER] == max(observed, default=0)
    assert recorded.words[B.USED] == (observed[-1] if observed else 0)


@given(st.integers(0, 300), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 5)), max_size=30))
def test_what_is_observed_no_times_and_counted_later_is_what_is_observed(capacity, observed):
    late, recorded = Recorded(capacity), Recorded(capacity)
    for used, times in observed:
        late.buffer.observe(used, 0)
        for _ in range(times + 1):
            recorded.buffer.observe(used)
        assert late.words[B.USED] == used
        assert late.words[B.HIGH_WATER] == recorded.words[B.HIGH_WATER]
    for used, times in observed:
        late.buffer.observe(used, times + 1)

    kept = [*range(B.CAPACITY, B.HIGH_WATER_NS), B.VIOLATIONS, B.USED, *range(B.HIGH_WATER, B.N100 + 1)]
    assert [late.words[word] for word in kept] == [recorded.words[word] for word in kept]


@given(
    st.lists(
        st.tuples(st.sampled_from(["observe", "resize"]), st.integers(1, 100)),
        max_size=40,
    )
)
def test_marks_before_a_resize_are_kept(steps):
    recorded = Recorded(50)
    capacity, high_water, ratio, used, grows, shrinks = 50, 0, 0.0, 0, 0, 0
    for what, value in steps:
        getattr(recorded.buffer, what)(value)
        if what == "observe":
            used, high_water = value, max(high_water, value)
        else:
            grows, shrinks = grows + (value > capacity), shrinks + (value < capacity)
            capacity = value
        ratio = max(ratio, used / capacity)

    descriptor = BufferPayload(0, 1, 1, 1, 0, b"rows", b"", b"rows").pack()
    seen = gate.buffer((1, tuple(recorded.words[: len(B)]), descriptor))

    assert (seen.capacity, seen.high_water, seen.grows, seen.shrinks) == (capacity, high_water, grows, shrinks)
    assert seen.high_water_ratio == pytest.approx(ratio, abs=2e-6)


@pytest.mark.fault("four threads on one buffer", sees="every update")
@pytest.mark.parametrize("threads", [4])
def test_no_update_is_lost_between_threads(program, segments, threads):
    running = program(
        """
        import sys, threading, ullage
        sys.setswitchinterval(1e-6)
        rows = ullage.buffer("rows", capacity=1000, unit="rows")
        def work(offset):
            observe = rows.observe
            for i in range(50_000):
                observe((i * 7 + offset) % 1100)
        workers = [threading.Thread(target=work, args=(n,)) for n in range(int(sys.argv[1]))]
        [w.start() for w in workers]; [w.join() for w in workers]
        print("done", flush=True)
        input()
        """,
        threads,
    )
    assert running.line() == "done"

    rows = buffers(segments)["rows"]

    assert rows.observations == threads * 50_000
    assert rows.high_water == 1099


def test_the_same_name_is_the_same_buffer_and_another_capacity_a_resize(program, segments):
    running = program("""
        import ullage
        first = ullage.buffer("rows", capacity=100, unit="rows")
        first.observe(60)
        second = ullage.buffer("rows", capacity=50, unit="rows")
        second.observe(20)
        assert first is second and first.capacity == 50
        print("ready", flush=True)
        input()
        """)
    assert running.line() == "ready"

    (snapshot,) = read(segments)
    (rows,) = snapshot.buffers

    assert (rows.capacity, rows.high_water, rows.shrinks, rows.grows) == (50, 60, 1, 0)
    assert rows.high_water_ratio == pytest.approx(1.2)  # 60 still stood when the capacity became 50
    assert [(event.kind.name, event.numbers[:2]) for event in snapshot.events] == [("RESIZE", (100, 50))]


def test_a_closed_buffer_is_gone_and_its_record_is_used_again(program, segments):
    running = program("""
        import ullage
        for n in range(2000):
            buffer = ullage.buffer(f"buffer {n}", capacity=10, unit="rows")
            buffer.observe(n % 10)
            if n != 1999:
                buffer.close()
                buffer.observe(3); buffer.exhausted(); buffer.resize(7)
        print("ready", flush=True)
        input()
        """)
    assert running.line() == "ready"

    (snapshot,) = read(segments)

    assert [(buffer.name, buffer.observations) for buffer in snapshot.buffers] == [("buffer 1999", 1)]
    assert snapshot.process.dropped_buffers == 0


@pytest.mark.fault("more than 512 buffers", sees="512 of them; how many were dropped")
def test_buffers_that_do_not_fit_are_counted_and_harm_nobody(program, segments):
    running = program("""
        import ullage
        handles = [ullage.buffer(f"buffer {n}", capacity=10, unit="rows") for n in range(600)]
        for handle in handles:
            handle.observe(5)
        print("ready", flush=True)
        input()
        """)
    assert running.line() == "ready"

    (snapshot,) = read(segments)

    assert len(snapshot.buffers) == 512
    assert snapshot.process.dropped_buffers == 88
    running.say("")
    assert running.failure().count("records are taken") == 1


@pytest.mark.fault("a storm of violations", sees="the exact count, a dozen events")
def test_a_storm_of_violations_leaves_a_dozen_events_and_the_exact_count(program, segments):
    running = program("""
        import ullage
        rows = ullage.buffer("rows", capacity=10, unit="rows")
        for n in range(1000):
            rows.observe(11 + n % 5)
            rows.exhausted(needed=n)
        print("ready", flush=True)
        input()
        """)
    assert running.line() == "ready"

    (snapshot,) = read(segments)
    (rows,) = snapshot.buffers

    assert (rows.out_of_bounds, rows.exhaustions) == (1000, 1000)
    powers = [2**n for n in range(10)]
    for kind in ("BOUNDS_VIOLATION", "EXHAUSTION"):
        assert [event.count for event in snapshot.events if event.kind.name == kind] == powers
    assert rows.exhausted_first_ns < rows.exhausted_last_ns


# -- bad input ----------------------------------------------------------------------------------------------------

BAD = {
    "observe -1": ("rows.observe(-1)", "it cannot be negative"),
    "observe text": ("rows.observe('7')", "used is a str; it must be a whole number"),
    "observe a float": ("rows.observe(2.5)", "used is a float; it must be a whole number"),
    "observe 2**63": ("rows.observe(2**63)", "used is 9223372036854775808; it must fit 63 bits"),
    "resize 2**64": ("rows.resize(2**64)", "it must fit 63 bits"),
    "checked 2**64": ("rows.checked(2**64)", "it must fit 63 bits"),
    "violated at text": ("rows.violated('7')", "index is a str; it must be a whole number"),
    "exhausted for text": ("rows.exhausted('many')", "needed is a str; it must be a whole number"),
    "resize -1": ("rows.resize(-1)", "0 or more"),
    "another unit": ("ullage.buffer('rows', capacity=10, unit='blocks')", "cannot also be in blocks"),
    "capacity text": ("ullage.buffer('b', capacity='10', unit='rows')", "whole number"),
    "a kind that is none": ("ullage.buffer('b', capacity=1, unit='rows', kind='soft')", "hard, managed, fixed"),
    "a name too long": ("ullage.buffer('b' * 89, capacity=1, unit='rows')", "1 to 88 bytes"),
    "no name": ("ullage.buffer('', capacity=1, unit='rows')", "1 to 88 bytes"),
    "no unit": ("ullage.buffer('b', capacity=1, unit='')", "1 to 16 bytes"),
}


@pytest.mark.fault("wrong arguments", sees="one log line; ullage_hook_errors_total")
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_counted_and_logged_and_changes_nothing(program, segments, case):
    code, message = BAD[case]
    running = program(
        f"""
        import ullage
        rows = ullage.buffer("rows", capacity=10, unit="rows")
        rows.observe(3)
        handle = {code}
        for bad in [handle] if handle is not None else []:
            bad.observe(9); bad.resize(5); bad.exhausted(); bad.deferred(); bad.close()
        print("ready", flush=True)
        input()
        """,
        ULLAGE_STRICT="0",
    )
    assert running.line() == "ready"

    (snapshot,) = read(segments)
    (rows,) = snapshot.buffers

    assert (rows.used, rows.observations, rows.capacity) == (3, 1, 10)
    assert snapshot.process.hook_errors == 1
    running.say("")
    log = running.failure()
    assert message in log
    assert len(log.strip().splitlines()) == 1


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_raised_where_tests_ask_for_it(program, case):
    code, message = BAD[case]
    failed = program(f"""
        import ullage
        rows = ullage.buffer("rows", capacity=10, unit="rows")
        {code}
        """)

    assert message in failed.failure()
    assert failed.process.returncode == 1


# -- no segment ---------------------------------------------------------------------------------------------------

USE = """
    import ullage, json
    rows = ullage.buffer("rows", capacity=10, unit="rows")
    for used in (1, 9, 11):
        rows.observe(used)
    rows.resize(20); rows.exhausted(); rows.deferred(); ullage.step(); rows.close()
    print(json.dumps("done"))
    """


def test_without_a_directory_nothing_is_recorded_and_nothing_is_said(program):
    quiet = program(USE, directory=None)

    out, err = quiet.process.communicate(timeout=60)

    assert json.loads(out) == "done"
    assert err == ""


@pytest.mark.fault("ULLAGE_DISABLE=1", sees="nothing")
def test_disabled_by_the_environment_nothing_is_recorded(program, segments):
    program(USE, ULLAGE_DISABLE="1").finish()

    assert list(segments.iterdir()) == []
