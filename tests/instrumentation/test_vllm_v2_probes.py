"""The probes of vLLM's V2 runner on classes of the same shapes: steps, rehearsals, graphs, older versions."""

from __future__ import annotations

from functools import partial

import pytest

from ullage.segment.layout import ProbeStatus

FAKE = """
import os, signal, sys, types

class Some(types.SimpleNamespace):
    pass  # like an object of the engine, it can be referred to weakly

import numpy as np

vllm = types.ModuleType("vllm")
vllm.__version__ = "0.32.0"
sys.modules["vllm"] = vllm
from ullage.engines.vllm import register
from ullage.host.process import process
register()

def module(name, *classes):
    made = types.ModuleType(name)
    for cls in classes:
        cls.__module__ = name
        setattr(made, cls.__name__, cls)
    sys.modules[name] = made
    process.chores.check()  # as a step tick does for a module that came in past us

def tensor(*shape):
    return Some(shape=shape, device=Some(type="cuda"))

config = Some(
    parallel_config=Some(
        data_parallel_size=1, data_parallel_rank=0, data_parallel_index=0, decode_context_parallel_size=1,
        tensor_parallel_size=1, pipeline_parallel_size=1, rank=0,
    ),
    model_config=Some(model="tiny", served_model_name=None, max_model_len=32),
    scheduler_config=Some(max_num_seqs=4, max_num_batched_tokens=64, max_num_scheduled_tokens=64),
    speculative_config=None,
    compilation_config=Some(static_forward_context={}, max_cudagraph_capture_size=16),
    device_config=Some(device_type="cuda"),
)

def graph(mode, tokens):
    return Some(cg_mode=Some(name=mode), num_tokens=tokens, num_reqs=None)

class FullAttentionSpec:
    block_size = 16

class BlockTables:
    cp_size, slot_mappings = 1, tensor(2, 64)
    def __init__(self, *columns, split=None):
        self.block_sizes = [16] * len(columns)
        self.block_tables = [Some(gpu=tensor(4, width)) for width in columns]
        self.num_blocks = Some(np=np.zeros((len(columns), 4), dtype=np.int32))
        if split:
            self.blocks_per_kv_block = split
    def append_block_ids(self, req_index, new_block_ids, overwrite):
        pass

class GPUModelRunner:
    tables, drafts = BlockTables(4), ()
    def __init__(self, graphs=()):
        self.vllm_config, self.max_num_tokens, self.max_model_len, self.vocab_size = config, 64, 32, 129_280
        self.input_buffers = Some(input_ids=tensor(64))
        self.attn_groups, self.structured_outputs_worker = [], Some(grammar_bitmask=tensor(16, 4040))
        groups = [Some(kv_cache_spec=FullAttentionSpec())] * 2
        self.kv_cache_config = Some(num_blocks=8, kv_cache_groups=groups)
        self.req_states = Some(max_num_reqs=4, all_token_ids=Some(gpu=tensor(4, 32)), req_id_to_index={})
        self.cudagraph_manager = Some(_capture_descs={"FULL": [graph("FULL", size) for size in graphs]})
        drafts = [Some(metadata_builders=self.drafts, kv_cache_group_id=0)]
        self.speculator = Some(attn_groups=[drafts]) if self.drafts else None
    def initialize_kv_cache(self, kv_cache_config, is_profiling=False):
        self.block_tables = BlockTables(1) if is_profiling else self.tables
    def prepare_inputs(self, scheduler_output, batch_req_state, batch_desc, num_active_loras=0):
        tokens = scheduler_output.num_scheduled_tokens.values()
        return Some(
            num_tokens=sum(tokens), num_tokens_after_padding=batch_desc.num_tokens,
            is_prefilling_np=np.array([count > 1 for count in tokens]),
        )
    def execute_model(self, scheduler_output, dummy_run=False, mode="NONE"):
        tokens = scheduler_output.total_num_scheduled_tokens
        if not tokens:
            self.req_states.req_id_to_index = {}
            return "nothing to do"
        if not dummy_run:
            self.req_states.req_id_to_index = dict(scheduler_output.num_scheduled_tokens)
            padded = tokens if mode == "NONE" else -(-tokens // 8) * 8
            self.prepare_inputs(scheduler_output, None, graph(mode, padded))
        inside("execute")
        if tokens > 64:
            raise RuntimeError("The size of tensor a (65) must match the size of tensor b (64)")
    def sample_tokens(self, grammar_output):
        inside("sample")
    def pool(self):
        return "pooled"
    def _dummy_run(self, num_tokens):
        self.execute_model(batch(num_tokens), dummy_run=True)
    def profile_run(self):
        self._dummy_run(64)
    def capture_model(self):
        self._dummy_run(64)

class Worker:
    def __init__(self, runner, tokens=60):
        self.runner, self.tokens = runner, tokens
    def compile_or_warm_up_model(self):
        for tokens in (7, self.tokens):
            self.runner.execute_model(batch(tokens))
            self.runner.sample_tokens(None)

def inside(where):
    if sys.argv[1:] == [where]:
        os.kill(os.getpid(), signal.SIGKILL)

def batch(*tokens):
    return Some(total_num_scheduled_tokens=sum(tokens), num_scheduled_tokens=dict(enumerate(tokens)))

def start(runner, **profiling):
    runner.initialize_kv_cache(None, **profiling)
    return runner

module("vllm.v1.worker.gpu.block_table", BlockTables)
module("vllm.v1.worker.gpu.model_runner", GPUModelRunner)
module("vllm.v1.worker.gpu_worker", Worker)
"""


