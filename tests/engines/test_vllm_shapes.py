"""vLLM's own classes, with buffers of the sizes that reports name: what is said of them, when, and why."""

from __future__ import annotations

import pytest

from ullage_sidecar.diagnosis.joined import joined


def events(seen, kind):
    return [event for event in seen.events if event.kind.name == kind]


INDEXER = """
import time

def prepare(builder, columns, lens=(3, 1)):
    lens = torch.tensor(lens, dtype=torch.int32)
    starts = torch.cumsum(lens, 0, dtype=torch.int32) - lens
    return builder._prepare_decode_tensors(
        seq_lens=torch.full((len(lens),), 1000, dtype=torch.int32),
        block_table=torch.zeros((len(lens), columns), dtype=torch.int32),
        decode_lens=lens, decode_lens_cpu=lens, query_start_loc=starts, num_decodes=len(lens),
        num_decode_tokens=int(lens.sum()), use_native=False, next_n=3, max_decode_len=int(lens.max()),
    )
"""


def test_an_indexer_whose_copy_is_narrower_than_the_table_is_reported_before_it_raises_and_explained(run_classes):
    (raised,), seen = run_classes(
        INDEXER
        + """
try:
    prepare(sparse(3125), 3126)
except RuntimeError as error:
    say([time.time_ns(), str(error)])
"""
    )

    assert "The expanded size of the tensor (3125) must match the existing size (3126)" in raised[1]
    (violation,) = events(seen, "SHAPE_VIOLATION")
    assert (violation.subject, violation.numbers[:2]) == ("block_table.width", (3125, 3126))
    assert violation.time_ns < raised[0]
    claims = {claim.source: (claim.shape, claim.inputs) for claim in seen.claims if not claim.tally}
    known = {"max_model_len": 200_000, "block_size": 64, "num_speculative_tokens": 2}
    copy = "DeepseekV32IndexerMetadataBuilder.expanded_block_table_buffer"
    assert claims == {"runner block table": ((3126,), known), copy: ((3125,), known)}
    (contract,) = joined([(seen.name, seen.claims)])
    (finding,) = map(contract.explained, contract.violations)
    assert any("aligned(ceil(max_model_len / block_size), 128 tokens) = 3126" in cause for cause in finding.causes[:3])


def test_an_indexer_whose_copy_fits_is_left_alone(run_classes):
    (shape,), seen = run_classes(INDEXER + "process.session.open(); say(list(prepare(sparse(3126), 3126)[1].shape))")

    assert shape == [4, 3126]
    assert events(seen, "SHAPE_VIOLATION") == []
    assert [claim.checks for claim in seen.claims] == [1]


def test_more_decode_tokens_than_the_indexer_has_rows_are_reported(run_classes):
    _, seen = run_classes(
        INDEXER
        + """
try:
    prepare(sparse(3126, rows=3), 3126)
except RuntimeError:
    pass
"""
    )

    (violation,) = events(seen, "SHAPE_VIOLATION")
    assert (violation.subject, violation.numbers[:2]) == ("step.tokens", (3, 4))


# -- the audit, before any traffic --------------------------------------------------------------------------------


def test_what_fits_is_claimed_and_nothing_is_reported(run_classes):
    _, seen = run_classes("audit_v1(runner(sparse(3126)))")

    assert events(seen, "DISAGREEMENT") == []
    sizes = {(claim.contract, claim.role.name, claim.shape) for claim in seen.claims if not claim.tally}
    assert {
        ("block_table.width", "IS", (3126,)),
        ("block_table.tokens", "PROVIDES", (3126 * 64,)),
        ("block_table.tokens", "REQUIRES", (200_000,)),
        ("step.tokens", "PROVIDES", (64,)),
        ("step.requests", "PROVIDES", (8,)),
    } <= sizes


@pytest.mark.parametrize(
    ("max_model_len", "block_size", "copy", "table"),
    [(200_000, 64, 3125, 3126), (350_000, 64, 5469, 5470), (106_752, 64, 1668, 1668)],
)
def test_a_copy_without_the_alignment_of_the_table_disagrees_before_any_traffic(
    run_classes, max_model_len, block_size, copy, table
):
    _, seen = run_classes(f"""
limits = config(max_model_len={max_model_len})
audit_v1(runner(sparse({copy}, block_size={block_size}, config=limits), config=limits))
""")

    differ = [(event.subject, sorted(event.numbers[:2])) for event in events(seen, "DISAGREEMENT")]
    assert differ == ([("block_table.width", [copy, table])] if copy != table else [])


