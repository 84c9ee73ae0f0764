"""The probes of vLLM on classes of the same shapes: what they read, and what they leave alone."""

from __future__ import annotations

from functools import partial

import pytest

from ullage.segment import reader
from ullage.segment.layout import ProbeStatus

FAKE = """
import os, signal, sys, types

class Some(types.SimpleNamespace):
    pass  # like an object of the engine, it can be referred to weakly

vllm = types.ModuleType("vllm")
vllm.__version__ = "0.32.0"
sys.modules["vllm"] = vllm
from ullage.engines.vllm import register
from ullage.host.process import process
register()

def module(name, *classes):
    made = types.ModuleType(name)
    for cls in classes:
        setattr(made, cls.__name__, cls)
    sys.modules[name] = made
    process.chores.check()  # as a step tick does for a module that came in past us

def tensor(*shape):
    return Some(shape=shape, device=Some(type="cpu"))

config = Some(
    parallel_config=Some(
        data_parallel_size=1, data_parallel_rank=0, data_parallel_index=0,
        tensor_parallel_size=1, pipeline_parallel_size=1, rank=0, decode_context_parallel_size=1,
    ),
    model_config=Some(model="tiny", served_model_name=None, max_model_len=512),
    scheduler_config=Some(max_num_seqs=16, max_num_batched_tokens=512), speculative_config=None,
    device_config=Some(device_type="cuda"),
)
"""

RUNNER = """
class GPUModelRunner:
    def __init__(self):
        self.vllm_config, self.max_num_reqs, self.max_num_tokens = config, 16, 512
        self.input_ids = Some(gpu=tensor(512))
        self.input_batch = Some(num_reqs=0)
    def _determine_batch_execution_and_padding(self, num_tokens, num_reqs=1):
        return None, Some(num_tokens=-(-num_tokens // 8) * 8), False, None, None
    def execute_model(self, scheduler_output):
        tokens = scheduler_output.total_num_scheduled_tokens
        if tokens > 2 * self.max_num_tokens:
            raise RuntimeError("The expanded size of the tensor (3) must match the existing size (4)")
        if not tokens:
            return "nothing to do"
        self._determine_batch_execution_and_padding(tokens)
        self.input_batch.num_reqs = len(scheduler_output.num_scheduled_tokens)
        inside("execute")
    def sample_tokens(self, grammar_output):
        inside("sample")
    def _dummy_run(self, num_tokens):
        if num_tokens < 0:
            raise MemoryError("no memory")
        inside("dummy")
        self._determine_batch_execution_and_padding(num_tokens)
    def profile_run(self, num_tokens=512):
        self._dummy_run(num_tokens)
        inside("profile")
        self._determine_batch_execution_and_padding(num_tokens)
    def capture_model(self):
        for size in (8, 64, 512):
            self._dummy_run(size)

def inside(where):
    if sys.argv[1:] == [where]:
        os.kill(os.getpid(), signal.SIGKILL)

def batch(*tokens):
    return Some(total_num_scheduled_tokens=sum(tokens), num_scheduled_tokens=dict(enumerate(tokens)))

module("vllm.v1.worker.gpu_model_runner", GPUModelRunner)
runner = GPUModelRunner()
"""

SCHEDULER = """
class EncoderCacheManager:
    def __init__(self, cache_size):
        self.cache_size = self.num_free_slots = self.num_freeable_slots = cache_size
    def can_allocate(self, request, input_id, encoder_compute_budget, num_embeds_to_schedule):
        needed = request.get_num_encoder_embeds(input_id)
        return needed <= encoder_compute_budget and needed + num_embeds_to_schedule <= self.num_freeable_slots

class EncoderDecoderCacheManager(EncoderCacheManager):
    def __init__(self, cache_size):
        self.cache_size = self.num_free_slots = cache_size
    def can_allocate(self, request, input_id, encoder_compute_budget, num_embeds_to_schedule):
        return request.get_num_encoder_embeds(input_id) <= self.num_free_slots

class Scheduler:
    def __init__(self, cache):
        self.vllm_config, self.encoder_cache_manager, self.running = config, cache, [1, 2]
        self.max_num_running_reqs, self.max_num_scheduled_tokens, self.max_model_len = 16, 512, 512
        pool = Some(num_gpu_blocks=65, get_num_free_blocks=lambda: 60)
        self.kv_cache_manager, self.finished_req_ids = Some(block_pool=pool), set()
    def schedule(self, tokens=(3, 4), newcomers=(), left_out=0):
        if self.running is None:
            raise ValueError("no scheduler")
        self.running = self.running and [1] * (len(tokens) + left_out)
        return Some(**vars(batch(*tokens)), scheduled_new_reqs=newcomers)
    def update_from_output(self, scheduler_output, model_runner_output):
        return {}
    def _preempt_request(self, request):
        pass

class AsyncScheduler(Scheduler):
    def schedule(self):
        return super().schedule()

def inside(where):
    if sys.argv[1:] == [where]:
        os.kill(os.getpid(), signal.SIGKILL)

def batch(*tokens):
    return Some(total_num_scheduled_tokens=sum(tokens), num_scheduled_tokens=dict(enumerate(tokens)))

module("vllm.v1.core.encoder_cache_manager", EncoderCacheManager, EncoderDecoderCacheManager)
module("vllm.v1.core.sched.scheduler", Scheduler)
"""