@pytest.fixture
def run(run_engine):
    """Run a program on the fake vLLM."""
    return partial(run_engine, FAKE)


def buffers(seen):
    return {buffer.name: buffer for buffer in seen.buffers if not buffer.inventory}


def events(seen, kind):
    return [(e.subject, e.detail, e.numbers[:2]) for e in seen.events if e.kind.name == kind]


# -- steps and rehearsals -----------------------------------------------------------------------------------------


def test_a_step_is_seen_under_the_names_of_the_v1_runner(run):
    seen = buffers(run("start(GPUModelRunner()).execute_model(batch(3, 10), mode='PIECEWISE')"))

    assert {name: (buffer.capacity, buffer.high_water) for name, buffer in seen.items()} == {
        "request_slots": (4, 2),
        "step_tokens": (64, 13),
        "padded_tokens": (64, 16),
        "token_row": (32, 0),
        "block_table_row": (4, 0),
    }


def test_a_step_without_tokens_shows_that_the_requests_are_gone(run):
    seen = buffers(
        run("runner = start(GPUModelRunner()); runner.execute_model(batch(3, 10)); runner.execute_model(batch())")
    )

    assert (seen["request_slots"].used, seen["request_slots"].high_water) == (0, 2)
    assert (seen["step_tokens"].used, seen["step_tokens"].observations) == (0, 2)


def test_an_overflow_is_on_record_before_the_forward_pass(run):
    seen = run("start(GPUModelRunner()).execute_model(batch(65))", "execute")

    assert ("padded_tokens", "", (65, 64)) in events(seen, "BOUNDS_VIOLATION")


@pytest.mark.parametrize("rehearsal", ["runner.profile_run()", "runner.capture_model()", "runner._dummy_run(64)"])
def test_dummy_runs_raise_no_mark_and_leave_no_step(run, rehearsal):
    seen = run(f"runner = start(GPUModelRunner()); {rehearsal}")

    assert {buffer.high_water for buffer in buffers(seen).values()} == {0}
    assert (seen.process.steps, seen.process.step_begin_ns, seen.process.phase) == (0, 0, 0)


def test_requests_of_the_warm_up_raise_no_mark_and_those_after_it_do(run):
    seen = run(
        "runner = start(GPUModelRunner()); Worker(runner).compile_or_warm_up_model()\n"
        "runner.execute_model(batch(5)); runner.sample_tokens(None)"
    )

    assert buffers(seen)["step_tokens"].high_water == 5
    assert buffers(seen)["step_tokens"].observations == 1
    assert seen.process.steps == 1


