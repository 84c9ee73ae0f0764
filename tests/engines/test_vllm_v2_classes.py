"""vLLM's own request states, block tables and UVA pools of the V2 runner: growth, limit and overflow, in numbers.

What stands in for the device is said in the program that drives them.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from harness import Program

from ullage.segment import reader


@pytest.fixture(scope="module")
def driven():
    """Return what the classes did, and what the segment says of it."""
    directory = Path(tempfile.mkdtemp(prefix="ullage-", dir="/dev/shm"))
    program = Program((Path(__file__).parent / "v2_classes.py").read_text(), directory)
    said = json.loads(program.finish().splitlines()[-1])
    (path,) = directory.glob("*.ullage")
    yield said, reader.read(path)
    shutil.rmtree(directory)


@pytest.fixture
def said(driven):
    """What the classes did."""
    return driven[0]


@pytest.fixture
def buffers(driven):
    """The buffers by name."""
    return {buffer.name: buffer for buffer in driven[1].buffers}


@pytest.fixture
def events(driven):
    """The events: (kind, subject, numbers)."""
    return [(event.kind.name, event.subject, event.numbers[:2]) for event in driven[1].events]


@pytest.fixture
def shape_violations(driven):
    """The shape violations: (contract, numbers, what was said)."""
    return [
        (event.subject, event.numbers[:2], event.detail)
        for event in driven[1].events
        if event.kind.name == "SHAPE_VIOLATION"
    ]


def test_a_pool_that_grew_to_the_next_power_of_two_was_resized(said, buffers, events):
    pool = buffers["uva_pool.req_states.all_token_ids.write_contents"]

    assert said["pool"] == [8, 4]  # three tokens were written, and then eight, in turns
    assert events[:2] == [("RESIZE", pool.name, (1, 4)), ("RESIZE", pool.name, (4, 8))]
    assert (pool.grows, pool.unit, pool.location.name, pool.kind.name) == (3, "elements", "PINNED", "FIXED")


def test_pools_that_did_not_grow_are_no_buffers(buffers):
    assert [name for name in buffers if name.startswith("uva_pool")] == [
        "uva_pool.req_states.all_token_ids.write_contents"
    ]


def test_a_prompt_as_long_as_its_row_fits(said, buffers):
    assert said["fits"] == [1, 2, 3, 0, 0, 0, 0, 0]
    assert (buffers["token_row"].capacity, buffers["token_row"].observations) == (8, 5)


def test_a_longer_one_lands_in_a_neighbours_row_and_was_reported_before(said, buffers, events):
    assert said["neighbour"] == [7, 7, 5, 5, 5, 5, 5, 5]
    assert (buffers["token_row"].out_of_bounds, buffers["token_row"].worst_index) == (1, 9)
    assert ("BOUNDS_VIOLATION", "token_row", (10, 8)) in events


def test_a_request_without_a_slot_is_an_exhaustion(said, buffers):
    slots = buffers["request_slots"]

    assert said["no slot"] == "No free indices"
    assert (slots.capacity, slots.exhaustions, slots.out_of_bounds) == (4, 1, 0)


@pytest.mark.parametrize(
    ("group", "capacity", "needed", "refusal"), [(0, 4, 5, "no column"), (1, 2, 4, "no column in the other group")]
)
def test_a_block_beyond_its_row_is_reported_with_the_numbers_that_vllm_refuses_it_with(
    said, buffers, group, capacity, needed, refusal
):
    row = buffers[f"block_table_row-{group}"]

    assert said[refusal].endswith(f"exceeds row capacity ({needed} > {capacity})")
    assert (row.capacity, row.high_water, row.out_of_bounds, row.worst_index) == (capacity, needed, 1, needed - 1)


def test_a_bitmask_of_another_vocabulary_is_reported_with_the_numbers_that_torch_refuses_it_with(
    said, buffers, shape_violations
):
    assert "tensor a (4040) must match the size of tensor b (4041)" in said["no column in the mask"]
    assert shape_violations == [("bitmask.columns", (4041, 4040), "mask of a step (4041,), model runner (4040,)")]
    assert (buffers["worker_bitmask"].capacity, buffers["worker_bitmask"].high_water) == (4, 3)


def test_what_a_table_reaches_is_claimed_in_tokens_and_is_enough(driven):
    shapes = {claim.source: claim.shape for claim in driven[1].claims if claim.contract == "block_table.tokens"}

    assert shapes["runner block table 0"] == shapes["runner block table 1"] == shapes["model runner"] == (8,)
    assert not [event for event in driven[1].events if event.kind.name == "DISAGREEMENT"]


def test_the_tensors_are_the_inventory(buffers):
    held = {name: buffer.limit for name, buffer in buffers.items() if buffer.inventory}

    assert held["req_states.all_token_ids"] == "int32[4,8]"
    assert [name for name in held if name.endswith("input_ids")] == ["runner.input_ids"]
    assert held["block_tables.input_block_tables"] == "int32[4,4]"