@pytest.fixture
def run(run_engine):
    """Run a program on the fake vLLM."""
    return partial(run_engine, FAKE)


def buffers(seen):
    return {buffer.name: buffer for buffer in seen.buffers}


def events(seen, kind):
    return [(e.subject, e.detail, e.numbers) for e in seen.events if e.kind.name == kind]


# -- steps and rehearsals -----------------------------------------------------------------------------------------


def test_padding_is_seen_beside_the_tokens_of_a_step(run):
    seen = buffers(run(RUNNER + "runner.execute_model(batch(3, 10))"))

    assert (seen["step_tokens"].high_water, seen["padded_tokens"].high_water) == (13, 16)
    assert seen["padded_tokens"].kind.name == "FIXED"
    assert seen["request_slots"].high_water == 2


def test_dummy_profile_and_capture_runs_raise_no_mark_and_steps_after_them_do(run):
    rehearsals = "runner.profile_run(); runner.capture_model(); runner._dummy_run(512)\n"

    quiet = buffers(run(RUNNER + rehearsals))["padded_tokens"]
    assert (quiet.high_water, quiet.observations, quiet.out_of_bounds) == (0, 0, 0)


def test_after_a_rehearsal_that_failed_steps_are_observed_and_the_exception_is_noted_once(run):
    seen = run(
        RUNNER
        + "try: runner.profile_run(-1)\n"
        + "except MemoryError: pass\n"
        + "runner.execute_model(batch(13)); runner.sample_tokens(None)"
    )

    assert buffers(seen)["padded_tokens"].high_water == 16
    assert events(seen, "HOST_EXCEPTION") == [("GPUModelRunner.profile_run", "MemoryError", (0, 0, 0, 0))]
    assert seen.process.phase == 0


def test_an_overflow_in_a_rehearsal_is_a_violation_and_marked_as_such(run):
    seen = run(RUNNER + "runner._dummy_run(513)")

    padded = buffers(seen)["padded_tokens"]
    assert (padded.high_water, padded.violations, padded.worst_index) == (0, 1, 519)
    assert events(seen, "BOUNDS_VIOLATION") == [("padded_tokens", "dummy run", (519, 512, 0, 0))]


def test_an_overflow_in_a_step_is_a_violation_without_a_mark(run):
    seen = run(RUNNER + "runner.execute_model(batch(513))")

    assert ("padded_tokens", "", (520, 512, 0, 0)) in events(seen, "BOUNDS_VIOLATION")


def test_between_steps_of_a_worker_there_is_no_breadcrumb(run):
    seen = run(RUNNER + "runner.execute_model(batch(3, 10)); runner.sample_tokens(None)")

    assert (seen.process.step_begin_ns, seen.process.phase) == (0, 0)
    assert (seen.process.batch_tokens, seen.process.batch_requests) == (13, 2)


def test_a_step_that_samples_nothing_is_over_when_it_was_executed(run):
    assert run(RUNNER + "runner.execute_model(batch())").process.step_begin_ns == 0


@pytest.mark.parametrize(("where", "phase"), [("execute", 2), ("sample", 3)])
def test_a_worker_that_dies_inside_a_step_leaves_where_and_with_which_batch(run, where, phase):
    seen = run(RUNNER + "runner.execute_model(batch(3, 10)); runner.sample_tokens(None)", where)

    process = seen.process
    assert process.started_ns < process.step_begin_ns
    assert (process.phase, process.batch_tokens, process.batch_requests) == (phase, 13, 2)


