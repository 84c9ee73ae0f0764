"""The V2 model runner, in a worker: request slots, step tokens and their padding, rows that are written to, graphs.

The names of buffers are those of the V1 runner where the thing is the same. V2 runs dummy batches through
``execute_model``; those are dummy runs here, and steps are what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.engines.instance import Bindings
from ullage.engines.patch import Patch, argument
from ullage.engines.probe import Probe, SharedProbe
from ullage.engines.step_patch import StepPatch
from ullage.engines.vllm import RUNNER_V2
from ullage.engines.vllm.attention import metadata_builders
from ullage.engines.vllm.contract_registry import ContractRegistry
from ullage.engines.vllm.core.structured_output import Bitmask
from ullage.engines.vllm.identity import engine_of, identify, location
from ullage.engines.vllm.startup_audit import audit
from ullage.engines.vllm.views import view_v2
from ullage.engines.vllm.worker import uva
from ullage.engines.vllm.worker.dummy_runs import dummy_run
from ullage.engines.vllm.worker.steps import steps
from ullage.recording.inventory import inventory
from ullage.segment.layout import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from ullage.engines.instance import EngineInstance
    from ullage.recording.buffers import Buffer

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

_OWNERS = ("req_states", "block_tables", "structured_outputs_worker")
"""Attributes of the runner whose tensors are inventory, in addition to those of the view."""


class Runner:
    """The buffers of one engine instance's runner.

    Attributes:
        engine: The engine instance.
        steps: Those that each step fills.
        token_row: A request's row of tokens.
        rows: Rows of block tables, one buffer for each KV-cache group.
        graphs: Of a runner that captures CUDA graphs.
    """

    def __init__(self, engine: EngineInstance, runner: Any) -> None:
        config, states = runner.vllm_config, runner.req_states
        self.engine = engine
        self.steps = steps(
            engine,
            config,
            slots=states.max_num_reqs,
            tokens=runner.max_num_tokens,
            padded=runner.input_buffers.input_ids.shape[0],
        )
        self.token_row = engine.buffer(
            "token_row",
            capacity=states.all_token_ids.gpu.shape[1],
            unit="tokens",
            kind="fixed",
            location=location(config),
            limit="max_model_len",
        )
        self.rows: tuple[Buffer, ...] = ()
        self.graphs: Buffer | None = None
        self._mask: Buffer | None = None

    @property
    def alone(self) -> bool:
        """Whether the scheduler is in another process: then each step begins and ends here."""
        return "core" not in self.engine.session.roles

    def kv_cache_initialized(self, runner: Any) -> None:
        """Register what depends on the KV cache."""
        tables = runner.block_tables.block_tables
        names = [f"block_table_row-{group}" for group in range(len(tables))] if len(tables) > 1 else ["block_table_row"]
        self.rows = tuple(
            self.engine.buffer(name, capacity=table.gpu.shape[1], unit="blocks", kind="fixed", limit="max_model_len")
            for name, table in zip(names, tables, strict=False)
        )
        captured = getattr(runner.cudagraph_manager, "_capture_descs", {})
        sizes = [graph.num_tokens for graphs in captured.values() for graph in graphs]
        if sizes:  # the largest CUDA graph that will be captured
            self.graphs = self.engine.buffer(
                "cuda_graph_tokens",
                capacity=max(sizes),
                unit="tokens",
                kind="fixed",
                location="device",
                limit="max_cudagraph_capture_size",
            )

    def prepared(self, runner: Any, batch: Any, chosen: Any) -> None:
        """Observe a batch before its forward pass: what overflows in it is on record when the pass fails."""
        engine = self.engine
        engine.observe(self.steps.slots, len(runner.req_states.req_id_to_index))
        engine.observe(self.steps.tokens, batch.num_tokens)
        engine.observe(self.steps.padded, batch.num_tokens_after_padding)
        if self.graphs is None or engine.phase.dummy:
            return
        # A graph as large as the padded batch was found; or none for a batch that only decodes, which is a deferral.
        if chosen.cg_mode.name != "NONE":
            self.graphs.observe(batch.num_tokens_after_padding)
        elif not batch.is_prefilling_np.any():
            self.graphs.deferred()

    def mask_given(self, runner: Any, mask: Any) -> None:
        """Before the copy: the core made the mask, the worker the buffer for it, each by its own formula."""
        worker = runner.structured_outputs_worker
        if worker is None:  # it does not sample: another stage of the pipeline does
            return
        if self._mask is None:
            self._mask = self.engine.buffer(
                "worker_bitmask",
                capacity=worker.grammar_bitmask.shape[0],
                unit="rows",
                kind="fixed",
                location=location(runner.vllm_config),
                limit="max_num_seqs",
            )
        self.engine.observe(self._mask, mask.shape[0])
        self.engine.part(Bitmask).given_to(runner.vocab_size, mask)


_runners: Bindings[Runner] = Bindings()
"""By the runner, its request states and its block tables."""


def _created(_result: None, args: Args, _kwargs: Kwargs) -> None:
    runner, engine = args[0], engine_of(args[0])
    identify(engine, runner.vllm_config, "worker")
    engine.session.roles.add(RUNNER_V2)
    for patch in (*PATCHES, *uva.PATCHES):
        patch.probe.used()
    watched = _runners.bind(runner, Runner(engine, runner))
    _runners.bind(runner.req_states, watched)


def _kv_cache_initialized(_result: None, args: Args, kwargs: Kwargs) -> None:
    """Only now are the sizes final: before, there are no block tables, or those of a profiling run."""
    if argument("is_profiling", 2, args, kwargs):
        return
    runner, engine = args[0], engine_of(args[0])
    watched = _runners.states[id(runner)]
    watched.kv_cache_initialized(runner)
    _runners.bind(runner.block_tables, watched)
    for owner in _OWNERS:
        inventory(engine, owner, uva.held(getattr(runner, owner, None)))
    engine.part(uva.Pools).watch(runner)
    view = view_v2.view(runner)
    audit(view, engine.part(ContractRegistry))
    metadata_builders.watch(view, engine)


def _executes(runner: Any, scheduler_output: Any) -> None:
    """A step begins; in the core's own process it has begun already, in the scheduler."""
    watched = _runners.states[id(runner)]
    phase = watched.engine.phase
    if phase.dummy:
        return
    if watched.alone:
        tokens, requests = scheduler_output.total_num_scheduled_tokens, len(scheduler_output.num_scheduled_tokens)
        phase.begin(Phase.EXECUTE, tokens, requests)
    else:
        phase.enter(Phase.EXECUTE)


