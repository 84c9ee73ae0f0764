"""What is normal for a busy vLLM raises nothing above info, however strict the holds are."""

from __future__ import annotations

import pytest
from harness import Sidecar, until


@pytest.fixture(scope="module")
def engine(start_offline):
    """An engine with few blocks, and prefix caching as it is by default."""
    return start_offline(40, in_process=False)


@pytest.fixture(scope="module")
def sidecar(engine):
    """Its sidecar; exhaustions need to go on for a second only."""
    watching = Sidecar(engine.directory, ULLAGE_EXHAUSTION_HOLD="1s", ULLAGE_CLEAR_HOLD="1s")
    yield watching
    watching.end()


def value(sidecar, name, buffer):
    return sidecar.value(f"ullage_buffer_{name}", process="vllm0/core", buffer=buffer)


def test_saturated_blocks_with_a_waiting_queue_and_no_preemption(engine, sidecar):
    # No prompt passes the end of a block while two tokens are generated: nobody needs one more while running.
    engine.ask("generate", prompts=14, tokens=2, times=40)

    assert engine.ask("preemptions") == 0
    assert value(sidecar, "exhaustions_total", "kv_blocks") == 0
    assert value(sidecar, "deferrals_total", "kv_blocks") > 0
    assert value(sidecar, "high_water_ratio", "kv_blocks") >= 0.9
    until(lambda: "raised info near_capacity: vllm0/core kv_blocks" in sidecar.log())


def test_chunked_prefill_that_fills_the_token_budget(engine, sidecar):
    assert value(sidecar, "high_water_ratio", "scheduled_tokens") >= 0.9


def test_prefix_caching_of_the_same_prompts(engine, sidecar):
    for _ in range(3):
        engine.ask("generate", prompts=3, tokens=4, times=20)

    until(lambda: value(sidecar, "used_slots", "kv_blocks") == 0)


def test_an_orderly_end(engine, sidecar):
    engine.stop()
    until(lambda: set(sidecar.states().values()) == {"stopped"}, 60)


def test_nothing_above_info_was_raised_in_all_that(sidecar):
    levels = {line.split()[2] for line in sidecar.log().splitlines() if " raised " in line or " adopted " in line}

    assert levels == {"INFO"}
    assert "WARNING" not in sidecar.log()
    assert sidecar.warnings() == {}