@pytest.mark.parametrize(("where", "phase"), [("dummy", 4), ("profile", 5)])
def test_a_worker_that_dies_in_a_rehearsal_leaves_which(run, where, phase):
    process = run(RUNNER + "runner.profile_run()", where).process

    assert (process.step_begin_ns, process.phase) == (0, phase)


def test_an_exception_leaves_the_breadcrumb_and_its_numbers(run):
    seen = run(RUNNER + "try: runner.execute_model(batch(1025))\nexcept RuntimeError: pass")

    assert events(seen, "HOST_EXCEPTION") == [
        ("GPUModelRunner.execute_model", "RuntimeError expanded_size", (3, 4, 0, 0))
    ]
    assert seen.process.step_begin_ns
    assert seen.process.phase == 2


# -- the scheduler ------------------------------------------------------------------------------------------------


def test_a_schedule_that_calls_its_base_class_is_one_step(run):
    seen = run(SCHEDULER + "AsyncScheduler(EncoderCacheManager(0)).schedule()")

    assert {probe.name: probe.calls for probe in seen.probes}["Scheduler.schedule"] == 1
    assert seen.process.steps == 1
    assert buffers(seen)["scheduled_tokens"].observations == 1


def test_a_core_is_inside_a_step_as_long_as_requests_run(run):
    steps = "core = Scheduler(EncoderCacheManager(0)); first = core.schedule(); second = core.schedule()\n"

    seen = run(SCHEDULER + steps + "core.update_from_output(first, None)")
    assert seen.process.step_begin_ns
    assert (seen.process.phase, seen.process.batch_tokens, seen.process.batch_requests) == (0, 7, 2)


def test_a_core_in_which_nothing_runs_any_more_is_in_no_step(run):
    steps = "core = Scheduler(EncoderCacheManager(0)); output = core.schedule(); core.running = []\n"
    seen = run(SCHEDULER + steps + "core.update_from_output(scheduler_output=output, model_runner_output=0)")

    assert (seen.process.step_begin_ns, seen.process.running) == (0, 0)
    assert buffers(seen)["running_requests"].used == 0


def test_a_core_whose_scheduler_raises_leaves_that(run):
    process = run(
        SCHEDULER
        + "core = Scheduler(EncoderCacheManager(0))\n"
        + "core.running = None\n"
        + "try: core.schedule()\n"
        + "except ValueError: pass"
    ).process

    assert process.step_begin_ns
    assert process.exception_ns
    assert (process.phase, process.batch_tokens) == (1, 0)


def test_a_core_that_goes_on_after_its_scheduler_raised_says_where_it_is(run):
    raised = "steps(5); core.running = None\ntry: core.schedule()\nexcept ValueError: core.running = [1, 2]\nsteps(1)"
    process = run(FAMILIAR + raised).process

    assert (process.phase, process.batch_tokens, process.batch_requests) == (2, 7, 7)


def test_in_a_process_that_is_core_and_worker_the_cores_step_holds(run):
    seen = run(
        SCHEDULER
        + RUNNER
        + "core = Scheduler(EncoderCacheManager(0)); output = core.schedule()\n"
        + "import time; process.session.identify(scheduled_ns=time.time_ns())\n"
        + "runner.execute_model(output); runner.sample_tokens(None)"
    )

    assert 0 < seen.process.step_begin_ns <= seen.identity["scheduled_ns"]
    assert seen.process.batch_tokens == 7


# -- what brings nothing new --------------------------------------------------------------------------------------

FAMILIAR = (
    RUNNER
    + SCHEDULER
    + """
core = Scheduler(EncoderCacheManager(0))
def step(*given, **more):
    output = core.schedule(*given, **more)
    runner.execute_model(output)
    runner.sample_tokens(None)
    core.update_from_output(output, None)
def finish():
    core.running, core.finished_req_ids = [], {"all"}
    core.update_from_output(core.schedule((1,) * 7), None)
def steps(count, *given):
    for _ in range(count): step(*(given or [(1,) * 7]))
"""
)


def executions(seen):
    """How many steps the worker's hooks looked at."""
    return {probe.name: probe.calls for probe in seen.probes}["GPUModelRunner.execute_model"]


