"""The scheduler, in the engine core: KV blocks, running requests, scheduled tokens, and who was denied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.breadcrumb import breadcrumb
from ullage.buffers import Buffer, buffer
from ullage.engines._patch import Hook, argument
from ullage.engines.vllm import connectors, encoder, limits
from ullage.engines.vllm._identity import identify, location
from ullage.segment.phase import Phase
from ullage.session import session

if TYPE_CHECKING:
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


_SCHEDULE = Phase.SCHEDULE  # in each step: an enumeration is slow to look up


class _Watched:
    """The buffers of this process's scheduler."""

    kv_blocks: Buffer
    running: Buffer
    tokens: Buffer
    encoder = False
    """Whether the model has an encoder, and so a cache of what it gave."""
    denied = 0
    """Running requests denied in this step whose preemption is still to come."""
    seen = (0, 0)
    """Free blocks and running requests when they were last observed."""
    latest = 0
    """``id`` of the newest output: with asynchronous scheduling, the step before it ends after it has begun."""


_watched = _Watched()


def _created(_result: None, args: Args, _kwargs: Kwargs) -> None:
    scheduler = args[0]
    config = scheduler.vllm_config
    identify(config, "core")
    _watched.kv_blocks = buffer(
        "kv_blocks",
        capacity=scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1,  # block 0 is the null block, never given out
        unit="blocks",
        kind="managed",
        location=location(config),
        limit="num_gpu_blocks",
    )
    _watched.running = buffer(
        "running_requests",
        capacity=scheduler.max_num_running_reqs,
        unit="requests",
        kind="managed",
        limit="max_num_seqs",
    )
    _watched.tokens = buffer(
        "scheduled_tokens",
        capacity=scheduler.max_num_scheduled_tokens,
        unit="tokens",
        kind="managed",
        limit="max_num_batched_tokens",
    )
    _watched.encoder = encoder.created(scheduler.encoder_cache_manager)
    limits.claim_of_scheduler(scheduler)


def _schedules(_args: Args, _kwargs: Kwargs) -> None:
    breadcrumb.begin(_SCHEDULE)


def _scheduled(output: Any, args: Args, _kwargs: Kwargs) -> None:
    """The peak of a step: what was scheduled is allocated, what ends with it is not yet freed."""
    tokens = output.total_num_scheduled_tokens
    breadcrumb.batch(tokens, len(output.num_scheduled_tokens))
    _watched.denied, _watched.latest = 0, id(output)
    _watched.tokens.observe(tokens)
    transfers = getattr(output, "kv_connector_metadata", None)
    if transfers is not None:
        blocks = args[0].kv_cache_manager.block_pool.num_gpu_blocks
        connectors.scheduled(transfers, blocks, args[0].cache_config.block_size)
    session.tick(_observe(args[0]))


def _updated(_output: Any, args: Args, kwargs: Kwargs) -> None:
    """The end of a step: if requests have finished, what they held is free. What vLLM's own statistics show."""
    scheduler = args[0]
    if id(argument("scheduler_output", 1, args, kwargs)) == _watched.latest:
        breadcrumb.end()
    if _watched.encoder or _in_use(scheduler) != _watched.seen:
        session.set_running(_observe(scheduler))


def _observe(scheduler: Any) -> int:
    free, running = _watched.seen = _in_use(scheduler)
    _watched.kv_blocks.observe(scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1 - free)
    _watched.running.observe(running)
    if _watched.encoder:
        encoder.observe(scheduler.encoder_cache_manager)
    return running


def _in_use(scheduler: Any) -> tuple[int, int]:
    return scheduler.kv_cache_manager.block_pool.get_num_free_blocks(), len(scheduler.running)


def _denied(_result: None, args: Args, kwargs: Kwargs) -> None:
    """No blocks for a request. Waiting, it goes on waiting; running, somebody will be preempted for it."""
    if argument("request", 1, args, kwargs).status.name == "RUNNING":
        _watched.denied += 1
        _watched.kv_blocks.exhausted(argument("num_new_tokens", 2, args, kwargs) or 0)
    else:
        _watched.kv_blocks.deferred()


def _preempted(_args: Args, _kwargs: Kwargs) -> None:
    """One exhaustion per preemption: the denial that led to it is counted already."""
    if _watched.denied:
        _watched.denied -= 1
    else:
        _watched.kv_blocks.exhausted()


def _allocation_failed(error: BaseException, args: Args, kwargs: Kwargs) -> None:
    if isinstance(error, ValueError):
        _watched.kv_blocks.exhausted(argument("num_blocks", 1, args, kwargs) or 0)


def _schedule_failed(error: BaseException, _args: Args, _kwargs: Kwargs) -> None:
    session.note_exception("Scheduler.schedule", error)


def _update_failed(error: BaseException, _args: Args, _kwargs: Kwargs) -> None:
    session.note_exception("Scheduler.update_from_output", error)


_SCHEDULER = "vllm.v1.core.sched.scheduler"

HOOKS = (
    Hook(_SCHEDULER, "Scheduler.__init__", after=_created),
    Hook(_SCHEDULER, "Scheduler.schedule", before=_schedules, after=_scheduled, failed=_schedule_failed),
    Hook(
        _SCHEDULER,
        "Scheduler.update_from_output",
        ("scheduler_output",),
        after=_updated,
        failed=_update_failed,
    ),
    Hook(_SCHEDULER, "Scheduler._preempt_request", before=_preempted),
    Hook(
        "vllm.v1.core.kv_cache_manager",
        "KVCacheManager.allocate_slots",
        ("request", "num_new_tokens"),
        after=_denied,
        denied_only=True,
    ),
    Hook(
        "vllm.v1.core.block_pool",
        "BlockPool.get_new_blocks",
        ("num_blocks",),
        failed=_allocation_failed,
    ),
)
