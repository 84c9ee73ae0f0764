"""Indices that the host knows: what is outside is refused before anything is written, and everything is counted."""

from __future__ import annotations

import pytest
import torch
from indexers import name, recorded, unseen

import ullage
from ullage.indexer import GrowingIndexer, GuardedIndexer, check_invariants

F8 = torch.float8_e4m3fn


def guarded(worst_case=100, row_shape=(4,), dtype=torch.float32, **options):
    return GuardedIndexer(name(), worst_case, row_shape, dtype, "cpu", **options)


def growing(base_capacity=10, row_shape=(4,), dtype=torch.float32, **options):
    return GrowingIndexer(name(), base_capacity, row_shape, dtype, "cpu", **options)


def some(count, row_shape=(4,), dtype=torch.float32):
    return torch.randint(1, 8, (count, *row_shape)).to(dtype)


# -- guarded ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("worst_case", "margin", "capacity"), [(100, 1.1, 111), (0, 1.1, 1), (7, 1, 8), (3, 2.5, 8)])
def test_the_capacity_is_worst_case_times_margin_plus_one(worst_case, margin, capacity):
    rows = guarded(worst_case, margin=margin)

    assert rows.capacity == len(rows.rows) == capacity


def test_what_was_written_reads_back_and_nothing_else_changed():
    rows = guarded()
    for indices in ([3, 1, 110], [0], [1, 109]):
        idx, values, before = torch.tensor(indices), some(len(indices)), rows.rows.clone()

        rows.write(idx, values)

        check_invariants(rows, idx, values, before)
        assert torch.equal(rows.read(idx), values)
    assert rows.peak == 111


REFUSED = {
    "the first beyond": ([5, 111, 3], 111, 1, "raise worst_case to at least 112"),
    "the largest of several": ([111, 200, 150], 200, 1, "3 indices are outside, this one the worst"),
    "a negative one among others": ([200, -1, 7, -2], -2, 3, "3 indices are outside, this one the worst"),
    "a negative one": ([5, 3, -1], -1, 2, "no capacity makes room for a negative index"),
    "the most negative one": ([-(2**63)], -(2**63), 0, "no capacity makes room"),
    "the largest there is": ([2**63 - 1], 2**63 - 1, 0, f"raise worst_case to at least {2**63}"),
}


FITS = [(case, torch.int64) for case in REFUSED]
FITS += [(case, torch.int32) for case in REFUSED if abs(REFUSED[case][1]) < 2**31]


@pytest.mark.parametrize("use", ["write", "read"])
@pytest.mark.parametrize(("case", "width"), FITS)
def test_an_index_outside_is_refused_before_anything_happens(case, use, width):
    indices, index, position, advice = REFUSED[case]
    rows = guarded()
    rows.write(torch.arange(111), some(111))
    before, counts = rows.rows.clone(), recorded(rows)

    with pytest.raises(ullage.BoundsViolation, match=advice) as refused:
        getattr(rows, use)(torch.tensor(indices, dtype=width), *[some(len(indices))] * (use == "write"))

    assert (refused.value.index, refused.value.position, refused.value.capacity) == (index, position, 111)
    assert f"index {index} at position {position} of {len(indices)} is outside [0, 111)" in str(refused.value)
    assert "int(worst_case 100 x margin 1.1) + 1" in str(refused.value)
    assert torch.equal(rows.rows, before)
    outside = sum(not 0 <= i < 111 for i in indices)
    assert (counts().out_of_bounds, counts().bounds_checks) == (outside, len(indices))
    assert (counts().worst_index, counts().observations) == (index, 0)


def test_use_up_to_the_worst_case_is_planned_and_beyond_it_is_not(program, segments):
    running = program("""
        import torch, ullage
        from ullage.indexer import GuardedIndexer
        from ullage.segment import reader
        from ullage.host.process import process
        rows = GuardedIndexer("rows", 100, (4,), torch.float32, "cpu")
        def seen():
            (buffer,) = reader.read(process.session.open().path).buffers
            return buffer
        rows.write(torch.arange(100), torch.ones(100, 4))
        b = seen()
        assert b.used == 100 < b.warn_at == 101 and b.out_of_bounds == 0, b
        assert (b.capacity, b.unit, b.limit, b.kind.name) == (111, "rows", "worst_case x margin", "HARD")
        assert (b.location.name, b.nbytes) == ("HOST", 113 * 16)
        rows.write(torch.tensor([100]), torch.ones(1, 4))
        assert seen().used >= seen().warn_at
        try:
            rows.write(torch.tensor([111]), torch.ones(1, 4))
        except ullage.BoundsViolation:
            print(seen().out_of_bounds, seen().bounds_checks, flush=True)
        import os
        child = os.fork()
        if child == 0:
            rows.write(torch.tensor([7, 8]), torch.ones(2, 4))
            b = seen()
            os._exit(0 if (b.used, b.bounds_checks, b.out_of_bounds, b.capacity) == (9, 2, 0, 111) else 1)
        print(os.waitpid(child, 0)[1], seen().bounds_checks, flush=True)
        """)

    assert running.finish().splitlines() == ["1 102", "0 102"]