def test_a_step_like_the_one_before_is_left_alone_by_the_worker_but_is_a_step(run):
    seen = run(FAMILIAR + "steps(10)")

    assert (executions(seen), seen.process.steps) == (2, 10)  # the first, in which requests join, and the second
    assert seen.process.step_begin_ns == seen.process.step_ns
    assert seen.process.batch_tokens == 7


def test_steps_that_were_left_alone_are_counted_in_the_buffers_of_the_core_when_something_changes(run):
    seen = buffers(run(FAMILIAR + "steps(10)\nfinish()"))

    counts = {name: (seen[name].observations, seen[name].high_water) for name in ("scheduled_tokens", "kv_blocks")}
    assert counts == {"scheduled_tokens": (11, 7), "kv_blocks": (12, 4)}  # what is held is observed at the end as well


def test_use_and_high_water_mark_of_kv_blocks_are_exact_in_each_step(run):
    pool = "free = [60]; core.kv_cache_manager.block_pool.get_num_free_blocks = lambda: free[0]\n"
    blocks = buffers(run(FAMILIAR + pool + "steps(5); free[0] = 50; steps(1); free[0] = 55; steps(1)"))["kv_blocks"]

    assert (blocks.used, blocks.high_water, blocks.observations) == (9, 14, 3)  # three of seven were looked at


def test_each_step_is_counted_with_the_kv_blocks_that_it_held(run):
    pool = "free = [60]; core.kv_cache_manager.block_pool.get_num_free_blocks = lambda: free[0]\n"
    changes = "steps(5); free[0] = 20; steps(2); free[0] = 10; steps(3); free[0] = 60; steps(1); finish()"
    blocks = buffers(run(FAMILIAR + pool + changes))["kv_blocks"]

    assert (blocks.used, blocks.high_water, blocks.capacity, blocks.histogram) == (4, 54, 64, True)
    assert blocks.occupancy == (8, 2, 3, 0, 0, 0)  # up to 50, 75 and 90 %; the end is observed twice


ROWS = """
class Row(list):
    item = list.__getitem__

class BlockTable:
    def __init__(self):
        self.num_blocks_per_row = Row([0, 0])
    def append_row(self, block_ids, row_idx):
        self.num_blocks_per_row[row_idx] += len(block_ids)
module("vllm.v1.worker.block_table", BlockTable)
from ullage.engines.vllm.identity import engine_of
from ullage.engines.vllm.worker.runner_v1 import TableRows, _tables
table, engine = BlockTable(), engine_of(core)
_tables.bind(table, TableRows(engine, engine.buffer("block_table_row", capacity=64, unit="blocks"), table))
"""


WITHOUT_KV_CACHE = """
class GPUModelRunner:
    def __init__(self):
        self.vllm_config, self.max_num_reqs, self.max_num_tokens, self.max_model_len = config, 16, 512, 512
        self.input_ids, self.attn_groups = Some(gpu=tensor(512)), []
        self.input_batch = Some(block_table=Some(block_tables=[]))
    def initialize_kv_cache(self, kv_cache_config, is_profiling=False):
        self.kv_cache_config = kv_cache_config

config.compilation_config = Some(static_forward_context={})
module("vllm.v1.worker.gpu_model_runner", GPUModelRunner)
GPUModelRunner().initialize_kv_cache(Some(num_blocks=1, kv_cache_groups=[]))
"""


def test_a_model_without_a_kv_cache_has_no_rows_of_block_tables_and_its_own_are_claimed(run):
    seen = run(WITHOUT_KV_CACHE)

    assert "block_table_row" not in buffers(seen)
    provided = {claim.source: claim.shape for claim in seen.claims if claim.role.name == "PROVIDES"}
    assert provided == {"runner.input_ids": (512,)}


def test_a_row_that_is_longer_than_ever_is_seen_in_a_step_that_brings_nothing_else_and_a_shorter_one_is_not(run):
    grown = "steps(5); table.append_row([1, 2], 0); table.append_row([3], 1); table.append_row([4], 0)"
    rows = buffers(run(FAMILIAR + ROWS + grown))["block_table_row"]

    assert (rows.used, rows.high_water, rows.observations) == (3, 3, 2)


