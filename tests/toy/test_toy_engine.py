"""Another engine than vLLM: one module of probes and one line in the registry, and it is watched like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import until

from ullage.segment import reader

STARTS = 20
RANKS = 4
SERVES = """
import sys
sys.path.insert(0, sys.argv[1])
import toy
if __name__ == "__main__":
    for line in sys.stdin:
        engine = toy.serve()
        print(engine.step(901), flush=True)
        sys.stdin.readline()
        engine.shutdown()
        print("down", flush=True)
"""


@pytest.fixture
def serving(program):
    """A program that starts the engine at a line, and shuts it down at the next one."""
    return program(SERVES, Path(__file__).parent, TOY_PLUGINS="toy_probes", PYTHONPATH=str(Path(__file__).parent))


def living(segments):
    return {seen.name: seen for seen in map(reader.read, segments.glob("*.ullage")) if seen.alive}


def test_four_ranks_that_start_at_once_have_the_names_and_ranks_that_the_engine_states_each_time(serving, segments):
    for start in range(STARTS):
        serving.say("start")
        assert serving.line() == str(["done"] * RANKS)

        seen = living(segments)
        ranks = {f"toy{start}/core-tp{rank}": rank for rank in range(RANKS)}
        assert seen.keys() == {f"toy{start}/api", *ranks}
        assert {name: seen[name].identity["tp_rank"] for name in ranks} == ranks
        assert {name: seen[name].buffers[0].capacity for name in ranks} == {n: 1000 + r for n, r in ranks.items()}
        assert len({each.engine_id for each in seen.values()}) == 1

        serving.say("stop")
        assert serving.line() == "down"
    serving.finish()


def test_its_pools_have_metrics_and_a_histogram_and_it_ends_in_order(serving, segments, sidecar):
    watched = sidecar()
    serving.say("start")
    serving.line()

    pool = {"process": "toy0/core-tp3", "buffer": "kv_tokens"}
    until(lambda: watched.value("ullage_buffer_used_slots", **pool) == 901)
    assert watched.value("ullage_buffer_occupancy_ratio_bucket", le="0.95", **pool) == 1
    assert watched.value("ullage_process_steps_total", process="toy0/core-tp3") == 1
    assert watched.states() == dict.fromkeys(["toy0/api", *(f"toy0/core-tp{rank}" for rank in range(RANKS))], "running")

    serving.say("stop")
    serving.line()
    serving.finish()
    snapshots = [reader.read(path) for path in segments.glob("*.ullage")]
    assert {each.outcome(snapshots) for each in snapshots} == {"stopped"}
    assert sum(each.process.hook_errors for each in snapshots) == 0


def test_a_version_that_the_probes_were_not_made_for_is_left_alone(program, segments):
    folder = Path(__file__).parent
    running = program(
        "import sys; sys.path.insert(0, sys.argv[1]); import toy; toy.__version__ = '2.0'; toy.load_plugins()",
        folder,
        TOY_PLUGINS="toy_probes",
    )

    _, errors = running.process.communicate(timeout=60)

    assert "off: toy 2.0; known are 1.0 up to, not with, 2.0" in errors
    assert list(segments.iterdir()) == []
