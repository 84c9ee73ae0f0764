"""Contracts: claims, checks and comparisons, as a program makes them and a reader sees them."""

from __future__ import annotations

import pytest

from ullage.segment import reader
from ullage.segment.layout import Relation, Role

HEAD = """
import ullage

class Tensor:
    def __init__(self, *shape, dtype="int32"):
        self.shape, self.dtype = shape, dtype

width = ullage.Contract("block_table.width", dims=("columns",), relation=("==",), unit="columns")
TABLE = {"max_model_len": 200000, "block_size": 64}
"""
WAIT = '\nprint("ready", flush=True)\ninput()\n'


@pytest.fixture
def told(program, segments):
    """Run a program to its end of code, and return what a reader sees and what it logged."""

    def tell(code, **environment):
        running = program(HEAD + code + WAIT, **environment)
        assert running.line() == "ready", running.failure()
        (path,) = segments.glob("*.ullage")
        snapshot = reader.read(path)
        running.say("")
        return snapshot, running.failure().strip().splitlines()

    return tell


def claims(snapshot):
    return {claim.source: claim for claim in snapshot.claims if not claim.tally and not claim.witness}


def witnesses(snapshot, contract="block_table.width"):
    """What each side had when the contract was violated."""
    return {
        claim.witness: (claim.source, claim.shape, claim.inputs)
        for claim in snapshot.claims
        if claim.witness and claim.contract == contract
    }


def tally(snapshot, contract="block_table.width"):
    (found,) = [claim for claim in snapshot.claims if claim.tally and claim.contract == contract]
    return found.checks, found.violations


def test_claims_that_disagree_are_known_before_any_traffic(told):
    snapshot, log = told("""
width.claim("runner", (3126,), role="is", inputs=TABLE)
width.claim("indexer builder", (3125,), inputs=TABLE)
""")

    runner = claims(snapshot)["runner"]
    assert (runner.shape, runner.role, runner.relations) == ((3126,), Role.IS, (Relation.EQUAL,))
    assert (runner.unit, runner.dims, runner.inputs) == (
        "columns",
        ("columns",),
        {"max_model_len": 200_000, "block_size": 64},
    )
    assert claims(snapshot)["indexer builder"].shape == (3125,)
    (event,) = snapshot.events
    assert (event.kind.name, event.subject, event.numbers) == ("DISAGREEMENT", "block_table.width", (3126, 3125, 0, 0))
    assert log == ["claims on block_table.width disagree: runner (3126,), indexer builder (3125,)"]
    assert tally(snapshot) == (0, 0)


def test_a_claim_is_the_latest_of_its_source(told):
    snapshot, log = told("""
width.claim("runner", 3126)
width.claim("builder", 3125)
width.claim("builder", 3126)
width.claim("builder", 3126)
""")

    assert claims(snapshot)["builder"].shape == (3126,)
    assert len(log) == 1


def test_a_tensor_is_held_against_the_claims_by_its_shape_alone(told):
    snapshot, log = told("""
width.claim("runner", (64,))
good, bad = Tensor(64), Tensor(65)
assert all(width.check(good, "table") for _ in range(100))
assert [width.check(bad, "table") for _ in range(9)] == [False] * 9
assert width.check(good, "table")
width.claim("runner", (65,))
assert width.check(bad, "table") and not width.check(good, "table")
""")

    assert tally(snapshot) == (112, 10)
    violations = [event for event in snapshot.events if event.kind.name == "SHAPE_VIOLATION"]
    assert [event.count for event in violations] == [1, 2, 4, 8]
    assert violations[0].detail == "table (65,) int32, runner (64,)"
    assert len(log) == 1  # once per contract, whatever the sizes


def test_sizes_of_a_moment_are_compared_and_inputs_asked_for_on_a_mismatch_only(told):
    snapshot, _ = told("""
asked = []
def inputs():
    asked.append(1)
    return {"batch": 4}
assert width.compare((5,), (5,), inputs=inputs) and not asked
assert not width.compare((5,), 9, inputs=inputs, sources=("planner", "kernel")) and asked == [1]
at_least = ullage.Contract("workspace", relation=">=")
assert at_least.compare(9, 5) and not at_least.compare(5, 9)
""")

    assert tally(snapshot) == (2, 1)
    assert tally(snapshot, "workspace") == (2, 1)
    assert claims(snapshot) == {}
    assert snapshot.events[0].detail == "planner (5,), kernel (9,)"
    assert witnesses(snapshot) == {
        "provided": ("planner", (5,), {"batch": 4}),
        "required": ("kernel", (9,), {"batch": 4}),
    }


