"""Dummy, profile and capture runs of a runner: no request's work, so they raise no high-water mark.

What overflows in one is damage all the same: it is counted, and marked as such.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.breadcrumb import breadcrumb
from ullage.engines._novelty import novelty
from ullage.engines._patch import Hook
from ullage.engines._probe import SharedProbe
from ullage.segment.phase import Phase
from ullage.session import session

if TYPE_CHECKING:
    from ullage.buffers import Buffer
    from ullage.engines._probe import Probe

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


def observe(buffer: Buffer, used: int) -> None:
    """Observe a buffer of a worker; during a run of the engine's own, only look for an overflow."""
    if not breadcrumb.rehearsing:
        buffer.observe(used)
    elif used > buffer.capacity:
        buffer.violated(used - 1, detail=breadcrumb.phase.name.lower().replace("_", " "))


def rehearsal(module: str, target: str, phase: Phase, probe: Probe) -> Hook:
    """Return a hook at a function that runs the engine without a request's work."""

    def begins(_args: Args, _kwargs: Kwargs) -> None:
        breadcrumb.rehearse(phase)
        novelty.look()

    def over(_result: Any, _args: Args, _kwargs: Kwargs) -> None:
        breadcrumb.rehearsed()

    def failed(error: BaseException, _args: Args, _kwargs: Kwargs) -> None:
        breadcrumb.rehearsed()
        if not breadcrumb.rehearsing:  # one run contains another: note it once
            session.note_exception(target, error)

    return Hook(module, target, before=begins, after=over, failed=failed, shared=probe)


_V1 = "vllm.v1.worker.gpu_model_runner"
_PROBE = SharedProbe("GPUModelRunner._dummy_run")


HOOKS = (
    rehearsal(_V1, "GPUModelRunner._dummy_run", Phase.DUMMY_RUN, _PROBE),
    rehearsal(_V1, "GPUModelRunner.profile_run", Phase.PROFILE_RUN, _PROBE),
    rehearsal(_V1, "GPUModelRunner.capture_model", Phase.CAPTURE, _PROBE),
)
