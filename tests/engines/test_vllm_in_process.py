"""vLLM in one process: a watched one does what an unwatched one does, and ullage says what vLLM says."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ullage.segment import reader
from ullage.segment.layout import ProbeStatus
from ullage_sidecar.metrics import Collector
from ullage_sidecar.settings import load
from ullage_sidecar.watch import Watch

LOAD = {"prompts": 8, "tokens": 24}


@pytest.fixture(scope="module")
def plain_tokens(start_offline):
    """What an engine without the hook generates."""
    engine = start_offline(256, in_process=True, hook=False)
    tokens = engine.ask("generate", **LOAD)
    assert list(engine.directory.iterdir()) == []
    engine.end()
    return tokens


@pytest.fixture(scope="module")
def watched(start_offline):
    """A watched engine."""
    return start_offline(256, in_process=True)


def snapshot(engine):
    (path,) = engine.directory.glob("*.ullage")
    return reader.read(path)


def test_the_tokens_are_the_same(watched, plain_tokens):
    assert watched.ask("generate", **LOAD) == plain_tokens


def test_use_equals_vllms_own_statistics_of_the_same_step(watched):
    pairs = watched.ask("steps")

    assert len(pairs) > 20
    assert all(pair["vllm"] is not None for pair in pairs)
    for pair in pairs:
        assert pair["ullage"] == pytest.approx(pair["vllm"])
        assert pair["high_water"] >= pair["vllm"][0] - 1e-9  # vLLM's is one minus the free share
    assert pairs[-1]["vllm"] == [0, 0]
    assert max(pair["vllm"][1] for pair in pairs) == 8


def test_it_is_one_process_with_everything_that_vllm_allocates(watched):
    seen = snapshot(watched)

    assert seen.name == "vllm0/main"
    identity = seen.identity
    assert (identity["engine"], identity["engine_version"], identity["role"]) == ("vllm", "0.32.0", "main")
    assert identity["model_name"].endswith("tiny-llama")
    expected = {
        "kv_blocks": (255, "blocks", "MANAGED", "num_gpu_blocks"),
        "running_requests": (16, "requests", "MANAGED", "max_num_seqs"),
        "scheduled_tokens": (512, "tokens", "MANAGED", "max_num_batched_tokens"),
        "request_slots": (16, "requests", "MANAGED", "max_num_seqs"),
        "step_tokens": (512, "tokens", "MANAGED", "max_num_batched_tokens"),
        "padded_tokens": (512, "tokens", "FIXED", "max_num_batched_tokens"),
        "block_table_row": (16, "blocks", "FIXED", "max_model_len"),
    }
    buffers = {b.name: (b.capacity, b.unit, b.kind.name, b.limit) for b in seen.buffers if not b.inventory}
    assert buffers == expected
    used = {buffer.name: buffer for buffer in seen.buffers}
    assert used["request_slots"].high_water == 8
    assert used["step_tokens"].high_water == used["scheduled_tokens"].high_water > 300
    assert used["block_table_row"].high_water == 4  # 90 + 24 tokens in blocks of 32
    assert used["kv_blocks"].exhaustions == used["kv_blocks"].deferrals == 0


def test_the_runners_tensors_are_its_inventory(watched):
    held = {buffer.name: buffer for buffer in snapshot(watched).buffers if buffer.inventory}

    assert held["runner.input_ids"].limit == "int32[512]"
    assert held["runner.inputs_embeds"].nbytes == 512 * 64 * 4
    assert held["block_table.block_table"].limit == "int32[16,16]"


def test_what_each_side_holds_its_sizes_to_be_is_claimed_and_agrees(watched):
    seen = snapshot(watched)

    claims = {(claim.contract, claim.source): claim for claim in seen.claims if not claim.tally}
    assert {key: (claim.role.name, *claim.shape) for key, claim in claims.items()} == {
        ("limits", "model runner"): ("IS", 512, 16, 512, 256),
        ("limits", "scheduler"): ("IS", 512, 16, 512, 256),
        ("block_table.tokens", "model runner"): ("REQUIRES", 512),
        ("block_table.tokens", "scheduler"): ("REQUIRES", 512),
        ("block_table.tokens", "runner block table"): ("PROVIDES", 512),
        ("block_table.tokens", "input batch.token_ids_cpu"): ("PROVIDES", 512),
        ("rope.rows", "rotary embedding.RotaryEmbedding"): ("PROVIDES", 2048),
        ("rope.rows", "model runner"): ("REQUIRES", 512),
        ("step.tokens", "scheduler"): ("REQUIRES", 512),
        ("step.tokens", "runner.input_ids and 7 more"): ("PROVIDES", 512),
        ("step.tokens", "block table.slot_mapping"): ("PROVIDES", 512),
        ("step.requests", "scheduler"): ("REQUIRES", 16),
        ("step.requests", "runner.seq_lens and 10 more"): ("PROVIDES", 16),
        ("step.requests", "runner.arange_np"): ("PROVIDES", 511),
        ("step.requests", "input batch.token_ids_cpu"): ("PROVIDES", 16),
        ("step.requests", "block table.block_table"): ("PROVIDES", 16),
    }
    table = claims["block_table.tokens", "runner block table"]
    assert table.inputs == {"max_model_len": 512, "columns": 16, "block_size": 32}
    assert not [event for event in seen.events if event.kind.name == "DISAGREEMENT"]


def test_every_probe_is_installed_and_was_called(watched):
    probes = {probe.name: probe for probe in snapshot(watched).probes}

    unused = {
        "Scheduler._preempt_request",
        "KVCacheManager.allocate_slots",  # that and the next count denials only
        "BlockPool.get_new_blocks",
        "EncoderCacheManager.can_allocate",
        "StructuredOutputManager.grammar_bitmask",
        "GPUModelRunner._dummy_run",
        "SpecDecodeBaseProposer",
        "LoRAModelManager",
        "WorkspaceManager",
    }
    assert {probe.status for probe in probes.values()} == {ProbeStatus.INSTALLED}
    assert {name for name, probe in probes.items() if not probe.calls} == unused
    assert sum(probe.errors for probe in probes.values()) == 0


def test_core_and_worker_in_one_process_have_no_more_series_than_the_budget(watched):
    registry = CollectorRegistry(auto_describe=False)
    watch = Watch(lambda: load(environment={}, dir=watched.directory))
    registry.register(Collector(watch.scrape, watch.rows))

    lines = [line for line in generate_latest(registry).decode().splitlines() if 'process="vllm0/main"' in line]

    assert 150 < len(lines) <= 250


def test_an_orderly_end_is_a_stop(watched):
    watched.stop()

    assert snapshot(watched).outcome() == "stopped"


@pytest.mark.fault("a broken probe in a real vLLM", sees="the same tokens; probe_disabled")
@pytest.mark.parametrize("probe", ["vllm.core.scheduler:Scheduling.differs", "instance:EngineInstance.observe"])
def test_a_probe_that_raises_changes_no_token_is_counted_and_switched_off(start_offline, plain_tokens, probe):
    engine = start_offline(256, in_process=True, ULLAGE_STRICT="0")
    engine.ask("break", probe=f"ullage.engines.{probe}")

    assert engine.ask("generate", **LOAD) == plain_tokens
    assert engine.ask("generate", **LOAD) == plain_tokens

    seen = snapshot(engine)
    off = {p.name: p for p in seen.probes if p.status is ProbeStatus.DISABLED}
    assert off
    assert all(p.errors == 10 for p in off.values())
    assert seen.process.hook_errors == sum(p.errors for p in seen.probes)
    assert [event.subject for event in seen.events if event.kind.name == "PROBE_DISABLED"] == list(off)
    engine.end()


def test_vllms_own_switch_selects_the_plugin(program):
    out = program("""
        import os
        from vllm.plugins import load_plugins_by_group
        for value in (None, "", "ullage", "other,ullage", "other"):
            os.environ.pop("VLLM_PLUGINS", None)
            if value is not None:
                os.environ["VLLM_PLUGINS"] = value
            print("ullage" in load_plugins_by_group("vllm.general_plugins"))
        """).finish()

    assert out.split() == ["True", "False", "True", "True", "False"]
