"""vLLM's own workspace manager, on the host: growth, lock and overflow, each with its numbers.

Only ``torch.accelerator.empty_cache`` is a stand-in: it wants a device.
"""

from __future__ import annotations

import pytest

START = """
torch.accelerator.empty_cache = lambda: None
from ullage.host.process import process
from ullage.segment.layout import Phase

process.session.open()
manager = workspace.WorkspaceManager(torch.device("cpu"), num_ubatches=2)

def fused_moe(size):
    manager.get_simultaneous(((size,), torch.uint8))

def gather_indices(size):
    manager.get_simultaneous(((size,), torch.uint8))

def warm_up(*sizes):
    process.session.phase.begin_dummy_run(Phase.PROFILE_RUN)
    for size in sizes:
        fused_moe(size)
    process.session.phase.end_dummy_run()

def step(caller, size):
    process.session.phase.begin(Phase.EXECUTE)
    caller(size)
    process.session.phase.end()
"""


@pytest.fixture
def run(run_classes):
    """Run a program with a manager; return what it said, and what its segment says."""
    return lambda code: run_classes(START + code)


def workspace(seen, name="workspace"):
    (found,) = [buffer for buffer in seen.buffers if buffer.name == name]
    return found


def events(seen, kind):
    return [(event.subject, event.numbers[:2], event.detail) for event in seen.events if event.kind.name == kind]


def claims(seen):
    found = [claim for claim in seen.claims if claim.contract == "workspace.bytes" and not claim.tally]
    return {claim.source: (claim.role.name, claim.shape[0], claim.inputs) for claim in found}


def test_it_grows_to_what_the_warm_up_needs_and_steps_use_a_part_of_it(run):
    _, seen = run("warm_up(1024, 4096, 2048); manager.lock(); step(fused_moe, 512); step(fused_moe, 2048)")

    held = workspace(seen)
    assert (held.capacity, held.unit, held.kind.name) == (4096, "bytes", "FIXED")
    assert (held.grows, held.used, held.high_water) == (1, 2048, 2048)
    assert claims(seen) == {"workspace": ("PROVIDES", 4096, {"locked": True})}
    assert events(seen, "DISAGREEMENT") == events(seen, "SHAPE_VIOLATION") == []


def test_a_request_for_more_than_the_locked_size_is_a_violation_with_both_numbers_and_the_caller(run):
    (raised,), seen = run("""
warm_up(4096)
manager.lock()
try:
    step(gather_indices, 10_000)
except AssertionError as error:
    say(str(error))
""")

    assert raised.startswith("Workspace is locked but allocation from")
    ((subject, numbers, detail),) = events(seen, "SHAPE_VIOLATION")
    assert (subject, numbers) == ("workspace.bytes", (4096, 10_240))  # vLLM rounds up to 256
    assert "gather_indices" in detail
    assert workspace(seen).exhaustions == 1
    assert workspace(seen).capacity == 4096


def test_growth_after_the_warm_up_of_one_that_is_not_locked_is_a_disagreement_for_each_caller(run):
    _, seen = run("""
warm_up(4096)
step(fused_moe, 1024)
step(fused_moe, 8192)
step(gather_indices, 6144)
step(gather_indices, 5120)
""")

    assert (workspace(seen).capacity, workspace(seen).grows) == (8192, 1)
    found = claims(seen)
    assert found.pop("workspace") == ("PROVIDES", 4096, {"locked": False})
    assert sorted(need for _, need, _ in found.values()) == [6144, 8192]
    assert sorted(numbers for _, numbers, _ in events(seen, "DISAGREEMENT")) == [(4096, 6144), (4096, 8192)]
    assert events(seen, "SHAPE_VIOLATION") == []


def test_an_unlocked_one_may_grow_and_is_compared_with_what_it_was(run):
    _, seen = run("warm_up(4096); manager.lock(); manager.unlock(); step(fused_moe, 8192)")

    assert claims(seen)["workspace"] == ("PROVIDES", 4096, {"locked": False})
    assert [numbers for _, numbers, _ in events(seen, "DISAGREEMENT")] == [(4096, 8192)]


def test_each_micro_batch_has_a_workspace_of_its_own(run):
    _, seen = run("""
warm_up(4096)
workspace.dbo_current_ubatch_id = lambda: 1
warm_up(2048)
manager.lock()
step(fused_moe, 2048)
""")

    assert workspace(seen).capacity == 4096
    assert workspace(seen, "workspace-1").capacity == 2048
    assert events(seen, "DISAGREEMENT") == []


def test_a_resource_that_is_new_after_the_lock_is_noted_and_those_before_are_held(run):
    _, seen = run("""
manager.get_persistent("scales", (4, 8), torch.float32)
manager.lock()
try:
    manager.get_persistent("more", (4, 8), torch.float32)
except AssertionError:
    pass
""")

    held = [buffer for buffer in seen.buffers if buffer.inventory]
    assert [(buffer.name, buffer.nbytes, buffer.limit) for buffer in held] == [
        ("workspace.persistent", 128, "float32[4,8]")
    ]
    assert events(seen, "HOST_EXCEPTION")[0][0] == "WorkspaceManager.get_persistent_resource"