@pytest.mark.parametrize(
    ("news", "looked_at"),
    [
        ("step((1,) * 8)", 1),  # more requests
        ("step((1,) * 6, newcomers=(1,))", 1),  # fewer, but somebody else's
        ("step((1,) * 7, newcomers=(1,))", 1),  # as many, but somebody else's
        ("step((1,) * 6)", 0),  # fewer
        ("steps(3, (5, 1))", 3),  # a prompt in chunks: a sequence grows faster than by a token
        ("for _ in range(3): step((1,) * 7, left_out=1)", 3),  # another sequence may take part each time
        ("steps(2, (1,) * 6); step((1,) * 7)", 1),  # back after a preemption, its prefix cached: one token
        ("step((1,) * 8); core.schedule((1,) * 8); sampler.within(3); steps(2, (1,) * 8)", 1),
        (
            "step((1,) * 8); core.schedule((1,) * 8); sampler.within(3); steps(3, (1,) * 8)",
            2,
        ),  # a limit may have been reached
        ("core.running = []; step(); core.running = [1]; step()", 2),  # after the engine had nothing to do
        ("steps(512)", 1),  # nothing new for long
        ("runner._dummy_run(8); step((1,) * 7)", 0),  # a rehearsal, after which a step is as familiar as before
    ],
)
def test_a_step_that_brings_something_new_is_looked_at(run, news, looked_at):
    steps = (
        FAMILIAR + "from ullage.engines.vllm.identity import engine_of\nsampler = engine_of(core).sampler\nsteps(5)\n"
    )

    assert executions(run(steps + news)) == 2 + looked_at  # the first two in any case


def test_the_most_that_a_step_needed_is_exact_whatever_was_left_alone(run):
    seen = buffers(run(FAMILIAR + "steps(5)\nstep((200, 100))\nsteps(5)"))

    assert [seen[name].high_water for name in ("step_tokens", "padded_tokens", "request_slots")] == [300, 304, 7]


def test_an_exception_in_a_step_that_was_left_alone_is_noted(run):
    seen = run(
        FAMILIAR
        + "steps(5)\n"
        + "runner.max_num_tokens = 1\n"
        + "try: step((1,) * 7)\n"
        + "except RuntimeError: pass\n"
        + "process.session.identify(familiar=int(process.session.clock.steady))"
    )

    assert seen.identity["familiar"] == 1
    assert [where for where, *_ in events(seen, "HOST_EXCEPTION")] == ["GPUModelRunner.execute_model"]
    assert (seen.process.phase, seen.process.batch_tokens) == (2, 7)


def test_when_the_probe_that_says_what_is_new_goes_off_each_step_is_looked_at(program, segments):
    broken = "from ullage.engines.vllm.core import scheduler as s; state = s._scheduling.get(core)\n"
    broken += "state._tokens = state.scheduled_requests = None\n"
    program(FAKE + FAMILIAR + "steps(5)\n" + broken + "steps(20)", ULLAGE_STRICT="0").finish()
    seen = reader.read(*segments.glob("*.ullage"))

    assert {probe.name: probe.status.name for probe in seen.probes}["Scheduler.schedule"] == "DISABLED"
    assert executions(seen) > 10


@pytest.mark.parametrize("reason", ["cache = EncoderCacheManager(9)", "config.parallel_config.data_parallel_size = 2"])
def test_where_a_batch_does_not_tell_what_is_new_each_step_is_looked_at(run, reason):
    remade = "cache = EncoderCacheManager(0)\n" + reason + "\ncore = Scheduler(cache)\n"

    assert executions(run(FAMILIAR + remade + "steps(10)")) == 10


# -- encoder cache ------------------------------------------------------------------------------------------------


def test_a_model_without_an_encoder_has_no_encoder_cache(run):
    seen = run(SCHEDULER + "Scheduler(EncoderCacheManager(0)).schedule()")

    assert "encoder_cache" not in buffers(seen)


@pytest.mark.parametrize(
    ("manager", "freeable"),
    [("EncoderCacheManager", "num_freeable_slots"), ("EncoderDecoderCacheManager", "num_free_slots")],
)
def test_the_encoder_cache_holds_what_requests_still_need(run, manager, freeable):
    cache = buffers(
        run(
            SCHEDULER
            + f"cache = {manager}(100); core = Scheduler(cache)\n"
            + f"cache.num_free_slots = 5; cache.{freeable} = 30; output = core.schedule()\n"
            + f"cache.{freeable} = 90; core.finished_req_ids = {{'a'}}; core.update_from_output(output, None)"
        )
    )["encoder_cache"]

    assert (cache.unit, cache.kind.name, cache.limit) == ("embeddings", "MANAGED", "encoder_cache_size")
    assert (cache.capacity, cache.high_water, cache.used) == (100, 70, 10)