def test_a_kernel_with_smaller_blocks_has_more_columns_for_the_same_tokens(run_classes):
    _, seen = run_classes("audit_v1(runner(sparse(200_192 // 64, block_size=64), spec=full(256)))")

    assert events(seen, "DISAGREEMENT") == []
    claims = {claim.contract: claim.shape for claim in seen.claims if claim.source == "runner block table"}
    assert claims == {"block_table.width/blocks of 64": (3128,), "block_table.tokens": (200_192,)}


def test_a_table_for_a_limit_that_was_raised_since_is_too_short(run_classes):
    _, seen = run_classes("audit_v1(runner(config=config(max_model_len=653_440), max_model_len=1_048_576))")

    found = {(event.subject, *event.numbers[:2]) for event in events(seen, "DISAGREEMENT")}
    assert found == {("block_table.tokens", 653_440, 1_048_576)}
    (contract,) = [one for one in joined([(seen.name, seen.claims)]) if one.disagreements]
    stale = "max_model_len is 653440 for runner block table, 1048576 for model runner"
    assert stale in contract.findings()[0][1].text


def test_a_limit_that_was_lowered_since_is_no_fault(run_classes):
    _, seen = run_classes("audit_v1(runner(sparse(3126), max_model_len=10_000))")

    assert events(seen, "DISAGREEMENT") == []


def test_a_graph_for_more_sequences_than_there_are_rows(run_classes):
    _, seen = run_classes("""
graphs = Some(cudagraph_keys={"FULL": {Some: 1}})
graphs.cudagraph_keys = {"FULL": [Some(num_tokens=16, num_reqs=16)], "PIECEWISE": [Some(num_tokens=64, num_reqs=None)]}
audit_v1(runner(cudagraph_dispatcher=graphs))
""")

    found = {(event.subject, *event.numbers[:2]) for event in events(seen, "DISAGREEMENT")}
    assert found == {("step.requests", 8, 16)}


ROPE = """
def rope(rows):
    rope = torch.nn.Module()
    rope.register_buffer("cos_sin_cache", torch.zeros(rows, 8))
    return rope

def model(attends, embeds, vision=None):
    model, layer = torch.nn.Module(), torch.nn.Module()
    layer.attn, layer.rotary_emb, model.layer = attends, embeds, layer
    if vision is not None:
        model.tower = torch.nn.Module()
        model.tower.attn, model.tower.rotary_emb = torch.nn.Module(), vision
    return model

attention, drafts = torch.nn.Module(), torch.nn.Module()
CONFIG.compilation_config.static_forward_context = {"model.layer.attn": attention, "draft.layer.attn": drafts}
"""


def test_a_rope_cache_shorter_than_the_longest_sequence(run_classes):
    _, seen = run_classes(ROPE + "audit_v1(runner(model=model(attention, rope(163_840))))")

    found = [(event.subject, *event.numbers[:2]) for event in events(seen, "DISAGREEMENT")]
    assert found == [("rope.rows", 163_840, 200_000)]


def test_the_rope_cache_of_a_vision_tower_need_not_reach_that_far(run_classes):
    _, seen = run_classes(ROPE + "audit_v1(runner(model=model(attention, rope(200_000), vision=rope(8192))))")

    assert events(seen, "DISAGREEMENT") == []


@pytest.mark.parametrize(("limit", "found"), [(4096, []), (8192, [("rope.rows/draft", 4096, 8192)])])
def test_the_rope_cache_of_a_draft_must_reach_as_far_as_it_is_asked(run_classes, limit, found):
    _, seen = run_classes(
        ROPE
        + f"""
proposer = Some(model=model(drafts, rope(4096)), method="eagle", arange=torch.arange(64), input_ids=torch.zeros(64))
audit_v1(runner(model=model(attention, rope(200_000)), drafter=proposer, effective_drafter_max_model_len={limit}))
"""
    )

    assert [(event.subject, *event.numbers[:2]) for event in events(seen, "DISAGREEMENT")] == found


def test_the_arange_of_a_proposer_holds_the_end_of_the_last_sequence_too(run_classes):
    _, seen = run_classes("""
proposer = Some(method="eagle", arange=torch.arange(8), input_ids=torch.zeros(64))
audit_v1(runner(drafter=proposer))
""")

    found = [(event.subject, *event.numbers[:2]) for event in events(seen, "DISAGREEMENT")]
    assert found == [("draft.arange", 8, 9)]


