"""Indices that only the device knows, on CPU tensors: nothing is refused, nothing goes astray, all is counted."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from harness import missing
from indexers import name, recorded, unseen

import ullage
from ullage.host.process import process
from ullage.indexer import GrowingIndexer, GuardedIndexer, check_invariants, device

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, while it compiles


def guarded(worst_case=100, row_shape=(4,), dtype=torch.float32):
    return unseen(GuardedIndexer(name(), worst_case, row_shape, dtype, "cpu"))


def growing(base_capacity=10, **options):
    return unseen(GrowingIndexer(name(), base_capacity, (4,), torch.float32, "cpu", **options))


def some(count, row_shape=(4,)):
    return torch.rand(count, *row_shape) + 1


def test_a_write_outside_is_swallowed_and_a_read_from_there_is_zero():
    rows, idx, values = guarded(), torch.tensor([111, 5, -1, 110, 2**62, -(2**63)]), some(6)
    rows.write(torch.arange(111), some(111))
    before = rows.rows.clone()

    rows.write(idx, values)

    check_invariants(rows, idx[[1, 3]], values[[1, 3]], before)
    read = rows.read(idx)
    assert torch.equal(read[[1, 3]], values[[1, 3]])
    assert not read[[0, 2, 4, 5]].any()


def test_counts_arrive_at_the_step_tick_and_are_exact():
    rows = guarded()
    counts = recorded(rows)
    rows.write(torch.tensor([111, 5, 60]), some(3))
    rows.read(torch.tensor([-7, 5]))
    assert counts().bounds_checks == 0

    process.session.clock.tick()

    assert (counts().bounds_checks, counts().out_of_bounds, counts().observations) == (5, 2, 1)
    assert (counts().used, rows.peak, counts().worst_index) == (61, 61, -7)
    process.session.clock.tick()
    rows.read(torch.tensor([5, 112]))
    rows.harvest()
    assert (counts().bounds_checks, counts().out_of_bounds, counts().observations) == (7, 3, 1)


def test_close_takes_over_the_last_counts():
    rows = guarded()
    counts = recorded(rows)
    rows.write(torch.tensor([111, 5, 60]), some(3))

    rows.close()

    assert (counts().bounds_checks, counts().out_of_bounds, rows.peak) == (3, 1, 61)


def test_a_dropped_indexer_is_gone():
    rows = guarded()
    gone = weakref.ref(rows)

    del rows
    gc.collect()

    assert gone() is None
    process.session.clock.tick()


def test_an_empty_batch_counts_nothing():
    rows = guarded()
    counts = recorded(rows)

    rows.write(torch.empty(0, dtype=torch.int64), some(0))
    assert rows.read(torch.empty(0, dtype=torch.int64)).shape == (0, 4)

    rows.harvest()
    assert counts().bounds_checks == 0


def test_an_index_without_a_dimension_is_one_row():
    rows, value = guarded(), some(1)[0]

    rows.write(torch.tensor(3), value)

    assert torch.equal(rows.read(torch.tensor(3)), value)
    assert not rows.read(torch.tensor(-3)).any()


def test_the_next_write_grows_to_what_was_harvested():
    rows, values = growing(), some(12)
    rows.write(torch.arange(12), values)
    rows.write(torch.tensor([40]), some(1))
    rows.write(torch.tensor([3]), values[3:4])
    assert rows.capacity == 12

    rows.harvest()
    rows.write(torch.tensor([40]), values[:1])

    assert (rows.capacity, rows.resizes) == (48, 1)
    assert torch.equal(rows.read(torch.tensor([40, 0, 11])), values[[0, 0, 11]])
    assert not rows.rows[12:40].any()  # what was swallowed does not come back


@pytest.mark.parametrize(("captured", "kept"), [(True, True), (False, False)])
def test_storage_that_a_captured_graph_writes_to_stays(captured, kept):
    rows = growing()
    rows._counters.captured = captured  # there is no graph on a CPU
    old = weakref.ref(rows.rows.untyped_storage())

    rows.write(torch.tensor([20]), some(1), host_idx=[20])

    assert rows.resizes == 1
    assert (old() is not None) is kept


@pytest.mark.parametrize(("options", "lock", "capacity"), [({}, True, 12), ({"max_capacity": 30}, False, 30)])
def test_what_was_harvested_makes_it_grow_only_as_far_as_it_may(options, lock, capacity):
    rows = growing(**options)
    if lock:
        rows.lock()
    rows.write(torch.tensor([10**15]), some(1))
    rows.harvest()

    rows.write(torch.tensor([3]), some(1))

    assert rows.capacity == capacity


def test_a_wrong_index_on_the_device_does_not_make_an_innocent_write_fail():
    rows, value = growing(), some(1)
    counts = recorded(rows)
    rows.write(torch.tensor([2**50]), some(1))
    rows.harvest()

    rows.write(torch.tensor([3]), value)

    assert (rows.capacity, counts().exhaustions) == (12, 1)
    assert torch.equal(rows.rows[3:4], value)


# -- compiled -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["eager", "aot_eager", "inductor"])
def backend(request):
    torch._dynamo.reset()
    if request.param == "inductor":
        try:
            torch.compile(lambda x: x + 1, backend="inductor")(torch.ones(1))
        except Exception as error:
            missing(f"inductor cannot compile here: {type(error).__name__}")
    return request.param


@pytest.mark.parametrize("kind", ["guarded", "growing", "fp8", "int32", "with gradient"])
def test_it_is_traced_without_a_break_and_guards_and_counts_there(backend, kind):
    made = (name(), 10, (4,), torch.float8_e4m3fn if kind == "fp8" else torch.float32, "cpu")
    rows = (GrowingIndexer if kind == "growing" else GuardedIndexer)(*made)
    counts = recorded(rows)

    @torch.compile(fullgraph=True, backend=backend)
    def step(idx, values):
        rows.write(idx, values)
        return rows.read(idx)

    for _ in range(3):
        idx = torch.tensor([3, 12, -1, 0], dtype=torch.int32 if kind == "int32" else torch.int64)
        values, before = torch.randint(1, 8, (4, 4)).to(made[3]), rows.rows.clone()
        if kind == "with gradient":
            values.requires_grad_()
        read = step(idx, values)
        check_invariants(rows, idx[[0, 3]], values[[0, 3]], before)
        assert torch.equal(
            read.float(), torch.where(torch.tensor([[True], [False], [False], [True]]), values.float(), 0)
        )

    rows.harvest()
    assert (counts().bounds_checks, counts().out_of_bounds) == (24, 12)
    assert (counts().used, rows.peak) == (4, 4)


def test_a_compiled_write_goes_to_the_new_storage_after_a_growth(backend):
    rows = GrowingIndexer(name(), 10, (4,), torch.float32, "cpu")
    write = torch.compile(rows.write, fullgraph=True, backend=backend)
    write(torch.tensor([3]), some(1))
    rows.write(torch.tensor([20]), some(1))
    before, values = rows.rows.clone(), some(2)

    write(torch.tensor([21, 4]), values)

    check_invariants(rows, torch.tensor([21, 4]), values, before)
    rows.harvest()
    assert rows.peak == 22


def test_the_operator_keeps_the_rules_of_operators():
    counters = device.Counters(torch.device("cpu"))

    torch.library.opcheck(device.guard, (torch.tensor([1, 9, -1]), counters.table, 5, True, counters.number))


def test_eager_calls_are_still_refused_between_compiled_ones(backend):
    rows = GuardedIndexer(name(), 10, (4,), torch.float32, "cpu")
    torch.compile(rows.write, fullgraph=True, backend=backend)(torch.tensor([50]), some(1))

    with pytest.raises(ullage.BoundsViolation):
        rows.write(torch.tensor([50]), some(1))
