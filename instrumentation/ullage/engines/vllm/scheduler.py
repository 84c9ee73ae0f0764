"""The scheduler, in the engine core: KV blocks, running requests, scheduled tokens, and who was denied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.breadcrumb import breadcrumb
from ullage.buffers import Buffer, buffer
from ullage.engines._novelty import novelty
from ullage.engines._patch import Hook
from ullage.engines._step_hook import StepHook
from ullage.engines.vllm import connectors, encoder, limits
from ullage.engines.vllm._identity import identify, location
from ullage.engines.vllm._sizes import look_ahead_tokens
from ullage.segment.phase import Phase
from ullage.session import session

if TYPE_CHECKING:
    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


class _Watched:
    """The buffers of this process's scheduler, and what was last seen of it.

    Attributes:
        blocks: How many KV blocks there are to be given out.
        encoder: The model has an encoder, and so a cache of what it gave.
        decoding: Tokens of a request in a step, at most, once its prompt is done.
        always: Each step is looked at: something may change in it that is not seen in its batch.
        phase: Where this process is when a batch was scheduled: in the model runner, if that lives here as well.
        batch: Tokens and requests of the last step.
        free: KV blocks that nobody held.
        requests: Running requests.
        denied: Running requests denied in this step whose preemption is still to come.
        latest: ``id`` of the newest output: with asynchronous scheduling, the step before it ends after it has begun.
    """

    kv_blocks: Buffer
    running: Buffer
    tokens: Buffer
    blocks: int
    encoder: bool
    always: bool
    decoding: int

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A scheduler is made."""
        self.phase = Phase.EXECUTE if "worker" in session.roles else Phase.NONE
        self.batch = (-1, -1)
        self.free = self.requests = -1
        self.denied = self.latest = 0


_watched = _Watched()


def _created(_result: None, args: Args, _kwargs: Kwargs) -> None:
    scheduler = args[0]
    config = scheduler.vllm_config
    identify(config, "core")
    _watched.start()
    novelty.start()
    _watched.blocks = scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1  # block 0 is the null block, never given
    _watched.kv_blocks = buffer(
        "kv_blocks",
        capacity=_watched.blocks,
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
    ranks = config.parallel_config.data_parallel_size
    _watched.always = ranks > 1 or _watched.encoder or getattr(scheduler, "connector", None) is not None
    _watched.decoding = 1 + look_ahead_tokens(config)
    limits.claim_of_scheduler(scheduler)


def _scheduled(result: Any, scheduler: Any) -> None:
    """The peak of a step: what was scheduled is allocated, what ends with it is not yet freed."""
    watched = _watched
    watched.denied, watched.latest = 0, id(result)
    watched.free = free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    watched.kv_blocks.observe(watched.blocks - free)
    running = len(scheduler.running)
    batch = result.total_num_scheduled_tokens, len(result.num_scheduled_tokens)
    novelty.step += 1
    if batch != watched.batch or running != watched.requests or novelty.step >= novelty.look_at:
        _differs(result, scheduler, batch, running)
    else:
        novelty.familiar = True
    breadcrumb.phase = watched.phase
    session.tick(running, watched.phase)


def _differs(output: Any, scheduler: Any, batch: tuple[int, int], running: int) -> None:
    """The step has another batch than the one before it, or it is time to look."""
    watched = _watched
    watched.batch, watched.requests = batch, running
    tokens, requests = batch
    breadcrumb.batch(tokens, requests)
    watched.tokens.observe(tokens)
    watched.running.observe(running)
    newcomers = bool(getattr(output, "scheduled_new_reqs", True))
    novelty.judge(tokens, requests, grows=newcomers or tokens > requests * watched.decoding)
    if watched.always:
        _moves(output, scheduler)
        novelty.stay()


def _moves(output: Any, scheduler: Any) -> None:
    """What a step encodes, and what it moves between engines."""
    if _watched.encoder:
        encoder.observe(scheduler.encoder_cache_manager)
    transfers = getattr(output, "kv_connector_metadata", None)
    if transfers is not None:
        connectors.scheduled(transfers, _watched.blocks + 1, scheduler.cache_config.block_size)


def _updated(_result: Any, scheduler: Any, scheduler_output: Any) -> None:
    """The end of a step: if requests have finished, what they held is free. What vLLM's own statistics show."""
    watched = _watched
    if id(scheduler_output) == watched.latest:
        breadcrumb.end()
    free, running = scheduler.kv_cache_manager.block_pool.get_num_free_blocks(), len(scheduler.running)
    if free != watched.free or running != watched.requests or watched.encoder:
        watched.free, watched.requests = free, running
        watched.kv_blocks.observe(watched.blocks - free)
        watched.running.observe(running)
        if watched.encoder:
            encoder.observe(scheduler.encoder_cache_manager)
        session.set_running(running)
        if not running:
            novelty.start()


def _denied(_result: None, _manager: Any, request: Any, num_new_tokens: int) -> None:
    """No blocks for a request. Waiting, it goes on waiting; running, somebody will be preempted for it."""
    if request.status.name == "RUNNING":
        _watched.denied += 1
        _watched.kv_blocks.exhausted(num_new_tokens or 0)
    else:
        _watched.kv_blocks.deferred()


def _preempted(_args: Args, _kwargs: Kwargs) -> None:
    """One exhaustion per preemption: the denial that led to it is counted already."""
    if _watched.denied:
        _watched.denied -= 1
    else:
        _watched.kv_blocks.exhausted()


def _allocation_failed(error: BaseException, _pool: Any, num_blocks: int) -> None:
    if isinstance(error, ValueError):
        _watched.kv_blocks.exhausted(num_blocks or 0)


def _schedule_failed(error: BaseException) -> None:
    breadcrumb.begin(Phase.SCHEDULE)
    session.note_exception("Scheduler.schedule", error)


def _update_failed(error: BaseException) -> None:
    session.note_exception("Scheduler.update_from_output", error)


_SCHEDULER = "vllm.v1.core.sched.scheduler"

HOOKS = (
    Hook(_SCHEDULER, "Scheduler.__init__", after=_created),
    StepHook(_SCHEDULER, "Scheduler.schedule", after=_scheduled, failed=_schedule_failed),
    StepHook(_SCHEDULER, "Scheduler.update_from_output", after=_updated, failed=_update_failed),
    Hook(_SCHEDULER, "Scheduler._preempt_request", before=_preempted),
    StepHook("vllm.v1.core.kv_cache_manager", "KVCacheManager.allocate_slots", after=_denied, denied_only=True),
    StepHook("vllm.v1.core.block_pool", "BlockPool.get_new_blocks", failed=_allocation_failed),
)
