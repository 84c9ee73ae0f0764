"""Draft models of both runners: vLLM's own speculators and tables on CPU, at their sizes and at others.

Stand-ins: the runner that holds them, what is read of a configuration, the class of the target, and vLLM's own
replacement of pinned memory on CPU. No draft model was run.
"""

from __future__ import annotations

import pytest


def events(seen, kind="DISAGREEMENT"):
    return {(event.subject, *event.numbers[:2]) for event in seen.events if event.kind.name == kind}


def claims(seen):
    return {(claim.contract, claim.source): claim.shape for claim in seen.claims if not claim.tally}


V2 = """
import vllm.v1.worker.cpu.shm

speculator._target_feeds_hc_residual = lambda config: False
dflash.replace = lambda made, **changes: Some(**{**vars(made), **changes})
dflash.get_parallel_drafting_token_id = lambda config: 0
CPU = torch.device("cpu")

def drafting(reserved, **limits):
    made = config(**limits)
    model = Some(
        get_hidden_size=lambda: 8, get_vocab_size=lambda: 32, use_mla=False,
        hf_config=Some(num_hidden_layers=0),
    )
    vars(made.model_config).update(dtype=torch.float32, use_fp64_gumbel=False, head_dtype=torch.float32)
    vars(made.parallel_config).update(prefill_context_parallel_size=1)
    vars(made.speculative_config).update(
        method="dflash", draft_model_config=model, use_local_argmax_reduction=False,
        enable_adaptive_verification=False, draft_sample_method="probabilistic",
        max_num_new_slots_for_drafting=reserved,
    )
    return made

def runner_v2(drafter, config, **more):
    limits, longest = config.scheduler_config, more.get("max_model_len", config.model_config.max_model_len)
    requests, tokens = limits.max_num_seqs, limits.max_num_batched_tokens
    steps = config.speculative_config.num_speculative_tokens
    if hasattr(drafter, "draft_tokens"):
        drafter.attn_groups = []
    shape = dict(max_num_reqs=requests, max_num_batched_tokens=tokens, device=CPU)
    held = {
        "vllm_config": config, "max_model_len": longest, "attn_groups": [], "speculator": drafter,
        "cudagraph_manager": None,
        "kv_cache_config": Some(num_blocks=4096, kv_cache_groups=[Some(kv_cache_spec=full(64))]),
        "input_buffers": input_batch.InputBuffers(requests, tokens, CPU),
        "req_states": states.RequestState(max_model_len=longest, num_speculative_steps=steps, vocab_size=32, **shape),
        "block_tables": block_table_v2.BlockTables(
            block_sizes=[64], max_num_blocks_per_group=[-(-longest // 128) * 2], **shape
        ),
    }
    return Some(**{**held, **more})
"""
SPECULATORS = [("EagleSpeculator", 0), ("StandaloneARSpeculator", 1), ("dflash.DFlashSpeculator", 4)]


@pytest.mark.parametrize(("speculator", "reserved"), SPECULATORS)
def test_a_speculator_as_vllm_makes_it_has_rows_enough(run_classes, speculator, reserved):
    _, seen = run_classes(
        V2
        + f"""
made = drafting({reserved}, max_model_len=2048, look_ahead=4)
drafter = {speculator}(made, CPU)
if hasattr(drafter, "expanded_input_ids"):
    drafter.expanded_slot_mappings = torch.empty(1, 64 + 8)  # as set_attn does
audit_v2(runner_v2(drafter, made))
"""
    )

    assert events(seen) == set()
    assert events(seen, "SHAPE_VIOLATION") == set()
    owner = f"drafter {speculator.rpartition('.')[2]}"
    made = {(contract, shape) for (contract, source), shape in claims(seen).items() if source.startswith(owner)}
    assert {
        ("step.tokens", (64,)),
        ("step.requests", (8,)),
        ("draft.arange", (9,)),
        ("draft.tokens", (4,)),
    } <= made


@pytest.mark.parametrize(
    ("raised", "found"),
    [
        ("scheduler_config.max_num_seqs = 16", {("step.requests", 8, 16), ("draft.arange", 9, 17)}),
        ("scheduler_config.max_num_batched_tokens = 128", {("step.tokens", 64, 128)}),
        ("speculative_config.num_speculative_tokens = 7", {("draft.tokens", 4, 7)}),
    ],
)
def test_a_speculator_made_for_smaller_limits_disagrees_with_those_in_force(run_classes, raised, found):
    _, seen = run_classes(
        V2
        + f"""
made = drafting(0, max_model_len=2048, look_ahead=4)
drafter = EagleSpeculator(made, CPU)
made.{raised}
audit_v2(runner_v2(drafter, made))
"""
    )

    assert events(seen) == found
    limit, _, now = raised.partition(".")[2].partition(" = ")
    allocated_for = {claim.inputs.get(limit) for claim in seen.claims if claim.source.startswith("drafter Eagle")}
    assert int(now) not in allocated_for