def test_an_empty_batch_does_nothing():
    rows = guarded()
    counts = recorded(rows)

    rows.write(torch.empty(0, dtype=torch.int64), some(0))

    assert rows.read(torch.empty(0, dtype=torch.int32)).shape == (0, 4)
    assert (counts().bounds_checks, counts().observations) == (0, 0)


@pytest.mark.parametrize("row_shape", [(), (4,), (2, 3)])
def test_an_index_without_a_dimension_is_one_row(row_shape):
    rows, value = guarded(row_shape=row_shape), some(1, row_shape)[0]

    rows.write(torch.tensor(7), value)

    assert torch.equal(rows.read(torch.tensor(7)), value)
    assert torch.equal(rows.rows[7], value)


KINDS = [torch.float16, torch.bfloat16, F8, torch.float8_e5m2, torch.int32, torch.bool, torch.float64, torch.complex64]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("hide", [lambda rows: rows, unseen], ids=["host", "device"])
@pytest.mark.parametrize("width", [torch.int32, torch.int64])
def test_every_kind_of_row_keeps_its_bits(dtype, hide, width):
    rows, idx, values = hide(guarded(10, (2, 3), dtype)), torch.tensor([3, 0, 8], dtype=width), some(3, (2, 3), dtype)
    before = rows.rows.clone()

    rows.write(idx, values)

    check_invariants(rows, idx, values, before)
    read = rows.read(idx)
    assert read.dtype is dtype
    assert torch.equal(read.view(torch.uint8), values.view(torch.uint8))


def test_a_nan_keeps_its_bits():
    rows = guarded()
    values = torch.tensor([[0x7FC00001, 0x7F800001, -1, 1]], dtype=torch.int32).view(torch.float32)

    rows.write(torch.tensor([2]), values)

    check_invariants(rows, torch.tensor([2]), values)


def test_values_may_be_strided_or_expanded_or_want_a_gradient():
    rows = guarded()
    wide = some(3, (8,)).requires_grad_()
    for values in (wide[:, ::2], some(1).expand(3, 4), some(4, (3,)).T):
        idx = torch.tensor([4, 9, 2, 0, 0, 0])[::2]

        rows.write(idx[:3], values)

        check_invariants(rows, idx[:3], values)
    assert not rows.rows.requires_grad
    assert not rows.read(idx).requires_grad


def test_rows_made_or_written_in_inference_mode_can_be_written_outside_of_it():
    with torch.inference_mode():
        rows = growing()
        rows.write(torch.tensor([1]), some(1))
        rows.write(torch.tensor([50]), some(1))
    values = some(2)

    rows.write(torch.tensor([2, 100]), values)

    check_invariants(rows, torch.tensor([2, 100]), values)
    assert rows.resizes == 2