@pytest.mark.parametrize("manager", ["EncoderCacheManager", "EncoderDecoderCacheManager"])
def test_an_input_without_a_place_is_deferred_and_one_without_compute_is_not(run, manager):
    cache = buffers(
        run(
            SCHEDULER
            + f"cache = {manager}(100); Scheduler(cache)\n"
            + "request = Some(get_num_encoder_embeds=lambda input_id: 101)\n"
            + "cache.can_allocate(request, 0, 50, 0)\n"
            + "cache.can_allocate(request, 0, encoder_compute_budget=200, num_embeds_to_schedule=0)"
        )
    )["encoder_cache"]

    assert (cache.deferrals, cache.exhaustions) == (1, 0)


# -- bitmask, drafts, adapters ------------------------------------------------------------------------------------

STRUCTURED = """
class StructuredOutputManager:
    def __init__(self):
        self._grammar_bitmask, self.vllm_config, self.backend = None, config, Some(vocab_size=256)
    def grammar_bitmask(self, requests, structured_output_request_ids, scheduled_spec_decode_tokens):
        if not structured_output_request_ids:
            return None
        self._grammar_bitmask = tensor(64, 8)
        if len(structured_output_request_ids) > 64:
            raise IndexError("index 64 is out of bounds for dimension 0 with size 64")
        return tensor(len(structured_output_request_ids), 8)

module("vllm.v1.structured_output", StructuredOutputManager)
manager = StructuredOutputManager()
"""


def test_the_bitmask_is_registered_when_it_is_allocated(run):
    assert buffers(run(STRUCTURED + "process.session.open(); manager.grammar_bitmask({}, [], {})")) == {}


def test_a_worker_with_another_vocabulary_than_the_mask_is_a_violation(run):
    seen = run(
        STRUCTURED
        + RUNNER
        + "manager.grammar_bitmask({}, ['a'], {}); runner.input_batch.vocab_size = 288\n"
        + "for _ in range(3): runner.sample_tokens(Some(grammar_bitmask=tensor(1, 8)))"
    )

    assert [(subject, numbers[:2]) for subject, _, numbers in events(seen, "SHAPE_VIOLATION")] == [
        ("bitmask.columns", (8, 9))
    ]
    assert [(subject, numbers[:2]) for subject, _, numbers in events(seen, "DISAGREEMENT")] == [
        ("bitmask.columns", (8, 9))
    ]


def test_rows_of_the_bitmask_are_counted_and_its_worst_case_is_planned_for(run):
    rows = buffers(
        run(STRUCTURED + "manager.grammar_bitmask({}, ['a'] * 60, {}); manager.grammar_bitmask({}, ['a'], {})")
    )["grammar_bitmask"]

    assert (rows.capacity, rows.high_water, rows.used, rows.observations) == (64, 60, 1, 2)
    assert (rows.unit, rows.kind.name) == ("rows", "FIXED")


def test_a_bitmask_that_is_too_short_is_a_noted_exception(run):
    overflow = "try: manager.grammar_bitmask({}, ['a'] * 65, {})\nexcept IndexError: pass\n"

    assert events(run(STRUCTURED + "manager.grammar_bitmask({}, ['a'], {})\n" + overflow), "HOST_EXCEPTION") == [
        ("StructuredOutputManager.grammar_bitmask", "IndexError out_of_bounds", (64, 0, 64, 0))
    ]


SPECULATIVE = """
class SpecDecodeBaseProposer:
    method, max_batch_size, net_num_new_slots_per_request = "eagle", 16, 0
    def __init__(self):
        self.vllm_config = config
        self.input_ids, self.arange = tensor(32), tensor(32)
    def load_model(self, target_model):
        pass
    def propose(self, num_speculative_tokens, target_token_ids, target_positions, target_hidden_states,
                next_token_ids, token_indices_to_sample, common_attn_metadata):
        pass

class DraftModelProposer(SpecDecodeBaseProposer):
    method, net_num_new_slots_per_request = "draft_model", 1

class DFlashProposer(SpecDecodeBaseProposer):
    method = "dflash"
    def __init__(self):
        super().__init__()
        self.arange = tensor(65)

def propose(proposer, tokens, requests):
    proposer.load_model(None)
    metadata = Some(batch_size=lambda: requests)
    proposer.propose(3, target_token_ids=tensor(tokens), target_positions=None, target_hidden_states=None,
                     next_token_ids=None, token_indices_to_sample=None, common_attn_metadata=metadata)

module("vllm.v1.spec_decode.llm_base_proposer", SpecDecodeBaseProposer)
"""


