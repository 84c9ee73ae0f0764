"""vLLM's own FlashAttention builders on CPU: what was allocated, what the planner made, what the kernel will want.

The planner itself is a CUDA function: a stand-in returns a tensor of the size that each test says. What FlashAttention
does with it was read, not run.
"""

from __future__ import annotations

import pytest

from ullage_sidecar.diagnosis.joined import joined

START = """
def layer(window=(-1, -1), heads=(8, 2, 128)):
    return Some(impl=Some(sliding_window=window, num_heads=heads[0], num_kv_heads=heads[1], head_size=heads[2]))

def builder(allocated=33, planner=13, layers=None, cls=flash_attn.FlashAttentionMetadataBuilder):
    made = object.__new__(cls)
    CONFIG.compilation_config.static_forward_context = layers or {"layer": layer()}
    made.kv_cache_spec = full(64)
    made.vllm_config, made.layer_names = CONFIG, list(layers or ["layer"])
    made.cache_config, made.kv_cache_dtype, made.block_size = Some(cache_dtype="auto"), torch.bfloat16, 64
    made.num_heads_q, made.num_heads_kv, made.headdim, made.dcp_world_size = 8, 2, 128, 1
    made.aot_schedule, made.aot_sliding_window = True, (-1, -1)
    made.use_full_cuda_graph, made.max_cudagraph_size = True, 8
    made.scheduler_metadata = torch.zeros(allocated, dtype=torch.int32)
    flash_attn.get_scheduler_metadata = lambda **arguments: torch.ones(planner, dtype=torch.int32)
    return made

def plan(builder, batch=4, causal=True, splits=32, query=1):
    made = builder._get_scheduler_metadata(
        aot_schedule=True, batch_size=batch, cu_query_lens=None, max_query_len=query, seqlens=None, max_seq_len=100,
        causal=causal, max_num_splits=splits,
    )
    return builder._store_scheduler_metadata(made)

process.session.open()
"""


def events(seen, kind="SHAPE_VIOLATION"):
    return [(event.subject, event.numbers[:2]) for event in seen.events if event.kind.name == kind]


@pytest.mark.parametrize(
    ("batch", "planner", "arguments"),
    [
        (4, 1 + 4 * 3, ""),
        (5, 1 + 8 * 3, ""),
        (4, 1 + 4 * 2, "causal=False"),
        (4, 1 + 4 * 2, "splits=1"),
        (4, 1 + 4 * 1, "splits=1, causal=False"),
    ],
)
def test_what_the_kernel_will_want_is_no_violation(run_classes, batch, planner, arguments):
    (size,), seen = run_classes(START + f"say(plan(builder(planner={planner}), batch={batch}, {arguments}).shape[0])")

    assert size == planner
    assert events(seen) == []
    checks = {claim.contract: claim.checks for claim in seen.claims if claim.tally}
    assert checks == {"attention.scheduler_metadata": 1, "attention.metadata_buffer": 1}


def test_a_planner_that_counts_otherwise_than_the_kernel_is_a_violation_with_the_facts_of_both(run_classes):
    _, seen = run_classes(START + "plan(builder(planner=9), splits=1, causal=False)")

    assert events(seen) == [("attention.scheduler_metadata", (9, 5))]
    (contract,) = [one for one in joined([(seen.name, seen.claims)]) if one.name == "attention.scheduler_metadata"]
    facts = {claim.source: claim.inputs for claim in seen.claims if claim.contract == contract.name and not claim.tally}
    assert facts["planner"] == facts["kernel"]
    assert facts["kernel"]["padded_batch"] == 4


def test_layers_with_a_window_that_was_not_planned_for_are_a_violation(run_classes):
    layers = '{"one": layer(), "two": layer(window=(99, 0))}'

    _, seen = run_classes(START + f"plan(builder(planner=9, layers={layers}), causal=False, query=4)")

    assert events(seen) == [("attention.scheduler_metadata", (9, 13))]


@pytest.mark.parametrize("arguments", ["splits=0", "causal=torch.ones(4, device='meta')"])
def test_what_the_host_cannot_know_is_not_judged_and_no_tensor_is_evaluated(run_classes, arguments):
    _, seen = run_classes(START + f"plan(builder(planner=21), {arguments})")

    assert events(seen) == []


def test_more_than_was_allocated_is_a_violation_before_it_is_copied(run_classes):
    _, seen = run_classes(
        START
        + """
try:
    plan(builder(allocated=9, planner=13))
except RuntimeError:
    pass
"""
    )

    assert events(seen) == [("attention.metadata_buffer", (9, 13))]


def test_the_same_holds_for_multi_head_latent_attention(run_classes):
    _, seen = run_classes(
        START
        + """
from vllm.v1.attention.backends import fa_utils
fa_utils.flash_attn_varlen_func = fa_utils.get_scheduler_metadata = None
from vllm.v1.attention.backends.mla import flashattn_mla

made = builder(allocated=9, cls=flashattn_mla.FlashAttnMLAMetadataBuilder)
flashattn_mla.get_scheduler_metadata = lambda **arguments: torch.ones(13, dtype=torch.int32)
made.fa_aot_schedule, made.num_heads, made.page_size = True, 8, 64
made.mla_dims, made.kv_cache_spec = Some(qk_rope_head_dim=64, kv_lora_rank=512), Some(dtype=torch.bfloat16)
made._schedule_decode(4, None, 1, None, 100, True, 32)
"""
    )

    assert events(seen) == [("attention.metadata_buffer", (9, 13))]


@pytest.mark.parametrize(("heads", "found"), [((8, 2, 128), []), ((8, 8, 128), [("attention.heads", (2, 8))])])
def test_layers_with_other_heads_than_the_planner_counts_on_disagree_before_any_traffic(run_classes, heads, found):
    _, seen = run_classes(
        START
        + f"""
made = builder(layers={{"draft": layer(heads={heads})}})
one = Some(metadata_builders=[made], layer_names=["draft"], kv_cache_group_id=0)
audit_v1(runner(attn_groups=[[one]]))
"""
    )

    assert events(seen, "DISAGREEMENT") == found
