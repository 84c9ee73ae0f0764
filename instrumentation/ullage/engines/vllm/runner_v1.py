"""The V1 model runner, in a worker: request slots, step tokens and their padding, block-table rows; inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.beat import beat
from ullage.breadcrumb import breadcrumb
from ullage.buffers import Buffer, buffer
from ullage.engines._patch import Hook, argument
from ullage.engines._step_hook import FAMILIAR, StepHook
from ullage.engines.vllm import metadata_builders, structured, view_v1
from ullage.engines.vllm._identity import identify
from ullage.engines.vllm._sizes import process_sizes
from ullage.engines.vllm.rehearsal import observe
from ullage.engines.vllm.startup_audit import audit
from ullage.engines.vllm.steps import Steps, steps
from ullage.segment.phase import Phase
from ullage.session import session

if TYPE_CHECKING:
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


ROLE = "runner v1"
"""What a process with this runner is, beside a worker: it may have imported the other one too."""


_NONE, _EXECUTE, _SAMPLE = Phase.NONE, Phase.EXECUTE, Phase.SAMPLE  # in each step: an enumeration is slow to look up


class _Rows:
    """What each row of a block table is held against, before anybody looks at its table.

    Attributes:
        blocks: Blocks that a table has for one of the KV cache; of several tables, the most.
        longest: How long rows were so far; of several tables, the least.
    """

    __slots__ = ("blocks", "longest")

    def __init__(self) -> None:
        self.blocks, self.longest = 1, -1


class _Watched:
    """The buffers of this process's runner."""

    steps: Steps
    tables: dict[int, Buffer]
    """The rows of block tables, one buffer per KV-cache group, by ``id`` of the table."""
    longest: dict[int, int]
    """The longest row so far."""


_watched = _Watched()
_watched.tables = {}
_rows = _Rows()


def _created(_result: None, args: Args, _kwargs: Kwargs) -> None:
    runner = args[0]
    identify(runner.vllm_config, "worker")
    session.roles.add(ROLE)
    _watched.steps = steps(
        runner.vllm_config,
        slots=runner.max_num_reqs,
        tokens=runner.max_num_tokens,
        padded=runner.input_ids.gpu.shape[0],
    )


def _kv_cache_initialized(_result: None, args: Args, kwargs: Kwargs) -> None:
    """Only now are the sizes final: before, the tables of a healthy engine can have another width."""
    if argument("is_profiling", 2, args, kwargs):
        return
    runner = args[0]
    tables = runner.input_batch.block_table.block_tables
    names = [f"block_table_row-{group}" for group in range(len(tables))] if len(tables) != 1 else ["block_table_row"]
    _watched.tables = {
        id(table): buffer(
            name, capacity=table.max_num_blocks_per_req, unit="blocks", kind="fixed", limit="max_model_len"
        )
        for name, table in zip(names, tables, strict=True)
    }
    _watched.longest = dict.fromkeys(_watched.tables, -1)
    _rows.blocks, _rows.longest = max(map(_blocks, tables), default=1), -1
    view = view_v1.view(runner)
    audit(view, process_sizes)
    metadata_builders.watch(metadata_builders.BuilderChecks(view, process_sizes))


def _executes(_runner: Any, scheduler_output: Any) -> None:
    """A step begins; in the core's own process it has begun already, in the scheduler.

    What the batch needs is known by now. After the model has run, whatever we touch has left the caches.
    """
    tokens, requests = scheduler_output.total_num_scheduled_tokens, len(scheduler_output.num_scheduled_tokens)
    if "core" not in session.roles:
        breadcrumb.begin(_EXECUTE, tokens, requests)
    _watched.steps.slots.observe(requests)
    _watched.steps.tokens.observe(tokens)


def _executed(result: Any) -> None:
    if "core" not in session.roles:
        beat.tick()
        if result is None:  # its tokens are sampled in a call of its own
            breadcrumb.enter(_NONE)
        else:
            breadcrumb.end()


def _samples(runner: Any, grammar_output: Any) -> None:
    if "core" not in session.roles:
        breadcrumb.enter(_SAMPLE)
    if grammar_output is not None:
        structured.given_to(runner.input_batch.vocab_size, grammar_output.grammar_bitmask)


def _sampled(_result: Any) -> None:
    if "core" not in session.roles:
        breadcrumb.end()


def _execute_failed(error: BaseException) -> None:
    session.note_exception("GPUModelRunner.execute_model", error)


def _sample_failed(error: BaseException) -> None:
    session.note_exception("GPUModelRunner.sample_tokens", error)


def _padded(result: Any) -> None:
    observe(_watched.steps.padded, result[1].num_tokens)


def _blocks(table: Any) -> int:
    """How many blocks a table has for one of the KV cache."""
    return int(table.blocks_per_kv_block) if getattr(table, "use_hybrid_blocks", False) else 1


def _row_grows(table: Any, block_ids: Any, row_idx: int) -> None:
    """Before the write: a row that is too short raises in numpy, or on a device spills into the next row."""
    number = id(table)
    row = _watched.tables.get(number)
    if row is not None:
        length = int(table.num_blocks_per_row[row_idx]) + len(block_ids) * _blocks(table)
        observe(row, length)
        if length > _watched.longest[number] and not breadcrumb.rehearsing:
            _watched.longest[number] = length
            _rows.longest = min(_watched.longest.values())


# Plain numbers: to reckon with those of numpy takes as long as a call.
_ROW = "self.num_blocks_per_row.item(row_idx) + len(block_ids) * ullage_given.blocks"
_RUNNER = "vllm.v1.worker.gpu_model_runner"

HOOKS = (
    Hook(_RUNNER, "GPUModelRunner.__init__", after=_created),
    Hook(_RUNNER, "GPUModelRunner.initialize_kv_cache", after=_kv_cache_initialized, reads=view_v1.READS),
    StepHook(
        _RUNNER,
        "GPUModelRunner.execute_model",
        before=_executes,
        after=_executed,
        failed=_execute_failed,
        unless=FAMILIAR,
    ),
    StepHook(
        _RUNNER,
        "GPUModelRunner.sample_tokens",
        before=_samples,
        after=_sampled,
        failed=_sample_failed,
        unless=FAMILIAR,
    ),
    StepHook(
        _RUNNER,
        "GPUModelRunner._determine_batch_execution_and_padding",
        ("num_tokens",),
        after=_padded,
        unless=FAMILIAR,
    ),
    StepHook(
        "vllm.v1.worker.block_table",
        "BlockTable.append_row",
        before=_row_grows,
        unless=f"{FAMILIAR} and {_ROW} <= ullage_given.longest",
        given=_rows,
    ),
)