def _executed(result: Any, runner: Any, scheduler_output: Any) -> None:
    watched = _runners.states[id(runner)]
    engine = watched.engine
    engine.part(uva.Pools).check()
    if engine.phase.dummy:
        return
    engine.phase.enter(Phase.NONE)
    if not scheduler_output.total_num_scheduled_tokens:  # no inputs were prepared
        watched.steps.slots.observe(len(runner.req_states.req_id_to_index))
        watched.steps.tokens.observe(0)
    if watched.alone:
        engine.clock.tick()
        if result is not None:  # else its tokens are sampled in a call of its own
            engine.phase.end()


def _samples(runner: Any, grammar_output: Any) -> None:
    _pools(runner)
    if grammar_output is not None:
        _runners.states[id(runner)].mask_given(runner, grammar_output.grammar_bitmask)


def _pools(runner: Any) -> None:
    phase = engine_of(runner).phase
    if not phase.dummy:
        phase.enter(Phase.SAMPLE)


def _sampled(_result: Any, runner: Any) -> None:
    watched = _runners.states[id(runner)]
    phase = watched.engine.phase
    if not phase.dummy:
        phase.enter(Phase.NONE)
        if watched.alone:
            phase.end()


def _failed(where: str) -> Callable[[BaseException, Any], None]:
    def failed(error: BaseException, runner: Any) -> None:
        engine = engine_of(runner)
        if not engine.phase.dummy:  # a dummy run notes its own
            engine.session.note_exception(where, error)

    return failed


def _prepared(batch: Any, runner: Any, batch_desc: Any) -> None:
    _runners.states[id(runner)].prepared(runner, batch, batch_desc)


