"""The scheduler, in the engine core: KV blocks, running requests, scheduled tokens, and who was denied."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ullage.beat import Beat, beat
from ullage.breadcrumb import breadcrumb
from ullage.buffers import Buffer, buffer
from ullage.engines._novelty import novelty
from ullage.engines._patch import Hook
from ullage.engines._step_hook import StepHook
from ullage.engines.vllm import connectors, encoder
from ullage.engines.vllm._identity import identify, location
from ullage.engines.vllm._sizes import process_sizes
from ullage.engines.vllm.claims import limits
from ullage.engines.vllm.view_common import limits_of, look_ahead_tokens
from ullage.segment.layout import P
from ullage.segment.phase import Phase
from ullage.session import session

if TYPE_CHECKING:
    from collections.abc import Callable

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

assert (P.STEPS, P.STEP_NS, P.STEP_BEGIN_NS) == (2, 3, 14)


class _Watched:
    """The buffers of this process's scheduler, and what was last seen of it.

    Attributes:
        blocks: How many KV blocks there are to be given out.
        encoder: The model has an encoder, and so a cache of what it gave.
        moving: Each step is looked at: something may change in it that is not seen in its batch.
        decoding: Tokens of a request in a step, at most, once its prompt is done.
        phase: Where this process is when a batch was scheduled: in the model runner, if that lives here as well.
        scheduled_tokens, scheduled_requests, running_requests: Of the last step.
        free: KV blocks that nobody holds.
        settled: The last step that was counted in each buffer.
        settled_free: KV blocks that nobody held in that step.
        changes: Since then: the step, and how many were free from that one on.
        hold: Of the KV blocks.
        denied: Running requests denied in this step whose preemption is still to come.
    """

    __slots__ = (
        "blocks",
        "changes",
        "decoding",
        "denied",
        "encoder",
        "free",
        "hold",
        "kv_blocks",
        "moving",
        "phase",
        "running",
        "running_requests",
        "scheduled_requests",
        "scheduled_tokens",
        "settled",
        "settled_free",
        "tokens",
    )

    kv_blocks: Buffer
    running: Buffer
    tokens: Buffer
    blocks: int
    encoder: bool
    moving: bool
    decoding: int
    changes: list[tuple[int, int]]

    def created(self, scheduler: Any) -> None:
        """A scheduler is made."""
        config = scheduler.vllm_config
        self.phase = Phase.EXECUTE if "worker" in session.roles else Phase.NONE
        self.scheduled_tokens = self.scheduled_requests = self.running_requests = 0
        self.denied = 0
        self.settled = beat.steps
        self.blocks = scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1  # block 0 is the null block, never given
        self.free = self.settled_free = self.blocks
        self.changes = []
        self.kv_blocks = buffer(
            "kv_blocks",
            capacity=self.blocks,
            unit="blocks",
            kind="managed",
            location=location(config),
            limit="num_gpu_blocks",
        )
        self.hold = self.kv_blocks.hold
        self.running = buffer(
            "running_requests",
            capacity=scheduler.max_num_running_reqs,
            unit="requests",
            kind="managed",
            limit="max_num_seqs",
        )
        self.tokens = buffer(
            "scheduled_tokens",
            capacity=scheduler.max_num_scheduled_tokens,
            unit="tokens",
            kind="managed",
            limit="max_num_batched_tokens",
        )
        self.encoder = encoder.created(scheduler.encoder_cache_manager)
        ranks = config.parallel_config.data_parallel_size
        self.moving = ranks > 1 or self.encoder or getattr(scheduler, "connector", None) is not None
        self.decoding = 1 + look_ahead_tokens(config)

    def differs(self, output: Any, scheduler: Any) -> None:
        """The step has another batch than the one before it, or it is time to look."""
        self.settle(beat.steps - 1)
        self.settled = beat.steps
        # Preempted, with its prefix still cached, a sequence comes back with no more tokens than one that decodes.
        joined = bool(output.scheduled_new_reqs) or len(scheduler.running) > self.running_requests
        self.scheduled_tokens = tokens = output.total_num_scheduled_tokens
        self.scheduled_requests = requests = len(output.num_scheduled_tokens)
        self.tokens.observe(tokens)
        self.observe_held(scheduler)
        breadcrumb.batch(tokens, requests)
        breadcrumb.enter(self.phase)
        decodes = tokens <= requests * self.decoding and requests == self.running_requests
        novelty.judge(tokens, requests, plain=decodes and not joined and not self.moving)
        if self.moving:
            self.moves(output, scheduler)
        now = time.time_ns()
        if now > beat.due_ns:
            beat.catch_up(now)

    def settle(self, step: int) -> None:
        """Count the steps up to this one at which nobody looked: each was like the one before it."""
        steps, self.settled = step - self.settled, step
        self.tokens.counted(self.scheduled_tokens, steps)
        self.running.counted(self.running_requests, steps)
        since = step - steps
        for changed, free in self.changes:
            self.kv_blocks.counted(self.blocks - self.settled_free, changed - 1 - since)
            since, self.settled_free = changed - 1, free
        self.kv_blocks.counted(self.blocks - self.settled_free, step - since)
        self.changes.clear()

    def observe_held(self, scheduler: Any) -> None:
        """Observe the running requests, and the KV blocks that are in use."""
        self.running_requests = running = len(scheduler.running)
        self.free = self.settled_free = free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        self.running.observe(running)
        self.kv_blocks.observe(self.blocks - free)
        session.set_running(running)

    def moves(self, output: Any, scheduler: Any) -> None:
        """What a step encodes, and what it moves between engines."""
        if self.encoder:
            encoder.observe(scheduler.encoder_cache_manager)
        transfers = getattr(output, "kv_connector_metadata", None)
        if transfers is not None:
            connectors.scheduled(transfers, self.blocks + 1, scheduler.cache_config.block_size)

    def updated(self, _result: Any, scheduler: Any) -> None:
        """Requests have finished: what they held is free. What vLLM's own statistics show.

        An iteration lasts until the next one, or until nobody needs one.
        """
        self.settle(beat.steps)
        self.observe_held(scheduler)
        if self.encoder:
            encoder.observe(scheduler.encoder_cache_manager)
        if not self.running_requests:
            novelty.start()
            breadcrumb.end()


_watched = _Watched()


def _scheduled(
    result: Any,
    scheduler: Any,
    seen: _Watched = _watched,
    beat: Beat = beat,
    clock: Callable[[], int] = time.time_ns,
    length: Callable[[Any], int] = len,
) -> bool:
    """The peak of a step: what was scheduled is allocated, what ends with it is not yet freed.

    In most steps this is all that is done. So it touches little: its names are its own, it stores by literal index, and
    it neither is a bound method nor calls anything as an attribute of a slot: the interpreter makes neither fast.

    Returns:
        The step has another batch than the one before it, or it is time to look.
    """
    step = beat.steps = beat.steps + 1
    words = beat.words
    words[2] = step
    words[3] = words[14] = now = clock()
    if (
        result.total_num_scheduled_tokens != seen.scheduled_tokens
        or length(result.num_scheduled_tokens) != seen.scheduled_requests
        or length(scheduler.running) != seen.running_requests
        or result.scheduled_new_reqs
        or step >= beat.judge_at
        or now > beat.due_ns
    ):
        return True
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    if free != seen.free:
        hold, changes = seen.hold, seen.changes
        hold(seen.blocks - free)
        changes.append((step, free))
        seen.free = free
    return False


def _created(_result: None, args: Args, _kwargs: Kwargs) -> None:
    scheduler = args[0]
    identify(scheduler.vllm_config, "core")
    novelty.start()
    _watched.created(scheduler)
    blocks = scheduler.kv_cache_manager.block_pool.num_gpu_blocks
    limits.claim_of_scheduler(limits_of(scheduler.vllm_config), scheduler.max_model_len, blocks, process_sizes)


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
    novelty.look()  # should the engine go on, the next step says anew where it is
    session.note_exception("Scheduler.schedule", error)


def _update_failed(error: BaseException) -> None:
    session.note_exception("Scheduler.update_from_output", error)


_SCHEDULER = "vllm.v1.core.sched.scheduler"

HOOKS = (
    Hook(_SCHEDULER, "Scheduler.__init__", after=_created),
    StepHook(_SCHEDULER, "Scheduler.schedule", when=_scheduled, after=_watched.differs, failed=_schedule_failed),
    StepHook(
        _SCHEDULER,
        "Scheduler.update_from_output",
        after=_watched.updated,
        failed=_update_failed,
        when="self.finished_req_ids or not self.running",
        reads=("Scheduler.finished_req_ids", "Scheduler.running"),
    ),
    Hook(_SCHEDULER, "Scheduler._preempt_request", before=_preempted),
    StepHook(
        "vllm.v1.core.kv_cache_manager", "KVCacheManager.allocate_slots", after=_denied, when="ullage_result is None"
    ),
    StepHook("vllm.v1.core.block_pool", "BlockPool.get_new_blocks", failed=_allocation_failed),
)
