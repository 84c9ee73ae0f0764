"""The V2 runner of a real vLLM, on CPU through Triton's interpreter: the same tokens, use as the scheduler has it."""

from __future__ import annotations

import os

import interpreter
import pytest
from harness import ROOT, missing

from ullage.engines.probe import MEASURED
from ullage.segment import reader
from ullage.segment.layout import ProbeStatus

TRITON = ROOT / ".tools/triton"
PROMPTS, TOKENS = 3, 20


@pytest.fixture(scope="module")
def start(start_offline):
    """Start an engine with the V2 runner."""
    if not (TRITON / "triton").exists():
        missing(f"{TRITON} is not there: see .tools/triton.log")
    path = os.pathsep.join([str(TRITON), *filter(None, [os.environ.get("PYTHONPATH")])])

    def start(**options):
        return start_offline(256, in_process=True, **options, **interpreter.ENVIRONMENT, PYTHONPATH=path)

    return start


@pytest.fixture(scope="module")
def engine(start):
    """An engine as it is by default, that has answered."""
    started = start()
    started.ask("generate", prompts=PROMPTS, tokens=TOKENS)
    return started


@pytest.fixture(scope="module")
def featured(spelling, start, features):
    """An engine that uses more of what there is."""
    return start(arguments=features)


def snapshot(engine):
    (path,) = engine.directory.glob("*.ullage")
    return reader.read(path)


def buffers(engine):
    return {buffer.name: buffer for buffer in snapshot(engine).buffers}


def answers(engine):
    generated = [engine.ask("generate", prompts=PROMPTS, tokens=TOKENS) for _ in range(2)]
    return generated, engine.ask("spell", prompts=PROMPTS, tokens=TOKENS)


def test_with_ngrams_a_grammar_and_cached_prefixes_the_tokens_are_the_same(start, features, featured):
    plain = start(hook=False, arguments=features)

    generated, spelled = answers(featured)
    assert (generated, spelled) == answers(plain)
    assert spelled == [" a b a b a b a b a b a b c"] * PROMPTS
    plain.end()


def test_in_all_that_nothing_is_found_and_core_and_worker_agree(featured):
    seen, held = snapshot(featured), buffers(featured)

    assert seen.events == ()
    assert held["step_tokens"].high_water == held["scheduled_tokens"].high_water
    for mask in (held["grammar_bitmask"], held["worker_bitmask"]):
        assert (mask.capacity, mask.high_water) == (16 * (1 + 3), held["grammar_bitmask"].high_water)
    claims = {(claim.contract, claim.source): claim.shape for claim in seen.claims if not claim.tally}
    assert claims["bitmask.columns", "StructuredOutputManager"] == claims["bitmask.columns", "model runner"] == (8,)
    assert claims["block_table.tokens", "runner block table"] >= claims["block_table.tokens", "scheduler"]
    assert claims["limits", "scheduler"] == claims["limits", "model runner"]
    assert not [claim for claim in seen.claims if claim.violations]


def test_what_the_worker_ran_is_what_the_scheduler_planned(engine):
    seen = buffers(engine)

    planned, ran = seen["scheduled_tokens"], seen["step_tokens"]
    assert (ran.used, ran.high_water) == (planned.used, planned.high_water)
    assert seen["padded_tokens"].high_water == planned.high_water  # without graphs nothing is padded
    assert seen["request_slots"].high_water == seen["running_requests"].high_water == PROMPTS
    assert seen["request_slots"].capacity == seen["running_requests"].capacity


def test_rows_are_as_long_as_the_longest_request(engine):
    seen = buffers(engine)

    longest = 20 + (PROMPTS - 1) * 10
    assert (seen["token_row"].capacity, seen["token_row"].high_water) == (512, longest)
    blocks = -(-(longest + TOKENS - 1) // 32)
    assert (seen["block_table_row"].capacity, seen["block_table_row"].high_water) == (512 // 32, blocks)


def test_a_pool_that_vllm_let_grow_is_a_resize_and_nothing_else_happened(engine):
    seen = snapshot(engine)

    (event,) = seen.events
    assert (event.kind.name, event.subject) == ("RESIZE", "uva_pool.req_states.all_token_ids.write_contents")
    assert event.numbers[:2] == (1, 128)  # the prompts have 90 tokens
    assert not [buffer.name for buffer in seen.buffers if buffer.violations or buffer.out_of_bounds]


def test_every_probe_is_installed_and_those_of_a_step_were_called(engine):
    seen = snapshot(engine)
    probes = {probe.name: probe for probe in seen.probes}

    assert {probe.status for probe in probes.values()} == {ProbeStatus.INSTALLED}
    calls = {probes[f"v2.GPUModelRunner.{name}"].calls for name in ("execute_model", "prepare_inputs", "sample_tokens")}
    assert calls <= {*range(TOKENS - MEASURED, TOKENS + 1)}  # stored with each call that is measured
    assert min(calls) > 0
    assert seen.process.steps == TOKENS
    assert probes["v2.RequestState.add_request"].calls == PROMPTS
    assert probes["GPUModelRunner.execute_model"].calls == 0  # of the V1 runner, which is imported too
    assert seen.process.hook_errors == 0


def test_a_rehearsal_raises_no_high_water_mark(engine):
    before = buffers(engine)

    engine.ask("rehearse")

    after, calls = buffers(engine), {probe.name: probe.calls for probe in snapshot(engine).probes}
    assert calls["v2.GPUModelRunner._dummy_run"] == 2  # profile_run calls it
    assert {name: buffer.high_water for name, buffer in after.items()} == {
        name: buffer.high_water for name, buffer in before.items()
    }