def test_what_both_sides_had_at_the_last_violation_is_recorded_each_with_its_inputs(told):
    snapshot, _ = told("""
for need in range(8, 0, -1):
    width.compare(0, need, inputs=lambda: ({"rows": 0}, {"batch": need}), sources=("buffer", "batch"))
width.claim("runner", (64,), inputs={"max_model_len": 1024})
width.check(Tensor(65), "table")
""")

    assert witnesses(snapshot) == {
        "provided": ("buffer", (0,), {"rows": 0}),
        "required": ("batch", (1,), {"batch": 1}),
    }
    assert [claim.shape for claim in claims(snapshot).values()] == [(64,)]


def test_a_tensor_that_does_not_fit_is_recorded_with_the_claim_it_misses(told):
    snapshot, _ = told("""
width.claim("runner", (64,), inputs={"max_model_len": 1024})
width.check(Tensor(65), "table")
""")

    assert witnesses(snapshot) == {
        "provided": ("table", (65,), {}),
        "required": ("runner", (64,), {"max_model_len": 1024}),
    }


def test_the_dtype_is_part_of_a_contract_that_has_one(told):
    snapshot, log = told("""
typed = ullage.Contract("metadata", dtype="int32")
typed.claim("planner", (4,))
assert typed.check(Tensor(4)) and not typed.check(Tensor(4, dtype="torch.int64"))
""")

    assert tally(snapshot, "metadata") == (2, 1)
    assert "tensor (4,) int64, the contract (4,) int32" in log[0]


def test_require_refuses_with_both_sides_and_the_likeliest_causes(told, installation):
    told(
        """
width.claim("indexer builder", (5469,), inputs={"max_model_len": 350000, "block_size": 64})
try:
    width.require(Tensor(5470), "block table")
except ullage.ShapeViolation as error:
    assert isinstance(error, RuntimeError)
    assert (error.expected.source, error.expected.shape) == ("indexer builder", (5469,))
    assert error.expected.inputs["block_size"] == 64
    assert (error.actual.source, error.actual.shape) == ("block table", (5470,))
    assert "multiple of 128 tokens" in error.causes[0]
    assert "block_table.width: block table (5470,) int32, but indexer builder (5469,)" in str(error)
else:
    raise AssertionError("not refused")
width.require(Tensor(5469), "block table")
""",
        PYTHONPATH=str(installation),
    )


def test_a_contract_without_claims_is_satisfied_by_everything(told):
    snapshot, log = told("assert width.check(Tensor(7)) and width.check(Tensor(1, 2))")

    assert tally(snapshot) == (2, 0)
    assert log == []


def test_another_number_of_dimensions_is_a_violation(told):
    snapshot, _ = told("width.claim('runner', (4,))\nassert not width.check(Tensor(4, 1))")

    assert snapshot.events[0].numbers[:3] == (4, 4, -1)


def test_inputs_that_are_no_scalars_or_too_many_are_left_out_and_flagged(told):
    snapshot, _ = told("""
width.claim("list", 4, inputs={"a": 1, "b": [1, 2], "c": "x", "d": None, "e": True, "f": 1.5})
width.claim("many", 4, inputs={f"input_{n}": n for n in range(200)})
""")

    few, many = claims(snapshot)["list"], claims(snapshot)["many"]
    assert few.inputs == {"a": 1, "c": "x", "d": None, "e": True, "f": 1.5}
    assert few.inputs_truncated
    assert many.inputs_truncated
    assert 25 < len(many.inputs) < 200


def test_a_closed_contract_frees_its_records(told):
    snapshot, _ = told("""
for n in range(300):
    one = ullage.Contract(f"contract {n}")
    one.claim("a", n)
    one.check(Tensor(n))
    one.close()
assert one.check(Tensor(5))
""")

    assert {claim.contract for claim in snapshot.claims} == {"block_table.width"}
    assert snapshot.process.dropped_claims == 0


def test_claims_that_do_not_fit_are_counted(told):
    snapshot, log = told("""
kept = [ullage.Contract(f"contract {n}") for n in range(300)]
assert all(contract.check(Tensor(1)) for contract in kept)
""")

    assert len(snapshot.claims) == 256
    assert snapshot.process.dropped_claims == 45
    assert len(log) == 1


def test_a_forked_child_counts_for_itself(program, segments):
    program(
        HEAD
        + """
import os
width.claim("runner", 64)
width.check(Tensor(64)); width.check(Tensor(65))
child = os.fork()
if child == 0:
    for _ in range(5): width.check(Tensor(64))
    os._exit(0)
os.waitpid(child, 0)
"""
    ).failure()

    counts = sorted(
        (claim.checks, claim.violations)
        for path in segments.glob("*.ullage")
        for claim in reader.read(path).claims
        if claim.tally
    )
    assert counts == [(2, 1), (5, 0)]