BAD = {
    "a mask": (TypeError, lambda r: r.write(torch.zeros(3, dtype=torch.bool), some(3)), "mask.nonzero().flatten()"),
    "int16": (TypeError, lambda r: r.write(torch.zeros(3, dtype=torch.int16), some(3)), "must be int32 or int64"),
    "float indices": (TypeError, lambda r: r.read(torch.zeros(3)), "idx is torch.float32"),
    "a list": (TypeError, lambda r: r.write([1, 2], some(2)), "idx is a list; pass a torch tensor"),
    "two dimensions": (ValueError, lambda r: r.read(torch.zeros(2, 2, dtype=torch.int64)), "shape (2, 2)"),
    "indices on meta": (ValueError, lambda r: r.read(torch.zeros(2, dtype=torch.int64, device="meta")), "on meta"),
    "values of another dtype": (
        TypeError,
        lambda r: r.write(torch.arange(3), some(3).half()),
        "convert with .to(torch.f",
    ),
    "values of another width": (ValueError, lambda r: r.write(torch.arange(3), some(3, (5,))), "need (3, 4)"),
    "too few values": (ValueError, lambda r: r.write(torch.arange(3), some(2)), "3 indices of shape (3,)"),
    "one row for many": (ValueError, lambda r: r.write(torch.arange(3), some(3)[0]), "need (3, 4)"),
    "values as a list": (TypeError, lambda r: r.write(torch.arange(1), [[1.0] * 4]), "values is a list"),
    "values on meta": (ValueError, lambda r: r.write(torch.arange(1), some(1).to("meta")), "values are on meta"),
    "a negative bound": (ValueError, lambda r: r.write(torch.arange(1), some(1), bound=-1), "bound is -1"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("hide", [lambda rows: rows, unseen], ids=["host", "device"])
def test_what_does_not_fit_is_said_and_changes_nothing(case, hide):
    error, use, message = BAD[case]
    rows = hide(guarded())
    before, counts = rows.rows.clone(), recorded(rows)

    with pytest.raises(error) as refused:
        use(rows)

    assert message in str(refused.value)
    assert rows.name in str(refused.value)
    rows.harvest()
    assert torch.equal(rows.rows, before)
    assert (counts().bounds_checks, counts().out_of_bounds) == (0, 0)


def test_uint8_values_are_no_fp8_rows():
    rows = guarded(dtype=F8)

    with pytest.raises(TypeError, match=r"values are torch\.uint8, the rows are torch\.float8_e4m3fn"):
        rows.write(torch.arange(3), some(3, dtype=torch.uint8))


MADE_WRONG = {
    "a margin below 1": lambda: guarded(margin=0.9),
    "no margin": lambda: guarded(margin=float("nan")),
    "a negative worst case": lambda: guarded(-1),
    "a worst case that is no whole number": lambda: guarded(1.5),
    "an empty row": lambda: guarded(row_shape=(0,)),
    "another device": lambda: GuardedIndexer(name(), 1, (1,), torch.int64, "meta"),
    "a base beyond the maximum": lambda: growing(20, max_capacity=19),
    "a maximum of nothing": lambda: growing(0, max_capacity=0),
}


@pytest.mark.parametrize("case", MADE_WRONG)
def test_an_indexer_that_cannot_be_is_not_made(case):
    with pytest.raises(ValueError, match=r"\w+ is |must be"):
        MADE_WRONG[case]()


# -- mirrors and bounds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mirror", [torch.tensor, list, lambda i: torch.tensor(i, dtype=torch.int32).numpy()])
def test_a_host_mirror_is_checked_in_place_of_indices_on_the_device(mirror):
    rows = unseen(guarded())
    counts = recorded(rows)
    rows.write(torch.tensor([1, 5]), some(2), host_idx=mirror([1, 5]))

    with pytest.raises(ullage.BoundsViolation, match="index 111 at position 1 of 2"):
        rows.write(torch.tensor([1, 111]), some(2), host_idx=mirror([1, 111]))

    assert (counts().bounds_checks, counts().out_of_bounds, rows.peak) == (4, 1, 6)


MIRRORS = {
    "of another length": (ValueError, [1], "host_idx has 1 indices, idx has 2"),
    "of floats": (TypeError, [1.0, 2.0], "host_idx holds torch.float32"),
    "on a device": (TypeError, torch.zeros(2, dtype=torch.int64, device="meta"), "host_idx is on meta"),
}


@pytest.mark.parametrize("case", MIRRORS)
def test_a_mirror_of_something_else_is_refused(case):
    error, mirror, message = MIRRORS[case]

    with pytest.raises(error, match=message):
        unseen(guarded()).write(torch.tensor([1, 5]), some(2), host_idx=mirror)


@pytest.mark.parametrize("hide", [lambda rows: rows, unseen], ids=["host", "device"])
def test_a_bound_is_held_against_the_capacity_before_anything_is_written(hide):
    rows = hide(guarded())
    rows.write(torch.tensor([1, 110]), some(2), bound=111)

    with pytest.raises(ullage.BoundsViolation, match=r"index 111 promised by bound is outside \[0, 111\)") as refused:
        rows.write(torch.tensor([1, 5]), some(2), bound=112)

    assert refused.value.position is None


# -- growing ------------------------------------------------------------------------------------------------------


def test_it_doubles_until_the_largest_index_fits_and_keeps_its_rows():
    rows = growing(10)
    counts, values = recorded(rows), some(12)
    assert rows.capacity == 12
    rows.write(torch.arange(12), values)
    old = rows.rows
    assert (rows.resizes, rows.is_current(old)) == (0, True)

    rows.write(torch.tensor([23, 12]), some(2))
    assert (rows.capacity, rows.resizes) == (24, 1)
    rows.write(torch.tensor([96, 0]), torch.stack((values[1], values[0])))

    assert (rows.capacity, rows.resizes, rows.peak) == (192, 2, 97)
    assert torch.equal(rows.rows[:12], values)
    assert not rows.rows[24:96].any()
    assert (rows.is_current(old), rows.is_current(rows.rows[3:5])) == (False, True)
    assert (counts().grows, counts().capacity, counts().high_water, counts().out_of_bounds) == (2, 192, 97, 0)


@pytest.mark.parametrize("use", ["a read", "after lock", "a negative index", "beyond max_capacity"])
def test_where_it_may_not_grow_it_guards(use):
    rows = growing(10, max_capacity=50)
    counts = recorded(rows)
    if use == "after lock":
        rows.lock()
    attempt = {
        "a read": lambda: rows.read(torch.tensor([12])),
        "after lock": lambda: rows.write(torch.tensor([12]), some(1)),
        "a negative index": lambda: rows.write(torch.tensor([12, -1]), some(2)),
        "beyond max_capacity": lambda: rows.write(torch.tensor([12, 50]), some(2)),
    }[use]
    words = {
        "a read": "a read does not grow it",
        "after lock": r"and locked: raise base_capacity to at least 13, or write that index before lock\(\)",
        "a negative index": "no capacity makes room",
        "beyond max_capacity": "raise max_capacity to at least 51",
    }[use]

    with pytest.raises(ullage.BoundsViolation, match=words):
        attempt()

    assert (rows.capacity, rows.resizes, counts().grows) == (12, 0, 0)
    assert not rows.rows.any()
    assert counts().out_of_bounds > 0


def test_max_capacity_is_reached_exactly():
    rows = growing(10, max_capacity=50)

    rows.write(torch.tensor([49]), some(1))

    assert rows.capacity == 50
    assert growing(10, max_capacity=11).capacity == 11


def test_growth_without_memory_leaves_everything_as_it_was(monkeypatch):
    rows, values = growing(10), some(12)
    rows.write(torch.arange(12), values)
    counts = recorded(rows)
    zeros = torch.zeros

    def no_memory(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(torch, "zeros", no_memory)
    with pytest.raises(MemoryError, match="no memory to grow from 12 to 24 rows, of which 13 are needed") as refused:
        rows.write(torch.tensor([0, 12]), some(2))
    monkeypatch.setattr(torch, "zeros", zeros)

    assert isinstance(refused.value.__cause__, torch.OutOfMemoryError)
    assert torch.equal(rows.rows, values)
    assert (rows.capacity, rows.resizes) == (12, 0)
    assert (counts().exhaustions, counts().grows, counts().out_of_bounds, counts().observations) == (1, 0, 0, 0)
    rows.write(torch.tensor([12]), some(1))
    assert rows.capacity == 24


def test_an_index_that_no_memory_could_hold_is_a_clear_error():
    rows = growing(10)

    with pytest.raises(MemoryError, match="no memory to grow from 12"):
        rows.write(torch.tensor([2**60]), some(1))


# -- checks for tests ---------------------------------------------------------------------------------------------


def _shrink(rows):
    rows.planned = 1000


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda rows: rows.rows[3].add_(1), "row 3 does not read back"),
        (lambda rows: rows.rows[7].add_(1), "row 7 changed, but was not written"),
        (_shrink, "the capacity is 111, less than 1100"),
    ],
)
def test_broken_invariants_are_named(damage, message):
    rows, idx, values = guarded(), torch.tensor([3, 5]), some(2)
    before = rows.rows.clone()
    rows.write(idx, values)
    damage(rows)

    with pytest.raises(AssertionError, match=message):
        check_invariants(rows, idx, values, before)


def test_an_index_outside_breaks_the_invariants():
    with pytest.raises(AssertionError, match=r"index 111 at position 1 is outside \[0, 111\)"):
        check_invariants(guarded(), torch.tensor([1, 111]), some(2))


def test_a_closed_indexer_guards_and_records_nothing():
    rows = guarded()
    rows.close()
    rows.write(torch.tensor([1]), some(1))

    with pytest.raises(ullage.BoundsViolation):
        rows.write(torch.tensor([111]), some(1))