def test_what_overflows_in_a_warm_up_is_a_violation_and_noted_once(run):
    seen = run(
        "worker = Worker(start(GPUModelRunner()), tokens=65)\n"
        "try: worker.compile_or_warm_up_model()\n"
        "except RuntimeError: pass"
    )

    assert ("padded_tokens", "dummy run", (64, 64)) in events(seen, "BOUNDS_VIOLATION")
    assert events(seen, "HOST_EXCEPTION") == [
        ("Worker.compile_or_warm_up_model", "RuntimeError tensor_sizes", (65, 64))
    ]


@pytest.mark.parametrize(("where", "phase"), [("execute", 2), ("sample", 3)])
def test_a_worker_that_dies_inside_a_step_leaves_where_and_with_which_batch(run, where, phase):
    process = run(
        "runner = start(GPUModelRunner()); runner.execute_model(batch(3, 10)); runner.sample_tokens(None)", where
    ).process

    assert process.started_ns < process.step_begin_ns
    assert (process.phase, process.batch_tokens, process.batch_requests) == (phase, 13, 2)


@pytest.mark.parametrize(
    "steps",
    [
        "runner.execute_model(batch(3)); runner.sample_tokens(None)",
        "runner.execute_model(batch(3)); runner.pool()",
        "runner.execute_model(batch())",
    ],
)
def test_between_steps_there_is_no_breadcrumb(run, steps):
    process = run(f"runner = start(GPUModelRunner()); {steps}").process

    assert (process.step_begin_ns, process.phase) == (0, 0)


# -- CUDA graphs --------------------------------------------------------------------------------------------------


def test_graphs_that_were_replayed_are_use_and_a_decode_without_one_is_a_deferral(run):
    graphs = buffers(
        run(
            "runner = start(GPUModelRunner(graphs=(8, 16)))\n"
            "runner.execute_model(batch(1, 1), mode='FULL')\n"
            "runner.execute_model(batch(*[1] * 9), mode='FULL')\n"
            "runner.execute_model(batch(*[1] * 17))\n"
            "runner.execute_model(batch(1, 30))\n"
        )
    )["cuda_graph_tokens"]

    assert (graphs.capacity, graphs.high_water, graphs.observations) == (16, 16, 2)
    assert (graphs.deferrals, graphs.violations, graphs.kind.name) == (1, 0, "FIXED")


def test_a_runner_that_captures_no_graphs_has_no_buffer_of_them(run):
    assert "cuda_graph_tokens" not in buffers(run("start(GPUModelRunner())"))


# -- block tables -------------------------------------------------------------------------------------------------


def test_a_row_is_observed_before_the_write_in_blocks_of_the_kernel(run):
    seen = buffers(
        run(
            "GPUModelRunner.tables = BlockTables(8, 4, split=[2, 1])\n"
            "tables = start(GPUModelRunner()).block_tables; tables.num_blocks.np[:, 3] = 4, 1\n"
            "tables.append_block_ids(3, ([7], [7]), overwrite=False)\n"
            "tables.append_block_ids(3, ([7, 8, 9, 10, 11], [7]), overwrite=True)\n"
        )
    )

    rows = [seen[f"block_table_row-{group}"] for group in (0, 1)]
    assert [(row.capacity, row.high_water, row.out_of_bounds) for row in rows] == [(8, 10, 1), (4, 2, 0)]


def test_tables_of_a_profiling_run_and_of_nobody_are_left_alone(run):
    seen = run(
        "start(GPUModelRunner(), is_profiling=True).block_tables.append_block_ids(0, ([1, 2],), True)\n"
        "start(GPUModelRunner()); BlockTables(1).append_block_ids(0, ([1, 2],), True)"
    )

    assert buffers(seen)["block_table_row"].observations == 0
    assert events(seen, "BOUNDS_VIOLATION") == []


# -- what stands --------------------------------------------------------------------------------------------------


def claims(seen):
    return {(claim.contract, claim.source): claim for claim in seen.claims if not claim.tally}


