"""What only some engines use: ngram drafts, grammars, a limit that vLLM fits itself; and vLLM's runs of its own."""

from __future__ import annotations

import pytest

from ullage.engines.probe import MEASURED
from ullage.segment import reader
from ullage.segment.layout import ProbeStatus
from ullage_sidecar.diagnosis.joined import joined

TIMES = 66


@pytest.fixture(scope="module")
def engine(spelling, features, start_offline):
    """A watched engine."""
    return start_offline(256, in_process=True, arguments=features)


def snapshot(engine):
    (path,) = engine.directory.glob("*.ullage")
    return reader.read(path)


def buffers(engine):
    return {buffer.name: buffer for buffer in snapshot(engine).buffers if not buffer.inventory}


def test_a_rehearsal_raises_no_high_water_mark(engine):
    engine.ask("generate", prompts=2, tokens=4)
    before = buffers(engine)

    engine.ask("rehearse")

    after, calls = buffers(engine), {probe.name: probe.calls for probe in snapshot(engine).probes}
    assert calls["GPUModelRunner._dummy_run"] >= 2  # and the profile run that it is a part of
    assert before["padded_tokens"].high_water < before["padded_tokens"].capacity
    assert after == before


def test_rows_of_the_grammar_bitmask_are_seen_beside_speculative_tokens(engine):
    assert "grammar_bitmask" not in buffers(engine)

    texts = engine.ask("spell", prompts=4, tokens=16)

    assert [text.replace(" ", "") for text in texts] == ["ab" * 6 + "c"] * 4
    rows = buffers(engine)["grammar_bitmask"]
    assert rows.capacity == 16 * (1 + 3)
    assert 4 < rows.high_water <= 16  # ngrams repeat: there were drafts to check


def test_both_sides_of_the_bitmask_are_claimed_and_fit(engine):
    seen = snapshot(engine)

    claims = {(claim.contract, claim.source): (claim.role.name, *claim.shape) for claim in seen.claims}
    assert claims["bitmask.rows", "StructuredOutputManager"] == ("PROVIDES", 64)
    assert claims["bitmask.rows", "decode batch"] == ("REQUIRES", 64)
    assert claims["bitmask.columns", "StructuredOutputManager"] == ("PROVIDES", 256 // 32)
    assert claims["bitmask.columns", "model runner"] == ("REQUIRES", 256 // 32)
    assert not [event for event in seen.events if event.kind.name in ("DISAGREEMENT", "SHAPE_VIOLATION")]


def test_no_draft_model_no_draft_buffers(engine):
    assert not {"draft_tokens", "draft_arange", "lora_slots", "encoder_cache"} & set(buffers(engine))


def test_between_steps_there_is_no_breadcrumb_and_nothing_was_violated(engine):
    seen = snapshot(engine)

    assert (seen.process.step_begin_ns, seen.process.phase) == (0, 0)
    assert seen.process.batch_requests > 0
    assert {probe.status for probe in seen.probes} == {ProbeStatus.INSTALLED}
    assert seen.process.hook_errors == 0
    assert sum(buffer.out_of_bounds for buffer in seen.buffers) == 0


def test_a_thousand_steps_of_all_of_it_find_nothing_and_change_no_token(engine, spelling, features, start_offline):
    plain = start_offline(256, in_process=True, hook=False, arguments=features)
    _, expected = plain.ask("mix", times=2)
    plain.end()

    steps, tokens = engine.ask("mix", times=TIMES)

    assert steps >= 1000
    assert tokens[:2] == expected
    seen = snapshot(engine)
    assert {event.kind.name for event in seen.events} <= {"PROBE_DISABLED"}  # a busy machine makes our code look slow
    assert seen.process.hook_errors == 0
    calls = {probe.name: probe.calls for probe in seen.probes}
    assert calls["Scheduler.schedule"] >= 1000 - MEASURED
    assert calls["AttentionMetadataBuilder.build"] >= TIMES  # each time, requests come
    assert [contract.disagreements for contract in joined([(seen.name, seen.claims)]) if contract.disagreements] == []