@pytest.mark.parametrize(
    ("proposer", "tokens", "arange"),
    [
        ("SpecDecodeBaseProposer", (32, 20, 32), (32, 5, 17)),
        ("DraftModelProposer", (32, 24, 32), (32, 5, 17)),
        ("DFlashProposer", None, (65, 5, 17)),
    ],
)
def test_a_draft_model_uses_its_proposers_buffers(run, proposer, tokens, arange):
    seen = buffers(run(SPECULATIVE + f"propose({proposer}(), 20, 4)"))

    sizes = {name: (buffer.capacity, buffer.high_water, buffer.warn_at) for name, buffer in seen.items()}
    assert sizes == {"draft_arange": arange, **({"draft_tokens": tokens} if tokens else {})}
    assert {buffer.location.name for buffer in seen.values()} == {"DEVICE"}


def test_a_draft_that_needs_more_than_its_buffers_is_a_violation_before_it_is_written(run):
    seen = buffers(run(SPECULATIVE + "propose(DraftModelProposer(), 30, 32)"))

    assert (seen["draft_tokens"].out_of_bounds, seen["draft_tokens"].worst_index) == (1, 61)
    assert (seen["draft_arange"].out_of_bounds, seen["draft_arange"].worst_index) == (1, 32)


def test_without_a_draft_model_nothing_is_registered(run):
    seen = run(SPECULATIVE + "process.session.open()")

    assert seen.buffers == ()
    assert {probe.name: probe.status for probe in seen.probes}["SpecDecodeBaseProposer"] is ProbeStatus.INSTALLED


LORA = """
class LoRAModelManager:
    def __init__(self):
        self.lora_slots, self.device = 2, Some(type="cuda")
        self.lora_index_to_id = [None] * 2
    def activate_adapter(self, lora_id):
        if None not in self.lora_index_to_id:
            raise ValueError("No free lora slots")
        self.lora_index_to_id[self.lora_index_to_id.index(None)] = lora_id
    def _deactivate_adapter(self, lora_id):
        self.lora_index_to_id[self.lora_index_to_id.index(lora_id)] = None

class LRUCacheLoRAModelManager(LoRAModelManager):
    def activate_adapter(self, lora_id):
        if None not in self.lora_index_to_id:
            self._deactivate_adapter(self.lora_index_to_id[0])
        return super().activate_adapter(lora_id)

module("vllm.lora.model_manager", LoRAModelManager, LRUCacheLoRAModelManager)
"""


def test_slots_for_adapters_are_counted_and_eviction_is_no_denial(run):
    code = "manager = LRUCacheLoRAModelManager()\nfor adapter in (7, 8, 9): manager.activate_adapter(adapter)\n"

    slots = buffers(run(LORA + code + "manager._deactivate_adapter(9)"))["lora_slots"]

    assert (slots.capacity, slots.high_water, slots.used, slots.exhaustions) == (2, 2, 1, 0)
    assert (slots.unit, slots.kind.name, slots.limit) == ("adapters", "MANAGED", "max_loras")


def test_an_adapter_without_a_slot_is_an_exhaustion(run):
    code = "manager = LoRAModelManager()\nfor adapter in (7, 8): manager.activate_adapter(adapter)\n"

    slots = buffers(run(LORA + code + "try: manager.activate_adapter(9)\nexcept ValueError: pass"))["lora_slots"]

    assert slots.exhaustions == 1


def test_adapters_of_a_dummy_run_are_no_use(run):
    runner = RUNNER + LORA + "manager = LoRAModelManager(); inside = lambda where: manager.activate_adapter(1)\n"

    slots = buffers(run(runner + "runner._dummy_run(8)"))["lora_slots"]

    assert (slots.high_water, slots.observations) == (0, 0)