OFFSETS = """
class TritonMLABackend:
    pass

cache = torch.empty((9000, 480, 576), device="meta")
CONFIG.compilation_config.static_forward_context = {"layer": Some(kv_cache=cache)}
one = Some(metadata_builders=[], layer_names=["layer"], kv_cache_group_id=0, backend=TritonMLABackend)
made = runner(attn_groups=[[one]])
made.kv_cache_config.num_blocks = 9000
import vllm
"""


@pytest.mark.parametrize(("version", "found"), [("0.22.1", [("kv_cache.blocks", 7768, 9000)]), ("0.32.0", [])])
def test_more_blocks_than_a_kernel_with_offsets_of_32_bits_can_address(run_classes, version, found):
    _, seen = run_classes(OFFSETS + f"vllm.__version__ = {version!r}; audit_v1(made)")

    assert [(event.subject, *event.numbers[:2]) for event in events(seen, "DISAGREEMENT")] == found


def test_ranks_with_other_limits_disagree_where_their_claims_are_joined(run_classes):
    ours, theirs = (run_classes(f"audit_v1(runner(max_model_len={limit}))")[1] for limit in (200_000, 199_936))

    (contract,) = [one for one in joined([("tp0", ours.claims), ("tp1", theirs.claims)]) if one.disagreements]
    assert contract.name == "limits"
    assert contract.disagreements[0].numbers == (200_000, 199_936, 0)


def test_data_parallel_ranks_have_limits_of_their_own(run_classes):
    _, seen = run_classes("""
CONFIG.parallel_config.data_parallel_size, CONFIG.parallel_config.data_parallel_index = 2, 1
from ullage.engines.vllm.identity import current, identify
identify(current(), CONFIG, "worker")
audit_v1(runner())
""")

    names = {claim.contract for claim in seen.claims}
    assert names == {"limits/dp1", "block_table.tokens/dp1", "step.tokens/dp1", "step.requests/dp1"}


@pytest.mark.parametrize(
    ("fault", "errors"),
    [
        ("del broken.max_model_len", 1),
        ("del broken.attn_groups", 2),  # the builders, and their tensors
        ("builder.kv_cache_spec = Some(block_size=None)", 1),
        ("del builder.kv_cache_spec", 1),
    ],
    ids=["a limit", "all builders", "a claim", "one builder"],
)
def test_a_part_of_the_audit_that_fails_takes_no_other_with_it(run_classes, fault, errors):
    _, seen = run_classes(
        f"""
import os
os.environ["ULLAGE_STRICT"] = "0"
builder = sparse(3126)
broken = runner(builder, sparse(3126))
{fault}
audit_v1(broken)
""",
        errors=errors,
    )

    assert {"limits", "block_table.tokens", "step.tokens", "step.requests"} <= {claim.contract for claim in seen.claims}


def test_a_builder_that_cannot_be_read_leaves_the_claims_of_the_next_one(run_classes):
    _, seen = run_classes(
        """
import os
os.environ["ULLAGE_STRICT"] = "0"
unread = sparse(3126)
del unread.kv_cache_spec
audit_v1(runner(unread, sparse(3125)))
""",
        errors=1,
    )

    assert [event.subject for event in events(seen, "DISAGREEMENT")] == ["block_table.width"]


def test_a_model_without_a_kv_cache_has_no_tables_and_claims_its_rows(run_classes):
    _, seen = run_classes("""
tokens = torch.zeros((8, 200_000), dtype=torch.int32)
encodes = runner(
    attn_groups=[], kv_cache_config=Some(num_blocks=1, kv_cache_groups=[]),
    input_batch=Some(token_ids_cpu=tokens, block_table=Some(block_tables=[])),
)
audit_v1(encodes)
""")

    assert events(seen, "DISAGREEMENT") == []
    sources = {claim.source for claim in seen.claims if not claim.tally}
    assert {"runner.input_ids", "input batch.token_ids_cpu"} <= sources
    assert not [source for source in sources if "block table" in source]


# -- builds, in each step -----------------------------------------------------------------------------------------

