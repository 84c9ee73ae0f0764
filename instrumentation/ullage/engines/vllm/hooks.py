"""All hook points in vLLM, by the processes that need them."""

from __future__ import annotations

from ullage.engines.vllm import (
    backends,
    connectors,
    dummy_runs,
    encoder,
    lifecycle,
    lora,
    metadata_builders,
    planner,
    runner_v1,
    runner_v2,
    scheduler,
    speculative,
    structured,
    uva,
    workspace,
)

ALWAYS = {
    "core": scheduler.HOOKS,
    runner_v1.ROLE: (*runner_v1.HOOKS, *dummy_runs.HOOKS),
    runner_v2.ROLE: runner_v2.HOOKS,
}
"""Those that a process of this role has for certain; the others are of features that it may never load."""

HOOKS = (
    *lifecycle.HOOKS,
    *scheduler.HOOKS,
    *encoder.HOOKS,
    *structured.HOOKS,
    *runner_v1.HOOKS,
    *dummy_runs.HOOKS,
    *runner_v2.HOOKS,
    *uva.HOOKS,
    *speculative.HOOKS,
    *lora.HOOKS,
    *metadata_builders.HOOKS,
    *backends.HOOKS,
    *workspace.HOOKS,
    *planner.HOOKS,
    *connectors.HOOKS,
)
