"""Dummy, profile and capture runs of a runner: no request's work, so they raise no high-water mark.

What overflows in one is damage all the same: it is counted, and marked as such.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ullage.engines.patch import Patch
from ullage.engines.probe import SharedProbe
from ullage.engines.vllm.identity import engine_of
from ullage.segment.layout import Phase

if TYPE_CHECKING:
    from ullage.engines.probe import Probe

    Args = tuple[Any, ...]
    Kwargs = dict[str, Any]


def dummy_run(module: str, target: str, phase: Phase, probe: Probe) -> Patch:
    """Return a patch of a function that runs the engine without a request's work."""

    def begins(args: Args, _kwargs: Kwargs) -> None:
        engine = engine_of(args[0])
        engine.phase.begin_dummy_run(phase)
        engine.clock.sample()

    def over(_result: Any, args: Args, _kwargs: Kwargs) -> None:
        engine_of(args[0]).phase.end_dummy_run()

    def failed(error: BaseException, args: Args, _kwargs: Kwargs) -> None:
        engine = engine_of(args[0])
        engine.phase.end_dummy_run()
        if not engine.phase.dummy:  # one run contains another: note it once
            engine.session.note_exception(target, error)

    return Patch(module, target, before=begins, after=over, failed=failed, shared=probe)


_V1 = "vllm.v1.worker.gpu_model_runner"
_PROBE = SharedProbe("GPUModelRunner._dummy_run")


PATCHES = (
    dummy_run(_V1, "GPUModelRunner._dummy_run", Phase.DUMMY_RUN, _PROBE),
    dummy_run(_V1, "GPUModelRunner.profile_run", Phase.PROFILE_RUN, _PROBE),
    dummy_run(_V1, "GPUModelRunner.capture_model", Phase.CAPTURE, _PROBE),
)
