"""The scheduler, in the engine core: KV blocks, running requests, scheduled tokens, and which requests were denied."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ullage.engines.instance import Bindings, bind
from ullage.engines.patch import Patch
from ullage.engines.step_patch import StepPatch
from ullage.engines.vllm.claims import limits
from ullage.engines.vllm.contract_registry import ContractRegistry
from ullage.engines.vllm.core import encoder_cache as encoder
from ullage.engines.vllm.core.connectors import Transfers
from ullage.engines.vllm.identity import current, engine_of, identify, location
from ullage.engines.vllm.views.common import limits_of, look_ahead_tokens
from ullage.inert import InertBuffer
from ullage.segment.layout import P, Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from ullage.engines.instance import EngineInstance
    from ullage.recording.buffers import Buffer

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]

assert (P.STEPS, P.STEP_NS, P.STEP_BEGIN_NS) == (2, 3, 14)


class Scheduling:
    """The buffers of one scheduler, and what was last seen of it.

    Attributes:
        blocks: How many KV blocks can be given out.
        kv_blocks: Their buffer.
        clock: The steps of its engine.
        scheduled_tokens, scheduled_requests, running_requests: Of the last step.
        free: KV blocks that no request holds.
        changes: Since the last step that was counted: the step, and how many were free from that one on.
        observe_blocks: Of the KV blocks.
    """

    __slots__ = (
        "__weakref__",
        "_decoding",
        "_denied",
        "_encoder",
        "_engine",
        "_moving",
        "_phase",
        "_running",
        "_settled",
        "_settled_free",
        "_tokens",
        "blocks",
        "changes",
        "clock",
        "free",
        "kv_blocks",
        "observe_blocks",
        "running_requests",
        "scheduled_requests",
        "scheduled_tokens",
    )

    def __init__(self, engine: EngineInstance, scheduler: Any) -> None:
        config = scheduler.vllm_config
        self._engine = engine
        self.clock = engine.clock
        # In the model runner next, if that lives here as well.
        self._phase = Phase.EXECUTE if "worker" in engine.session.roles else Phase.NONE
        self.scheduled_tokens = self.scheduled_requests = self.running_requests = 0
        self._denied = 0  # running requests denied in this step whose preemption is still to come
        self._settled = self.clock.steps  # the last step that was counted in each buffer
        # Block 0 is the null block, never given.
        self.blocks = max(scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1, 0)
        self.free = self._settled_free = self.blocks
        self.changes: list[tuple[int, int]] = []
        self.kv_blocks = _kv_blocks(engine, config, self.blocks)
        self.observe_blocks = self.kv_blocks.observe
        self._running = engine.buffer(
            "running_requests",
            capacity=scheduler.max_num_running_reqs,
            unit="requests",
            kind="managed",
            limit="max_num_seqs",
        )
        self._tokens = engine.buffer(
            "scheduled_tokens",
            capacity=scheduler.max_num_scheduled_tokens,
            unit="tokens",
            kind="managed",
            limit="max_num_batched_tokens",
        )
        self._encoder = encoder.created(engine, scheduler.encoder_cache_manager)
        ranks = config.parallel_config.data_parallel_size
        # Each step is sampled: something may change in it that does not show in its batch.
        self._moving = ranks > 1 or self._encoder or getattr(scheduler, "connector", None) is not None
        # Tokens of a request in a step, at most, once its prompt is done.
        self._decoding = 1 + look_ahead_tokens(config)

    def differs(self, output: Any, scheduler: Any) -> None:
        """The step has another batch than the one before it, or it must be sampled."""
        clock, engine = self.clock, self._engine
        self.settle(clock.steps - 1)
        self._settled = clock.steps
        # Preempted, with its prefix still cached, a sequence comes back with no more tokens than one that decodes.
        joined = bool(output.scheduled_new_reqs) or len(scheduler.running) > self.running_requests
        self.scheduled_tokens = tokens = output.total_num_scheduled_tokens
        self.scheduled_requests = requests = len(output.num_scheduled_tokens)
        self._tokens.observe(tokens)
        self.observe_held(scheduler)
        engine.phase.batch(tokens, requests)
        engine.phase.enter(self._phase)
        decodes = tokens <= requests * self._decoding and requests == self.running_requests
        engine.sampler.classify(tokens, requests, plain=decodes and not joined and not self._moving)
        if self._moving:
            self._moves(output, scheduler)
        now = time.time_ns()
        if now > clock.due_ns:
            clock.catch_up(now)

    def settle(self, step: int) -> None:
        """Count the steps up to this one that were not sampled: each was like the one before it."""
        steps, self._settled = step - self._settled, step
        self._tokens.observe(self.scheduled_tokens, steps)
        self._running.observe(self.running_requests, steps)
        since = step - steps
        for changed, free in self.changes:
            self.kv_blocks.observe(self.blocks - self._settled_free, changed - 1 - since)
            since, self._settled_free = changed - 1, free
        self.kv_blocks.observe(self.blocks - self._settled_free, step - since)
        self.changes.clear()

    def observe_held(self, scheduler: Any) -> None:
        """Observe the running requests, and the KV blocks that are in use."""
        self.running_requests = running = len(scheduler.running)
        self.free = self._settled_free = free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        self._running.observe(running)
        self.kv_blocks.observe(self.blocks - free)
        self._engine.session.set_running(running)

    def _moves(self, output: Any, scheduler: Any) -> None:
        """What a step encodes, and what it moves between engines."""
        if self._encoder:
            encoder.observe(scheduler.encoder_cache_manager)
        transfers = getattr(output, "kv_connector_metadata", None)
        if transfers is not None:
            block_size = scheduler.cache_config.block_size
            self._engine.part(Transfers).scheduled(transfers, self.blocks + 1, block_size)

    def updated(self, scheduler: Any) -> None:
        """Requests have finished: what they held is free. What vLLM's own statistics show.

        An iteration lasts until the next one, or until no request needs one.
        """
        self.settle(self.clock.steps)
        self.observe_held(scheduler)
        if self._encoder:
            encoder.observe(scheduler.encoder_cache_manager)
        if not self.running_requests:
            self._engine.sampler.start()
            self._engine.phase.end()

    def denied(self, request: Any, num_new_tokens: int) -> None:
        """No blocks for a request. Waiting, it goes on waiting; running, a request will be preempted for it."""
        if request.status.name == "RUNNING":
            self._denied += 1
            self.kv_blocks.exhausted(num_new_tokens or 0)
        else:
            self.kv_blocks.deferred()

    def preempted(self) -> None:
        """One exhaustion per preemption: the denial that led to it is counted already."""
        if self._denied:
            self._denied -= 1
        else:
            self.kv_blocks.exhausted()


def _kv_blocks(engine: EngineInstance, config: Any, blocks: int) -> Buffer | InertBuffer:
    """Register the KV blocks; a model that only encodes has none, and nothing of them is recorded."""
    if not blocks:
        return InertBuffer()
    return engine.buffer(
        "kv_blocks",
        capacity=blocks,
        unit="blocks",
        kind="managed",
        location=location(config),
        limit="num_gpu_blocks",
        histogram=True,
    )


_scheduling: Bindings[Scheduling] = Bindings()
"""By the scheduler, its KV cache manager and its block pool."""


def _scheduled(
    result: Any,
    scheduler: Any,
    states: dict[int, Scheduling] = _scheduling.states,
    clock: Callable[[], int] = time.time_ns,
    length: Callable[[Any], int] = len,
) -> bool:
    """The peak of a step: what was scheduled is allocated, what ends with it is not yet freed.

    In most steps this is all that is done. So it touches little: its names are its own, it stores by literal index, and
    it neither is a bound method nor calls anything as an attribute of a slot: the interpreter makes neither fast.

    Returns:
        The step has another batch than the one before it, or it must be sampled.
    """
    seen = states[id(scheduler)]
    steps = seen.clock
    step = steps.steps = steps.steps + 1
    words = steps.words
    words[2] = step
    words[3] = words[14] = now = clock()
    if (
        result.total_num_scheduled_tokens != seen.scheduled_tokens
        or length(result.num_scheduled_tokens) != seen.scheduled_requests
        or length(scheduler.running) != seen.running_requests
        or result.scheduled_new_reqs
        or step >= steps.sample_at
        or now > steps.due_ns
    ):
        return True
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    if free != seen.free:
        observe, changes = seen.observe_blocks, seen.changes
        observe(seen.blocks - free, 0)
        changes.append((step, free))
        seen.free = free
    return False


def _differs(output: Any, scheduler: Any) -> None:
    _scheduling.states[id(scheduler)].differs(output, scheduler)


def _updated(_result: Any, scheduler: Any) -> None:
    _scheduling.states[id(scheduler)].updated(scheduler)


def _created(_result: None, args: Args, _kwargs: Kwargs) -> None:
    scheduler, engine = args[0], current()
    config, manager = scheduler.vllm_config, scheduler.kv_cache_manager
    identify(engine, config, "core")
    engine.sampler.start()
    scheduling = Scheduling(engine, scheduler)
    for thing in (scheduler, manager, manager.block_pool):
        _scheduling.bind(thing, scheduling)
    for thing in (scheduler, getattr(scheduler, "structured_output_manager", None)):
        if thing is not None:
            bind(thing, engine)
    sizes = engine.part(ContractRegistry)
    limits.claim_of_scheduler(limits_of(config), scheduler.max_model_len, manager.block_pool.num_gpu_blocks, sizes)


def _denied(_result: None, manager: Any, request: Any, num_new_tokens: int) -> None:
    seen = _scheduling.get(manager)
    if seen is not None:
        seen.denied(request, num_new_tokens)


def _preempted(args: Args, _kwargs: Kwargs) -> None:
    _scheduling.states[id(args[0])].preempted()


def _allocation_failed(error: BaseException, pool: Any, num_blocks: int) -> None:
    seen = _scheduling.get(pool)  # a connector has pools of its own, for blocks elsewhere
    if seen is not None and isinstance(error, ValueError):
        seen.kv_blocks.exhausted(num_blocks or 0)


def _schedule_failed(error: BaseException, scheduler: Any) -> None:
    engine = engine_of(scheduler)
    engine.phase.begin(Phase.SCHEDULE)
    engine.clock.sample()  # should the engine go on, the next step states again where it is
    engine.session.note_exception("Scheduler.schedule", error)


def _update_failed(error: BaseException, scheduler: Any) -> None:
    engine_of(scheduler).session.note_exception("Scheduler.update_from_output", error)


_SCHEDULER = "vllm.v1.core.sched.scheduler"

PATCHES = (
    Patch(_SCHEDULER, "Scheduler.__init__", after=_created),
    StepPatch(_SCHEDULER, "Scheduler.schedule", when=_scheduled, after=_differs, failed=_schedule_failed),
    StepPatch(
        _SCHEDULER,
        "Scheduler.update_from_output",
        after=_updated,
        failed=_update_failed,
        when="self.finished_req_ids or not self.running",
        reads=("Scheduler.finished_req_ids", "Scheduler.running"),
    ),
    Patch(_SCHEDULER, "Scheduler._preempt_request", before=_preempted),
    StepPatch(
        "vllm.v1.core.kv_cache_manager", "KVCacheManager.allocate_slots", after=_denied, when="ullage_result is None"
    ),
    StepPatch("vllm.v1.core.block_pool", "BlockPool.get_new_blocks", failed=_allocation_failed),
)
