"""The V1 model runner, in a worker: request slots, step tokens and their padding, block-table rows; inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.engines.instance import Bindings, steady
from ullage.engines.patch import Patch, argument
from ullage.engines.step_patch import StepPatch
from ullage.engines.vllm import RUNNER_V1
from ullage.engines.vllm.attention import metadata_builders
from ullage.engines.vllm.contract_registry import ContractRegistry
from ullage.engines.vllm.core.structured_output import Bitmask
from ullage.engines.vllm.identity import engine_of, identify
from ullage.engines.vllm.startup_audit import audit
from ullage.engines.vllm.views import view_v1
from ullage.engines.vllm.worker.steps import steps
from ullage.segment.layout import Phase

if TYPE_CHECKING:
    from ullage.engines.instance import EngineInstance
    from ullage.recording.buffers import Buffer

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


_NONE, _EXECUTE, _SAMPLE = Phase.NONE, Phase.EXECUTE, Phase.SAMPLE  # in each step: an enumeration is slow to look up


class TableRows:
    """The rows of one block table.

    Attributes:
        row: Their buffer.
        split: Blocks that the table has for one of the KV cache.
        longest: The longest row so far.
    """

    __slots__ = ("engine", "longest", "row", "split")

    def __init__(self, engine: EngineInstance, row: Buffer, table: Any) -> None:
        self.engine = engine
        self.row = row
        self.split = int(table.blocks_per_kv_block) if getattr(table, "use_hybrid_blocks", False) else 1
        self.longest = -1


class Runner:
    """The buffers of one engine instance's runner.

    Attributes:
        steps: Those that each step fills.
    """

    def __init__(self, engine: EngineInstance, runner: Any) -> None:
        self.engine = engine
        self.steps = steps(
            engine,
            runner.vllm_config,
            slots=runner.max_num_reqs,
            tokens=runner.max_num_tokens,
            padded=runner.input_ids.gpu.shape[0],
        )

    @property
    def alone(self) -> bool:
        """Whether the scheduler is in another process: then each step begins and ends here."""
        return "core" not in self.engine.session.roles


_runners: Bindings[Runner] = Bindings()
_tables: Bindings[TableRows] = Bindings()


def _created(_result: None, args: Args, _kwargs: Kwargs) -> None:
    runner, engine = args[0], engine_of(args[0])
    identify(engine, runner.vllm_config, "worker")
    engine.session.roles.add(RUNNER_V1)
    _runners.bind(runner, Runner(engine, runner))


def _kv_cache_initialized(_result: None, args: Args, kwargs: Kwargs) -> None:
    """Only now are the sizes final: before, the tables of a healthy engine can have another width."""
    if argument("is_profiling", 2, args, kwargs):
        return
    runner, engine = args[0], engine_of(args[0])
    tables = runner.input_batch.block_table.block_tables
    names = [f"block_table_row-{group}" for group in range(len(tables))] if len(tables) != 1 else ["block_table_row"]
    for name, table in zip(names, tables, strict=True):
        row = engine.buffer(
            name, capacity=table.max_num_blocks_per_req, unit="blocks", kind="fixed", limit="max_model_len"
        )
        _tables.bind(table, TableRows(engine, row, table))
    view = view_v1.view(runner)
    audit(view, engine.part(ContractRegistry))
    metadata_builders.watch(view, engine)


def _executes(runner: Any, scheduler_output: Any) -> None:
    """A step begins; in the core's own process it has begun already, in the scheduler.

    What the batch needs is known by now. After the model has run, whatever we touch has left the caches.
    """
    watched = _runners.states[id(runner)]
    tokens, requests = scheduler_output.total_num_scheduled_tokens, len(scheduler_output.num_scheduled_tokens)
    if watched.alone:
        watched.engine.phase.begin(_EXECUTE, tokens, requests)
    watched.steps.slots.observe(requests)
    watched.steps.tokens.observe(tokens)


def _executed(result: Any, runner: Any) -> None:
    watched = _runners.states[id(runner)]
    if watched.alone:
        watched.engine.clock.tick()
        if result is None:  # its tokens are sampled in a call of its own
            watched.engine.phase.enter(_NONE)
        else:
            watched.engine.phase.end()


def _samples(runner: Any, grammar_output: Any) -> None:
    watched = _runners.states[id(runner)]
    if watched.alone:
        watched.engine.phase.enter(_SAMPLE)
    if grammar_output is not None:
        watched.engine.part(Bitmask).given_to(runner.input_batch.vocab_size, grammar_output.grammar_bitmask)


def _sampled(_result: Any, runner: Any) -> None:
    watched = _runners.states[id(runner)]
    if watched.alone:
        watched.engine.phase.end()


def _execute_failed(error: BaseException, runner: Any) -> None:
    engine_of(runner).session.note_exception("GPUModelRunner.execute_model", error)


def _sample_failed(error: BaseException, runner: Any) -> None:
    engine_of(runner).session.note_exception("GPUModelRunner.sample_tokens", error)


def _padded(result: Any, runner: Any) -> None:
    watched = _runners.states[id(runner)]
    watched.engine.observe(watched.steps.padded, result[1].num_tokens)


def _row_is_short(table: Any, block_ids: Any, row_idx: int, tables: dict[int, TableRows] = _tables.states) -> bool:
    """Tell whether a row brings nothing new: in a steady step it is no longer than one that was observed."""
    rows = tables.get(id(table))
    if rows is None:
        return True
    if not rows.engine.clock.steady:
        return False
    # Plain numbers: to reckon with those of numpy takes as long as a call.
    length: int = table.num_blocks_per_row.item(row_idx) + len(block_ids) * rows.split
    return length <= rows.longest


def _row_grows(table: Any, block_ids: Any, row_idx: int) -> None:
    """Before the write: a row that is too short raises in numpy, or on a device spills into the next row."""
    rows = _tables.states[id(table)]
    length = int(table.num_blocks_per_row[row_idx]) + len(block_ids) * rows.split
    rows.engine.observe(rows.row, length)
    if length > rows.longest and not rows.engine.phase.dummy:
        rows.longest = length


_RUNNER = "vllm.v1.worker.gpu_model_runner"

PATCHES = (
    Patch(_RUNNER, "GPUModelRunner.__init__", after=_created),
    Patch(_RUNNER, "GPUModelRunner.initialize_kv_cache", after=_kv_cache_initialized, reads=view_v1.READS),
    StepPatch(
        _RUNNER,
        "GPUModelRunner.execute_model",
        before=_executes,
        after=_executed,
        failed=_execute_failed,
        unless=steady,
    ),
    StepPatch(
        _RUNNER,
        "GPUModelRunner.sample_tokens",
        before=_samples,
        after=_sampled,
        failed=_sample_failed,
        unless=steady,
    ),
    StepPatch(
        _RUNNER,
        "GPUModelRunner._determine_batch_execution_and_padding",
        ("num_tokens",),
        after=_padded,
        unless=steady,
    ),
    StepPatch(
        "vllm.v1.worker.block_table",
        "BlockTable.append_row",
        before=_row_grows,
        unless=_row_is_short,
    ),
)