BAD = {
    "a role that is none": ("width.claim('a', 4, role='maybe')", "provides, requires, is"),
    "a negative size": ("width.claim('a', -4)", "0 or more"),
    "a source too long": ("width.claim('s' * 65, 4)", "a source of 64 bytes"),
    "nine dimensions": ("ullage.Contract('c', dims=tuple('abcdefghi'))", "1 to 8"),
    "an unknown relation": ("ullage.Contract('c', relation='<')", "==, >="),
    "no name": ("ullage.Contract('')", "1 to 96 bytes"),
    "not a tensor": ("width.check(7)", "has no attribute 'shape'"),
    "inputs that raise": ("width.compare(1, 2, inputs=lambda: 1 / 0)", "division by zero"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_counted_and_logged_and_the_program_goes_on(told, case):
    code, message = BAD[case]

    snapshot, log = told(f"{code}\nassert width.check(Tensor(1))", ULLAGE_STRICT="0")

    assert snapshot.process.hook_errors == 1
    assert any(message in line for line in log)


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_raised_where_tests_ask_for_it(program, case):
    code, message = BAD[case]

    assert message in program(HEAD + code).failure()


# -- scheduler metadata ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "shape", "size"),
    [
        ("256", (256,), 256),
        ("250, align=64", (256,), 256),
        ("256, 4", (1024,), 1024),
        ("256, connector_fields={'nixl': 2}", (256, 3), 768),
        ("250, 2, {'a': 1, 'b': 3}, 4", (252, 6), 1512),
        ("256, connector_fields={'none': 0}", (256,), 256),
    ],
)
def test_the_shape_of_scheduler_metadata_is_computed_in_one_place(program, arguments, shape, size):
    out = program(f"import ullage; m = ullage.SchedulerMetadata({arguments}); print(m.shape, m.size)").finish()

    assert out.strip() == f"{shape} {size}"


def test_a_tensor_of_an_older_generation_fails_with_exactly_that_reason(told):
    pytest.importorskip("torch")
    snapshot, _ = told("""
import torch
metadata = ullage.SchedulerMetadata(250, align=64)
old = metadata.allocate()
assert tuple(old.shape) == (256,) and old.dtype is torch.int32 and metadata.check(old)
metadata.update(max_num_seqs=256)
assert metadata.shape == (256,)   # the same shape, but not the same tensor
assert not metadata.check(old)
try:
    metadata.require(old)
except ullage.ShapeViolation as error:
    assert "it is of generation 1 (max_num_seqs 250)" in str(error), error
    assert error.causes[0].startswith("it is of generation 1")
else:
    raise AssertionError("not refused")
new = metadata.allocate()
metadata.require(new)
metadata.update(max_num_seqs=512)
other = torch.zeros(256, dtype=torch.int32)   # of nobody, but of an older generation's shape
assert not metadata.check(other) and metadata.check(metadata.allocate())
assert not metadata.check(torch.zeros(512))   # another dtype
""")

    assert tally(snapshot, "scheduler_metadata") == (7, 4)


@pytest.mark.parametrize("arguments", ["0", "-1", "2.5", "True", "4, 0", "4, align=0", "4, connector_fields={'a': -1}"])
def test_sizes_that_are_none_are_refused(program, arguments):
    failed = program(f"import ullage; ullage.SchedulerMetadata({arguments})")

    assert "it must be a whole number" in failed.failure()


# -- watch ----------------------------------------------------------------------------------------------------------


def test_a_tensor_is_watched_by_its_shape_and_a_slice_beyond_it_is_counted(told):
    pytest.importorskip("torch")
    snapshot, _ = told("""
import torch, gc
tensor = torch.zeros(4, 7)
table = ullage.watch("block_table", tensor, dim=1, unit="columns")
assert table.capacity == 7
table.observe(3)
assert table.slice(5).shape == (4, 5)
assert table.slice(9).shape == (4, 7)   # Python clamps; we do not hide it
assert table.slice(2).data_ptr() == tensor.data_ptr()
other = torch.zeros(2, 14)
table.rebind(other)
assert table.slice(9).shape == (2, 9)
del tensor, other; gc.collect()
try:
    table.slice(1)
except ReferenceError as error:
    assert "block_table" in str(error)
""")

    (buffer,) = snapshot.buffers
    assert (buffer.name, buffer.unit, buffer.capacity, buffer.high_water) == ("block_table", "columns", 14, 9)
    assert (buffer.out_of_bounds, buffer.grows, buffer.nbytes) == (1, 1, 4 * 7 * 4)
