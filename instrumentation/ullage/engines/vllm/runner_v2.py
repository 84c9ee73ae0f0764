"""The V2 model runner, in a worker: request slots, step tokens and their padding, rows that are written to, graphs.

The names of buffers are those of the V1 runner where the thing is the same. V2 runs dummy batches through
``execute_model``; those are rehearsals here, and steps are what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.beat import beat
from ullage.breadcrumb import breadcrumb
from ullage.buffers import Buffer, buffer
from ullage.engines._patch import Hook, argument
from ullage.engines._probe import Probe, SharedProbe
from ullage.engines._step_hook import StepHook
from ullage.engines.vllm import metadata_builders, structured, uva, view_v2
from ullage.engines.vllm._identity import identify, location
from ullage.engines.vllm._sizes import process_sizes
from ullage.engines.vllm.rehearsal import observe, rehearsal
from ullage.engines.vllm.startup_audit import audit
from ullage.engines.vllm.steps import Steps, steps
from ullage.inventory import inventory
from ullage.segment.phase import Phase
from ullage.session import session

if TYPE_CHECKING:
    from collections.abc import Callable

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

ROLE = "runner v2"
"""What a process with this runner is, beside a worker: it may have imported the other one too."""

_OWNERS = ("req_states", "block_tables", "structured_outputs_worker")
"""Attributes of the runner whose tensors are inventory, in addition to those of the view."""


class _Watched:
    """The buffers of this process's runner."""

    steps: Steps
    token_row: Buffer
    rows: tuple[Buffer, ...] = ()
    """One per KV-cache group."""
    tables = 0
    """``id`` of the block tables that they belong to."""
    graphs: Buffer | None = None
    """Of a runner that captures CUDA graphs."""
    mask: Buffer | None = None
    """Of a runner that was given a bitmask."""


_watched = _Watched()


def _created(_result: None, args: Args, _kwargs: Kwargs) -> None:
    runner = args[0]
    identify(runner.vllm_config, "worker")
    session.roles.add(ROLE)
    for hook in (*HOOKS, *uva.HOOKS):
        hook.probe.used()
    where = location(runner.vllm_config)
    states = runner.req_states
    _watched.steps = steps(
        runner.vllm_config,
        slots=states.max_num_reqs,
        tokens=runner.max_num_tokens,
        padded=runner.input_buffers.input_ids.shape[0],
    )
    _watched.token_row = buffer(
        "token_row",
        capacity=states.all_token_ids.gpu.shape[1],
        unit="tokens",
        kind="fixed",
        location=where,
        limit="max_model_len",
    )


def _kv_cache_initialized(_result: None, args: Args, kwargs: Kwargs) -> None:
    """Only now are the sizes final: before, there are no block tables, or those of a profiling run."""
    if argument("is_profiling", 2, args, kwargs):
        return
    runner = args[0]
    tables = runner.block_tables
    groups = range(len(tables.block_tables))
    names = [f"block_table_row-{group}" for group in groups] if len(groups) > 1 else ["block_table_row"]
    _watched.rows = tuple(
        buffer(name, capacity=table.gpu.shape[1], unit="blocks", kind="fixed", limit="max_model_len")
        for name, table in zip(names, tables.block_tables, strict=False)
    )
    _watched.tables = id(tables)
    _watched.graphs = _graphs(runner)
    for owner in _OWNERS:
        inventory(owner, uva.held(getattr(runner, owner, None)))
    uva.watch(runner)
    view = view_v2.view(runner)
    audit(view, process_sizes)
    metadata_builders.watch(metadata_builders.BuilderChecks(view, process_sizes))


def _graphs(runner: Any) -> Buffer | None:
    """Register the largest CUDA graph that will be captured, if any."""
    captured = getattr(runner.cudagraph_manager, "_capture_descs", {})
    sizes = [graph.num_tokens for graphs in captured.values() for graph in graphs]
    if not sizes:
        return None
    return buffer(
        "cuda_graph_tokens",
        capacity=max(sizes),
        unit="tokens",
        kind="fixed",
        location="device",
        limit="max_cudagraph_capture_size",
    )


def _executes(_runner: Any, scheduler_output: Any) -> None:
    """A step begins; in the core's own process it has begun already, in the scheduler."""
    if breadcrumb.rehearsing:
        return
    if "core" in session.roles:
        breadcrumb.enter(Phase.EXECUTE)
    else:
        tokens, requests = scheduler_output.total_num_scheduled_tokens, len(scheduler_output.num_scheduled_tokens)
        breadcrumb.begin(Phase.EXECUTE, tokens, requests)


def _executed(result: Any, runner: Any, scheduler_output: Any) -> None:
    uva.look()
    if breadcrumb.rehearsing:
        return
    breadcrumb.enter(Phase.NONE)
    if not scheduler_output.total_num_scheduled_tokens:  # no inputs were prepared
        _watched.steps.slots.observe(len(runner.req_states.req_id_to_index))
        _watched.steps.tokens.observe(0)
    if "core" not in session.roles:
        beat.tick()
        if result is not None:  # else its tokens are sampled in a call of its own
            breadcrumb.end()


def _samples(runner: Any, grammar_output: Any) -> None:
    _pools()
    if grammar_output is not None:
        _mask_given(runner, grammar_output.grammar_bitmask)


def _pools() -> None:
    if not breadcrumb.rehearsing:
        breadcrumb.enter(Phase.SAMPLE)


def _sampled(_result: Any) -> None:
    if not breadcrumb.rehearsing:
        breadcrumb.enter(Phase.NONE)
        if "core" not in session.roles:
            breadcrumb.end()


