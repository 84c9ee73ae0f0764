"""The V1 model runner, in a worker: request slots, step tokens and their padding, block-table rows; inventory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.breadcrumb import breadcrumb
from ullage.buffers import Buffer, buffer
from ullage.engines._patch import Hook, argument
from ullage.engines.vllm import structured
from ullage.engines.vllm._identity import identify
from ullage.engines.vllm.rehearsal import observe
from ullage.engines.vllm.steps import Steps, steps
from ullage.engines.vllm.walk import READS, walk
from ullage.segment.phase import Phase
from ullage.session import session

if TYPE_CHECKING:
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


ROLE = "runner v1"
"""What a process with this runner is, beside a worker: it may have imported the other one too."""


_NONE, _EXECUTE, _SAMPLE = Phase.NONE, Phase.EXECUTE, Phase.SAMPLE  # in each step: an enumeration is slow to look up


class _Watched:
    """The buffers of this process's runner."""

    steps: Steps
    rows: dict[int, Buffer]
    """One per KV-cache group, by ``id`` of its block table."""


_watched = _Watched()
_watched.rows = {}


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
    names = [f"block_table_row-{group}" for group in range(len(tables))] if len(tables) > 1 else ["block_table_row"]
    _watched.rows = {
        id(table): buffer(
            name, capacity=table.max_num_blocks_per_req, unit="blocks", kind="fixed", limit="max_model_len"
        )
        for name, table in zip(names, tables, strict=True)
    }
    walk(runner)


def _executes(args: Args, kwargs: Kwargs) -> None:
    """A step begins; in the core's own process it has begun already, in the scheduler.

    What the batch needs is known by now. After the model has run, whatever we touch has left the caches.
    """
    output = argument("scheduler_output", 1, args, kwargs)
    tokens, requests = output.total_num_scheduled_tokens, len(output.num_scheduled_tokens)
    if "core" in session.roles:
        breadcrumb.enter(_EXECUTE)
    else:
        breadcrumb.begin(_EXECUTE, tokens, requests)
    steps = _watched.steps
    steps.slots.observe(requests)
    steps.tokens.observe(tokens)


def _executed(result: Any, _args: Args, _kwargs: Kwargs) -> None:
    breadcrumb.enter(_NONE)
    if "core" not in session.roles:
        session.tick()
        if result is not None:  # else its tokens are sampled in a call of its own
            breadcrumb.end()


def _samples(args: Args, kwargs: Kwargs) -> None:
    breadcrumb.enter(_SAMPLE)
    grammar = argument("grammar_output", 1, args, kwargs)
    if grammar is not None:
        structured.given_to(args[0].input_batch.vocab_size, grammar.grammar_bitmask)


def _sampled(_result: Any, _args: Args, _kwargs: Kwargs) -> None:
    breadcrumb.enter(_NONE)
    if "core" not in session.roles:
        breadcrumb.end()


def _execute_failed(error: BaseException, _args: Args, _kwargs: Kwargs) -> None:
    session.note_exception("GPUModelRunner.execute_model", error)


def _sample_failed(error: BaseException, _args: Args, _kwargs: Kwargs) -> None:
    session.note_exception("GPUModelRunner.sample_tokens", error)


def _padded(result: Any, _args: Args, _kwargs: Kwargs) -> None:
    observe(_watched.steps.padded, result[1].num_tokens)


def _row_grows(args: Args, kwargs: Kwargs) -> None:
    """Before the write: a row that is too short raises in numpy, or on a device spills into the next row."""
    table = args[0]
    row = _watched.rows.get(id(table))
    if row is not None:
        blocks = len(argument("block_ids", 1, args, kwargs))
        if getattr(table, "use_hybrid_blocks", False):
            blocks *= table.blocks_per_kv_block
        observe(row, int(table.num_blocks_per_row[argument("row_idx", 2, args, kwargs)]) + blocks)


_RUNNER = "vllm.v1.worker.gpu_model_runner"

HOOKS = (
    Hook(_RUNNER, "GPUModelRunner.__init__", after=_created),
    Hook(_RUNNER, "GPUModelRunner.initialize_kv_cache", after=_kv_cache_initialized, reads=READS),
    Hook(
        _RUNNER,
        "GPUModelRunner.execute_model",
        ("scheduler_output",),
        before=_executes,
        after=_executed,
        failed=_execute_failed,
    ),
    Hook(_RUNNER, "GPUModelRunner.sample_tokens", before=_samples, after=_sampled, failed=_sample_failed),
    Hook(_RUNNER, "GPUModelRunner._determine_batch_execution_and_padding", ("num_tokens",), after=_padded),
    Hook(
        "vllm.v1.worker.block_table",
        "BlockTable.append_row",
        ("block_ids", "row_idx"),
        before=_row_grows,
    ),
)