BUILDERS = """
class Builder(indexer.DeepseekV32IndexerMetadataBuilder):
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return common_attn_metadata
    def build_for_drafting(self, common_attn_metadata, draft_index):
        return self.build(0, common_attn_metadata, fast_build=True)

class Virtual(Builder):
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        batch(common_attn_metadata, num_actual_tokens=1000)
        return super().build(common_prefix_len, common_attn_metadata, fast_build)

def batch(made=None, columns=3126, **more):
    made = made or Some(num_actual_tokens=4, num_reqs=2, max_seq_len=100, block_table_tensor=torch.zeros(2, columns))
    vars(made).update(more)
    return made

builder, base = sparse(3126), sparse(3126)
builder.__class__, base.__class__ = Virtual, Builder
audit_v1(runner(builder, base))
"""


def probe(seen):
    (found,) = [probe for probe in seen.probes if probe.name == "AttentionMetadataBuilder.build"]
    return found


def violations(seen):
    return [(event.subject, event.numbers[:2], event.detail) for event in events(seen, "SHAPE_VIOLATION")]


def test_a_batch_that_fits_is_looked_at_once_whatever_its_builder_makes_of_it(run_classes):
    _, seen = run_classes(
        BUILDERS
        + """
builder.build(0, batch())
builder.build(common_prefix_len=0, common_attn_metadata=batch())
builder.build_for_drafting(batch(), 0)
builder.build_for_cudagraph_capture(batch())
"""
    )

    assert probe(seen).status.name == "INSTALLED"
    assert probe(seen).calls == 4
    assert violations(seen) == []
    assert {claim.contract: claim.checks for claim in seen.claims if claim.tally}["block_table.width"] == 4


@pytest.mark.parametrize(
    "call",
    [
        "build(0, made)",
        "build(common_attn_metadata=made, common_prefix_len=0)",
        "build_for_drafting(made, 0)",
        "build_for_cudagraph_capture(made)",
    ],
)
def test_a_table_of_another_width_is_a_violation_before_the_call_in_every_variant(run_classes, call):
    _, seen = run_classes(BUILDERS + f"made = batch(columns=3200); builder.{call}")

    assert [violation[:2] for violation in violations(seen)] == [("block_table.width", (3200, 3126))]


@pytest.mark.parametrize(
    ("brought", "found"),
    [
        ("num_actual_tokens=65", ("step.tokens", (64, 65))),
        ("max_seq_len=3126 * 64 + 1", ("block_table.tokens", (3126 * 64, 3126 * 64 + 1))),
    ],
)
def test_a_batch_with_more_than_there_is_room_for(run_classes, brought, found):
    _, seen = run_classes(BUILDERS + f"builder.build(0, batch({brought}))")

    assert [violation[:2] for violation in violations(seen)] == [found]


@pytest.mark.parametrize(("left", "step"), [(0, 1), (16, 1), (17, 2), (100, 6)])
def test_the_first_step_in_which_a_sequence_may_not_fit_any_more_is_looked_at(run_classes, left, step):
    """Given guesses of two tokens for each of eight sequences, of which one may take all: 17 in a step."""
    (looked_at,), _ = run_classes(
        BUILDERS
        + f"""
from ullage.host.process import process
from ullage.engines.vllm.identity import current
sampler = current().sampler
sampler.classify(2, 2, plain=True)
builder.build(0, batch(max_seq_len=3126 * 64 - {left}))
for step in range(1, 1000):
    process.session.clock.steps += 1
    sampler.classify(2, 2, plain=True)
    if not process.session.clock.steady:
        break
say(step)
"""
    )

    assert looked_at == step


def test_a_dummy_run_beyond_the_table_is_marked_as_such(run_classes):
    _, seen = run_classes(
        BUILDERS
        + """
from ullage.host.process import process
from ullage.segment.layout import Phase
process.session.phase.begin_dummy_run(Phase.DUMMY_RUN)
builder.build(0, batch(max_seq_len=300_000))
"""
    )

    ((_, _, detail),) = violations(seen)
    assert "dummy run" in detail


def test_a_bound_that_counts_guesses_of_asynchronous_steps_may_be_a_little_more(run_classes):
    _, seen = run_classes(
        BUILDERS
        + "audit_v1(runner(builder, use_async_scheduling=True)); builder.build(0, batch(max_seq_len=3126 * 64 + 3))"
    )

    assert violations(seen) == []


def test_no_tensor_is_evaluated(run_classes):
    _, seen = run_classes(
        BUILDERS
        + """
made = batch(block_table_tensor=torch.empty((2, 3126), device="meta"), causal=torch.empty(2, device="meta"))
builder.build(0, made)
"""
    )

    assert violations(seen) == []