def _failed(where: str) -> Callable[[BaseException], None]:
    def failed(error: BaseException) -> None:
        if not breadcrumb.rehearsing:  # a rehearsal notes its own
            session.note_exception(where, error)

    return failed


def _prepared(batch: Any, runner: Any, batch_desc: Any) -> None:
    """Before the forward pass: what overflows in it is on record when it fails."""
    observe(_watched.steps.slots, len(runner.req_states.req_id_to_index))
    observe(_watched.steps.tokens, batch.num_tokens)
    observe(_watched.steps.padded, batch.num_tokens_after_padding)
    if _watched.graphs is not None and not breadcrumb.rehearsing:
        _dispatched(_watched.graphs, batch, batch_desc)


def _dispatched(graphs: Buffer, batch: Any, chosen: Any) -> None:
    """A graph as large as the padded batch was found; or none for a batch that only decodes, which is a deferral."""
    if chosen.cg_mode.name != "NONE":
        graphs.observe(batch.num_tokens_after_padding)
    elif not batch.is_prefilling_np.any():
        graphs.deferred()


def _request_added(args: Args, kwargs: Kwargs) -> None:
    """Before the write: a kernel puts what does not fit into the row of another request."""
    observe(_watched.token_row, len(argument("all_token_ids", 3, args, kwargs)))
    if not args[0].free_indices and not breadcrumb.rehearsing:
        _watched.steps.slots.exhausted(1)


def _row_grows(tables: Any, req_index: int, new_block_ids: Any, overwrite: bool) -> None:  # noqa: FBT001  as in vLLM
    """Before the write: a row that is too short raises since vLLM 0.32; before, it spilled into the next row."""
    if id(tables) != _watched.tables:
        return
    split = getattr(tables, "blocks_per_kv_block", None)
    for group, row in enumerate(_watched.rows):
        start = 0 if overwrite else int(tables.num_blocks.np[group, req_index])
        observe(row, start + len(new_block_ids[group]) * (split[group] if split else 1))


def _mask_given(runner: Any, mask: Any) -> None:
    """Before the copy: the core made the mask, the worker the buffer for it, each by its own formula."""
    worker = runner.structured_outputs_worker
    if worker is None:  # it does not sample: another stage of the pipeline does
        return
    if _watched.mask is None:
        _watched.mask = buffer(
            "worker_bitmask",
            capacity=worker.grammar_bitmask.shape[0],
            unit="rows",
            kind="fixed",
            location=location(runner.vllm_config),
            limit="max_num_seqs",
        )
    observe(_watched.mask, mask.shape[0])
    structured.given_to(runner.vocab_size, mask)


MODULE = "vllm.v1.worker.gpu.model_runner"


def _hook(target: str, *parameters: str, module: str = MODULE, **callbacks: Any) -> Hook:
    """Return a hook whose probe is told from that of the V1 runner's function of the same name."""
    return Hook(module, target, parameters, shared=_probe(target), **callbacks)


def _step_hook(target: str, module: str = MODULE, **callbacks: Any) -> StepHook:
    """Return one at a function that is called in each step."""
    return StepHook(module, target, shared=_probe(target), **callbacks)


def _probe(target: str) -> Probe:
    """A process with a V1 runner may import the V2 runner as well."""
    return Probe(f"v2.{target}", waits=True)


_REHEARSALS = SharedProbe("v2.GPUModelRunner._dummy_run", waits=True)

HOOKS = (
    _hook("GPUModelRunner.__init__", after=_created),
    _hook("GPUModelRunner.initialize_kv_cache", after=_kv_cache_initialized, reads=view_v2.READS),
    _step_hook(
        "GPUModelRunner.execute_model",
        before=_executes,
        after=_executed,
        failed=_failed("GPUModelRunner.execute_model"),
    ),
    _step_hook(
        "GPUModelRunner.prepare_inputs",
        after=_prepared,
        reads=(
            "vllm.v1.worker.gpu.input_batch:InputBatch.num_tokens",
            "vllm.v1.worker.gpu.input_batch:InputBatch.num_tokens_after_padding",
            "vllm.v1.worker.gpu.input_batch:InputBatch.is_prefilling_np",
            "vllm.v1.worker.gpu.cudagraph_utils:BatchExecutionDescriptor.cg_mode",
        ),
    ),
    _step_hook(
        "GPUModelRunner.sample_tokens",
        before=_samples,
        after=_sampled,
        failed=_failed("GPUModelRunner.sample_tokens"),
    ),
    _step_hook("GPUModelRunner.pool", before=_pools, after=_sampled, failed=_failed("GPUModelRunner.pool")),
    rehearsal(MODULE, "GPUModelRunner._dummy_run", Phase.DUMMY_RUN, _REHEARSALS),
    rehearsal(MODULE, "GPUModelRunner.profile_run", Phase.PROFILE_RUN, _REHEARSALS),
    rehearsal(MODULE, "GPUModelRunner.capture_model", Phase.CAPTURE, _REHEARSALS),
    # It starts a V2 runner up with requests of its own.
    rehearsal(
        "vllm.v1.worker.gpu_worker",
        "Worker.compile_or_warm_up_model",
        Phase.DUMMY_RUN,
        _REHEARSALS,
    ),
    _hook(
        "RequestState.add_request",
        "all_token_ids",
        module="vllm.v1.worker.gpu.states",
        before=_request_added,
        reads=("RequestState.free_indices",),
    ),
    _step_hook(
        "BlockTables.append_block_ids",
        module="vllm.v1.worker.gpu.block_table",
        before=_row_grows,
        reads=("BlockTables.num_blocks",),
    ),
)
