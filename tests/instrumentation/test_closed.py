"""Counts outlive the buffer or contract that made them, within one life of a process."""

from __future__ import annotations

import pytest

from ullage.segment import reader


@pytest.fixture
def after(program, segments):
    """Run a program; return what its segment says then."""

    def run(code, **environment):
        program("import ullage\n" + code, **environment).finish()
        (path,) = segments.glob("*.ullage")
        return reader.read(path)

    return run


def test_a_second_buffer_of_a_name_goes_on_with_the_counts_of_the_first(after):
    snapshot = after("""
first = ullage.buffer("rows", capacity=10, unit="rows")
for used in (11, 12, 13): first.observe(used)
first.exhausted(); first.resize(20); first.deferred(); first.violated(25); first.checked(3)
first.close()
first.observe(99)
second = ullage.buffer("rows", capacity=40, unit="rows")
second.observe(41); second.observe(4)
""")

    (rows,) = snapshot.buffers

    assert (rows.closed, rows.capacity, rows.used) == (False, 40, 4)
    assert (rows.out_of_bounds, rows.exhaustions, rows.grows, rows.deferrals, rows.checks) == (5, 1, 1, 1, 3)
    assert (rows.observations, rows.high_water) == (5, 41)
    assert rows.high_water_ratio == pytest.approx(1.3)
    overflows = [event for event in snapshot.events if event.kind.name == "BOUNDS_VIOLATION"]
    assert [(event.count, event.numbers[0]) for event in overflows] == [(1, 11), (2, 12), (1, 25), (4, 41)]


def test_the_record_of_a_closed_buffer_stays_only_where_it_counted_something(after):
    snapshot = after("""
for name in ("quiet", "violated", "exhausted", "resized"):
    one = ullage.buffer(name, capacity=10, unit="rows")
    one.observe(11 if name == "violated" else 5)
    if name == "exhausted": one.exhausted()
    if name == "resized": one.resize(20)
    one.close()
""")

    assert {buffer.name: buffer.closed for buffer in snapshot.buffers} == {
        "violated": True,
        "exhausted": True,
        "resized": True,
    }


def test_a_name_that_comes_back_in_another_unit_keeps_its_counts_and_not_its_mark(after):
    (rows,) = after("""
first = ullage.buffer("rows", capacity=10, unit="rows"); first.observe(11); first.close()
ullage.buffer("rows", capacity=10, unit="tokens").observe(2)
""").buffers

    assert (rows.unit, rows.out_of_bounds, rows.high_water) == ("tokens", 1, 2)


def test_records_of_closed_buffers_make_room_for_new_ones(after):
    snapshot = after("""
for n in range(600):
    one = ullage.buffer(f"buffer {n}", capacity=10, unit="rows"); one.observe(11); one.close()
last = ullage.buffer("last", capacity=10, unit="rows"); last.observe(3)
""")

    assert len(snapshot.buffers) == 512
    assert [buffer.name for buffer in snapshot.buffers if not buffer.closed] == ["last"]
    assert snapshot.process.dropped_buffers == 89
    (last,) = (buffer for buffer in snapshot.buffers if buffer.name == "last")
    assert (last.observations, last.out_of_bounds) == (1, 0)


def test_a_forked_child_counts_from_zero_also_what_was_closed(after, segments, program):
    program("""
        import os, ullage
        first = ullage.buffer("rows", capacity=10, unit="rows"); first.observe(11); first.close()
        child = os.fork()
        if child == 0:
            ullage.buffer("rows", capacity=10, unit="rows").observe(2)
            os._exit(0)
        os.waitpid(child, 0)
        """).finish()

    seen = sorted(
        (buffer.closed, buffer.out_of_bounds)
        for path in segments.glob("*.ullage")
        for buffer in reader.read(path).buffers
    )

    assert seen == [(False, 0), (True, 1)]


def test_a_forked_child_counts_from_zero_also_a_contract_that_was_closed(program, segments):
    program("""
        import os, ullage
        width = ullage.Contract("width"); width.compare(4, 5); width.close()
        child = os.fork()
        if child == 0:
            ullage.Contract("width").compare(4, 4)
            ullage.Contract("other").compare(1, 1)
            os._exit(0)
        os.waitpid(child, 0)
        """).finish()

    seen = [claim for path in segments.glob("*.ullage") for claim in reader.read(path).claims if claim.tally]

    counts = sorted((claim.contract, claim.checks, claim.violations) for claim in seen)
    assert counts == [("other", 1, 0), ("width", 1, 0), ("width", 1, 1)]


def test_a_second_contract_of_a_name_goes_on_with_the_violations_of_the_first(after):
    snapshot = after("""
for _ in range(3):
    width = ullage.Contract("width")
    width.compare(4, 5); width.compare(4, 4)
    width.close()
""")

    (tally,) = snapshot.claims

    assert (tally.tally, tally.checks, tally.violations) == (True, 6, 3)


def test_two_contracts_of_a_name_do_not_hide_each_others_violations(after):
    snapshot = after("""
first, second = ullage.Contract("width"), ullage.Contract("width")
for _ in range(3): first.compare(4, 5)
second.compare(4, 4)
first.close()
second.compare(4, 5); second.close()
""")

    (tally,) = snapshot.claims

    assert (tally.checks, tally.violations) == (5, 4)


def test_records_of_closed_contracts_make_room_for_new_ones(after):
    snapshot = after("""
for n in range(300):
    one = ullage.Contract(f"contract {n}"); one.compare(4, 5); one.close()
last = ullage.Contract("last"); last.claim("runner", 4)
""")

    assert len(snapshot.claims) <= 256
    assert [claim.source for claim in snapshot.claims if not claim.tally] == ["runner"]


def test_an_entry_of_the_inventory_takes_no_record_of_a_closed_buffer(after):
    snapshot = after("""
from ullage.recording.inventory import TensorInfo, inventory
from ullage.host.process import process
first = ullage.buffer("runner.rows", capacity=10, unit="rows"); first.observe(11); first.close()
inventory(process, "runner", [TensorInfo("rows", (4,), "int32", 16)])
ullage.buffer("runner.rows", capacity=10, unit="rows").observe(2)
""")

    assert [(one.out_of_bounds, one.inventory) for one in snapshot.buffers] == [(1, False), (0, True)]