def _request_added(args: Args, kwargs: Kwargs) -> None:
    """Before the write: a kernel puts what does not fit into the row of another request."""
    watched = _runners.states[id(args[0])]
    watched.engine.observe(watched.token_row, len(argument("all_token_ids", 3, args, kwargs)))
    if not args[0].free_indices and not watched.engine.phase.dummy:
        watched.steps.slots.exhausted(1)


def _row_grows(tables: Any, req_index: int, new_block_ids: Any, overwrite: bool) -> None:  # noqa: FBT001  as in vLLM
    """Before the write: a row that is too short raises since vLLM 0.32; before, it spilled into the next row."""
    watched = _runners.get(tables)
    if watched is None:
        return
    split = getattr(tables, "blocks_per_kv_block", None)
    for group, row in enumerate(watched.rows):
        start = 0 if overwrite else int(tables.num_blocks.np[group, req_index])
        watched.engine.observe(row, start + len(new_block_ids[group]) * (split[group] if split else 1))


MODULE = "vllm.v1.worker.gpu.model_runner"


def _patch(target: str, *parameters: str, module: str = MODULE, **callbacks: Any) -> Patch:
    """Return a patch whose probe is told from that of the V1 runner's function of the same name."""
    return Patch(module, target, parameters, shared=_probe(target), **callbacks)


def _step_patch(target: str, module: str = MODULE, **callbacks: Any) -> StepPatch:
    """Return one at a function that is called in each step."""
    return StepPatch(module, target, shared=_probe(target), **callbacks)


def _probe(target: str) -> Probe:
    """A process with a V1 runner may import the V2 runner as well."""
    return Probe(f"v2.{target}", waits=True)


_DUMMY_RUNS = SharedProbe("v2.GPUModelRunner._dummy_run", waits=True)

PATCHES = (
    _patch("GPUModelRunner.__init__", after=_created),
    _patch("GPUModelRunner.initialize_kv_cache", after=_kv_cache_initialized, reads=view_v2.READS),
    _step_patch(
        "GPUModelRunner.execute_model",
        before=_executes,
        after=_executed,
        failed=_failed("GPUModelRunner.execute_model"),
    ),
    _step_patch(
        "GPUModelRunner.prepare_inputs",
        after=_prepared,
        reads=(
            "vllm.v1.worker.gpu.input_batch:InputBatch.num_tokens",
            "vllm.v1.worker.gpu.input_batch:InputBatch.num_tokens_after_padding",
            "vllm.v1.worker.gpu.input_batch:InputBatch.is_prefilling_np",
            "vllm.v1.worker.gpu.cudagraph_utils:BatchExecutionDescriptor.cg_mode",
        ),
    ),
    _step_patch(
        "GPUModelRunner.sample_tokens",
        before=_samples,
        after=_sampled,
        failed=_failed("GPUModelRunner.sample_tokens"),
    ),
    _step_patch("GPUModelRunner.pool", before=_pools, after=_sampled, failed=_failed("GPUModelRunner.pool")),
    dummy_run(MODULE, "GPUModelRunner._dummy_run", Phase.DUMMY_RUN, _DUMMY_RUNS),
    dummy_run(MODULE, "GPUModelRunner.profile_run", Phase.PROFILE_RUN, _DUMMY_RUNS),
    dummy_run(MODULE, "GPUModelRunner.capture_model", Phase.CAPTURE, _DUMMY_RUNS),
    # It starts a V2 runner up with requests of its own.
    dummy_run(
        "vllm.v1.worker.gpu_worker",
        "Worker.compile_or_warm_up_model",
        Phase.DUMMY_RUN,
        _DUMMY_RUNS,
    ),
    _patch(
        "RequestState.add_request",
        "all_token_ids",
        module="vllm.v1.worker.gpu.states",
        before=_request_added,
        reads=("RequestState.free_indices",),
    ),
    _step_patch(
        "BlockTables.append_block_ids",
        module="vllm.v1.worker.gpu.block_table",
        before=_row_grows,
        reads=("BlockTables.num_blocks",),
    ),
)
