"""What the indexers promise on CUDA: no wait for the device, graphs that guard and count when replayed, streams."""

from __future__ import annotations

import contextlib

import pytest
import torch
from indexers import name, recorded

import ullage
from ullage.indexer import GrowingIndexer, GuardedIndexer, check_invariants

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")]


def guarded(worst_case=100):
    return GuardedIndexer(name(), worst_case, (128,), torch.float32, "cuda")


def growing(base_capacity=100):
    return GrowingIndexer(name(), base_capacity, (128,), torch.float32, "cuda")


def indices(*values):
    return torch.tensor(values, device="cuda")


def some(count):
    return torch.rand(count, 128, device="cuda") + 1


def harvested(rows):
    """Harvest until everything has arrived: the first call asks, the second one reads."""
    for _ in range(2):
        torch.cuda.synchronize()
        rows.harvest()


@contextlib.contextmanager
def no_waiting():
    """Raise where the host would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_nothing_waits_for_the_device():
    rows, idx, values = guarded(), indices(3, 111, -1), some(3)
    counts = recorded(rows)
    rows.write(idx, values)
    harvested(rows)

    with no_waiting():
        for _ in range(10):
            rows.write(idx, values)
            rows.write(idx[:1], values[:1], host_idx=[3])
            rows.write(idx[:1], values[:1], bound=4)
            rows.read(idx)
            rows.harvest()

    harvested(rows)
    check_invariants(rows, idx[:1], values[:1])
    assert not rows.read(idx[1:]).any()
    rows.close()
    assert counts().bounds_checks == 11 * 3 + 10 * (1 + 1 + 3) + 2
    assert counts().out_of_bounds == (11 + 10) * 2 + 2


def test_what_the_host_knows_is_refused_before_anything_is_launched():
    rows = guarded()

    with no_waiting(), pytest.raises(ullage.BoundsViolation):
        rows.write(indices(111), some(1), host_idx=[111])

    assert not rows.rows.any()


def test_a_violation_inside_a_replay_is_swallowed_and_counted():
    rows, idx, values = guarded(), indices(1, 2, 3), some(3)
    counts = recorded(rows)
    graph = torch.cuda.CUDAGraph()
    rows.write(idx, values)
    harvested(rows)
    with torch.cuda.graph(graph):
        rows.write(idx, values)
        read = rows.read(idx)
        rows.harvest()  # does nothing here

    before = rows.rows.clone()
    for batch in ((1, 2, 3), (4, 111, -1), (5, 6, 2**40)):
        idx.copy_(indices(*batch))
        graph.replay()

    harvested(rows)
    inside = [0, 1]
    check_invariants(rows, indices(5, 6), values[inside])
    assert not (before != rows.rows).any(dim=1)[7:].any()
    assert torch.equal(read, torch.stack((values[0], values[1], torch.zeros(128, device="cuda"))))
    assert (counts().bounds_checks, counts().out_of_bounds, rows.peak) == (3 + 3 * 6, 6, 7)


def test_it_grows_before_a_capture_and_refuses_after_lock():
    rows, values = growing(), some(2)
    rows.write(indices(3, 500), values, host_idx=[3, 500])
    assert rows.resizes == 3
    idx = indices(3, 4)
    graph = torch.cuda.CUDAGraph()
    rows.write(idx, values)
    with torch.cuda.graph(graph):
        rows.write(idx, values)
    rows.lock()

    with pytest.raises(ullage.BoundsViolation, match="and locked"):
        rows.write(indices(5000), some(1), host_idx=[5000])

    graph.replay()
    torch.cuda.synchronize()
    check_invariants(rows, idx, values)


def test_a_graph_that_was_captured_before_a_growth_writes_to_memory_that_stays():
    rows, idx, values = growing(), indices(3, 4), some(2)
    graph = torch.cuda.CUDAGraph()
    rows.write(idx, values)
    with torch.cuda.graph(graph):
        rows.write(idx, values)
    old = rows.rows.data_ptr()
    rows.write(indices(500), some(1), host_idx=[500])
    others = [torch.zeros(118, 128, device="cuda") for _ in range(50)]

    graph.replay()

    torch.cuda.synchronize()
    assert all(other.data_ptr() != old and not other.any() for other in others)


def test_two_streams_lose_no_count():
    rows = guarded()
    counts = recorded(rows)
    streams, batches = [torch.cuda.Stream() for _ in range(2)], (indices(1, 111), indices(2, 3, -1))
    values = some(3)
    torch.cuda.synchronize()

    for _ in range(300):
        for stream, batch in zip(streams, batches, strict=True):
            with torch.cuda.stream(stream):
                rows.read(batch)
                rows.write(batch, values[: len(batch)])

    harvested(rows)
    assert (counts().bounds_checks, counts().out_of_bounds) == (300 * 2 * 5, 300 * 2 * 2)


def test_a_growth_waits_for_what_other_streams_write():
    rows, idx, values = growing(), torch.arange(100, device="cuda"), some(100)
    other = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        torch.cuda._sleep(100_000_000)
        rows.write(idx, values)

    rows.write(indices(500), some(1), host_idx=[500])

    check_invariants(rows, idx, values)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_write_guards_and_counts(mode):
    torch._dynamo.reset()
    rows, values = guarded(), some(3)
    counts = recorded(rows)
    write = torch.compile(rows.write, fullgraph=True, mode=mode)

    for _ in range(6):
        write(indices(1, 111, -1), values)

    harvested(rows)
    check_invariants(rows, indices(1), values[:1])
    assert (counts().bounds_checks, counts().out_of_bounds) == (18, 12)
