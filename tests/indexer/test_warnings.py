"""What the sidecar makes of an indexer: nothing within its worst case, a warning beyond, critical out of bounds."""

from __future__ import annotations

import time

from harness import until

STORY = """
import sys, torch, ullage
from ullage.indexer import GuardedIndexer
rows = GuardedIndexer("draft_rows", worst_case=100, row_shape=(4,), dtype=torch.float32, device="cpu")
assert rows.capacity == 111
def write(index):
    try:
        rows.write(torch.tensor([index]), torch.ones(1, 4))
    except ullage.BoundsViolation as error:
        assert "int(worst_case 100 x margin 1.1) + 1" in str(error), error
        return "refused"
    return "written"
print("ready", flush=True)
for line in sys.stdin:
    print(write(int(line)), flush=True)
"""


def test_within_beyond_and_out_of_bounds(program, sidecar):
    watching = sidecar(ULLAGE_CLEAR_HOLD="200ms")
    running = program(STORY)
    assert running.line() == "ready"

    def write(index):
        running.say(str(index))
        return running.line()

    def used():
        return watching.value("ullage_buffer_used_slots", process="app0/main", buffer="draft_rows")

    assert write(99) == "written"
    until(lambda: used() == 100)
    time.sleep(2.5)  # two ticks and more, in which nothing is raised
    assert watching.warnings() == {}
    assert "near_capacity" not in watching.log()

    assert write(100) == "written"
    until(lambda: watching.warnings() == {("draft_rows", "near_capacity"): "warning"})

    assert write(111) == "refused"
    until(lambda: watching.warnings().get(("draft_rows", "bounds_violation")) == "critical")
    assert write(-1) == "refused"
    assert watching.value("ullage_bounds_violations_total", process="app0/main", buffer="draft_rows") == 2
    assert watching.value("ullage_bounds_checks_total", process="app0/main", buffer="draft_rows") == 4
    assert used() == 101