def test_what_is_claimed_of_the_v1_runner_is_claimed_here_too(run):
    seen = run("GPUModelRunner.tables = BlockTables(6, split=[4]); start(GPUModelRunner(graphs=(8, 16)))")

    shapes = {key: claim.shape for key, claim in claims(seen).items()}
    assert shapes["block_table.tokens", "runner block table"] == (6 * 16 // 4,)
    assert shapes["block_table.tokens", "model runner"] == (32,)
    assert shapes["limits", "model runner"] == (32, 4, 64, 8)
    assert shapes["step.tokens", "graph capture"] == (16,)
    assert shapes["step.tokens", "runner.input_ids"] == (64,)
    assert claims(seen)["block_table.tokens", "runner block table"].inputs["manager_block_size"] == 16
    assert [event.subject for event in seen.events if event.kind.name == "DISAGREEMENT"] == ["block_table.tokens"]


def test_a_model_without_a_kv_cache_has_no_tables_and_claims_its_rows(run):
    seen = run(
        "GPUModelRunner.tables = BlockTables()\n"
        "runner = GPUModelRunner(); runner.kv_cache_config.kv_cache_groups = []; start(runner)"
    )

    assert not [name for name in buffers(seen) if name.startswith("block_table_row")]
    sources = {source for _, source in claims(seen)}
    assert "runner.input_ids" in sources
    assert not [source for source in sources if "block table" in source]


def test_a_builder_of_the_drafts_that_keeps_a_narrower_copy_of_the_table_disagrees(run):
    seen = run(
        "class IndexerBuilder:\n"
        "    kv_cache_spec, vllm_config, expanded_block_table_buffer = FullAttentionSpec(), config, tensor(64, 3)\n"
        "    def build(self, common_prefix_len, common_attn_metadata): pass\n"
        "GPUModelRunner.drafts = [IndexerBuilder()]; start(GPUModelRunner())"
    )

    assert claims(seen)["block_table.width", "runner block table"].shape == (4,)
    assert claims(seen)["block_table.width", "IndexerBuilder.expanded_block_table_buffer"].shape == (3,)
    disagreements = [(subject, numbers) for subject, _, numbers in events(seen, "DISAGREEMENT")]
    assert disagreements == [("block_table.width", (4, 3))]


def test_a_stage_that_does_not_sample_has_no_bitmask(run):
    seen = run(
        "runner = start(GPUModelRunner()); runner.structured_outputs_worker = None\n"
        "runner.execute_model(batch(1)); runner.sample_tokens(Some(grammar_bitmask=tensor(3, 4040)))"
    )

    assert "worker_bitmask" not in buffers(seen)


def test_a_bitmask_is_held_against_the_workers_buffer_in_rows_and_in_columns(run):
    seen = run(
        "runner = start(GPUModelRunner())\n"
        "for shape in ((3, 4040), (17, 4041)):\n"
        "    runner.execute_model(batch(1)); runner.sample_tokens(Some(grammar_bitmask=tensor(*shape)))"
    )

    rows = buffers(seen)["worker_bitmask"]
    assert (rows.capacity, rows.high_water, rows.observations, rows.out_of_bounds) == (16, 17, 2, 1)
    assert events(seen, "SHAPE_VIOLATION") == [
        ("bitmask.columns", "mask of a step (4041,), model runner (4040,)", (4041, 4040))
    ]


# -- probes -------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_absent_and_what_has_other_parameters_is_changed(run):
    seen = run(
        "class RequestState: pass\n"
        "class BlockTables:\n"
        "    def append_block_ids(self, request, blocks): pass\n"
        "module('vllm.v1.worker.gpu.states', RequestState)\n"
        "module('vllm.v1.worker.gpu.block_table', BlockTables)\n"
        "start(GPUModelRunner()).execute_model(batch(3))"
    )

    status = {probe.name: probe.status for probe in seen.probes}
    assert status["v2.RequestState.add_request"] is ProbeStatus.ABSENT
    assert status["v2.BlockTables.append_block_ids"] is ProbeStatus.CHANGED
    assert status["v2.GPUModelRunner.execute_model"] is ProbeStatus.INSTALLED


def test_where_the_runner_is_imported_and_not_used_its_probes_have_no_records(run):
    seen = run("process.session.open(); process.chores.check()")

    assert not [probe.name for probe in seen.probes]


def test_the_other_runners_probes_are_not_expected(run):
    seen = run("start(GPUModelRunner()).execute_model(batch(3)); process.chores.check()")

    assert not [probe.name for probe in seen.probes if probe.name == "GPUModelRunner.execute_model"]