@pytest.mark.parametrize(
    ("reserved", "more", "found"),
    [
        (0, "", {("draft.step_tokens", 64, 80)}),
        (0, "made.scheduler_config.max_num_active_seqs = 12", set()),
        (3, "", {("draft.step_tokens", 64, 80)}),
        (4, "", set()),
    ],
)
def test_tokens_that_are_drafted_at_once_need_rows_for_as_many_sequences_as_are_let_in(
    run_classes, reserved, more, found
):
    _, seen = run_classes(
        V2
        + f"""
made = drafting({reserved}, max_num_seqs=16, max_model_len=2048, look_ahead=4)
{more}
audit_v2(runner_v2(dflash.DFlashSpeculator(made, CPU), made))
"""
    )

    assert events(seen) == found


def test_a_sampler_of_drafts_has_a_row_for_each_token_of_each_sequence(run_classes):
    _, seen = run_classes(
        V2
        + """
made = drafting(4, max_model_len=2048, look_ahead=4)
drafter = dflash.DFlashSpeculator(made, CPU)
drafter.sample_indices = drafter.sample_indices[:28]
audit_v2(runner_v2(drafter, made))
"""
    )

    assert events(seen) == {("draft.sample_rows", 28, 32)}


@pytest.mark.parametrize(("rows", "found"), [(64 + 8, set()), (64, set()), (60, {("draft.step_tokens", 60, 64)})])
def test_a_draft_model_that_sees_one_token_more_of_each_sequence_than_the_target(run_classes, rows, found):
    _, seen = run_classes(
        V2
        + f"""
made = drafting(1, max_model_len=2048, look_ahead=4)
drafter = StandaloneARSpeculator(made, CPU)
drafter.expanded_slot_mappings = torch.empty(1, {rows})
audit_v2(runner_v2(drafter, made))
"""
    )

    assert events(seen) == found


@pytest.mark.parametrize(("limit", "found"), [(1920, {("block_table.tokens/draft", 1920, 1922)}), (1900, set())])
def test_drafts_go_on_past_a_limit_that_was_lowered_for_the_target_alone(run_classes, limit, found):
    _, seen = run_classes(
        V2
        + f"""
made = drafting(0, max_model_len=2048, look_ahead=4)
drafter = EagleSpeculator(made, CPU)
made.model_config.max_model_len = {limit}
audit_v2(runner_v2(drafter, made, max_model_len={limit}))
"""
    )

    assert events(seen) == found


@pytest.mark.parametrize(("rows", "found"), [(2048, set()), (1024, {("rope.rows/draft", 1024, 2048)})])
def test_the_rope_cache_of_a_draft_is_read_at_all_positions_of_the_target(run_classes, rows, found):
    _, seen = run_classes(
        V2
        + f"""
made = drafting(0, max_model_len=2048, look_ahead=4)
drafter = EagleSpeculator(made, CPU)
attention, layer, rope = torch.nn.Module(), torch.nn.Module(), torch.nn.Module()
rope.register_buffer("cos_sin_cache", torch.zeros({rows}, 8))
layer.attn, layer.rotary_emb, drafter.model = attention, rope, torch.nn.ModuleList([layer])
made.compilation_config.static_forward_context = {{"draft.layer.attn": attention}}
audit_v2(runner_v2(drafter, made))
"""
    )

    assert events(seen) == found


@pytest.mark.parametrize(("requests", "found"), [(8, set()), (12, {("step.requests", 8, 12)})])
def test_graphs_of_a_speculator_are_held_against_its_rows(run_classes, requests, found):
    _, seen = run_classes(
        V2
        + f"""
made = drafting(4, max_model_len=2048, look_ahead=4)
drafter = dflash.DFlashSpeculator(made, CPU)
drafter.query_cudagraph_manager = Some(_capture_descs={{"FULL": [Some(num_tokens=60, num_reqs={requests})]}})
audit_v2(runner_v2(drafter, made))
"""
    )

    assert events(seen) == found


def test_the_tensors_of_a_speculator_are_inventory(run_classes):
    _, seen = run_classes(
        V2
        + """
made = drafting(0, max_model_len=2048, look_ahead=4)
audit_v2(runner_v2(EagleSpeculator(made, CPU), made))
"""
    )

    held = {buffer.name: buffer.limit for buffer in seen.buffers if buffer.inventory}
    assert held["drafter.draft_tokens"] == "int64[8,4]"
    assert held["drafter.positions"] == "int64[64]"


@pytest.mark.parametrize(
    ("version", "scheduled", "reserved", "found"),
    [
        ("0.27.1", 56, 1, set()),
        ("0.27.1", 64, 1, {("draft.step_tokens", 64, 72)}),
        ("0.30.0", 64, 1, set()),
        ("0.32.0", 64, 1, set()),
        ("0.32.0", 64, 0, {("draft.step_tokens", 64, 72)}),
    ],
)
def test_slots_for_drafts_are_reserved_for_all_sequences_or_for_each_that_is_scheduled(
    run_classes, version, scheduled, reserved, found
):
    _, seen = run_classes(f"""
import vllm
vllm.__version__ = {version!r}
made = config()
made.scheduler_config.max_num_scheduled_tokens = {scheduled}
made.speculative_config.max_num_new_slots_for_drafting = {reserved}
rows = {{"input_ids": torch.zeros(64), "arange": torch.arange(9)}}
proposer = Some(method="draft_model", net_num_new_slots_per_request=1, **rows)
audit_v1(runner(drafter=proposer, config=made))
""")

    assert events(seen) == found
