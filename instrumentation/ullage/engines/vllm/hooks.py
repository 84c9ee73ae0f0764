"""All hook points in vLLM, by the processes that need them."""

from __future__ import annotations

from ullage.engines.vllm import (
    builds,
    connectors,
    encoder,
    lifecycle,
    lora,
    planner,
    rehearsal,
    runner_v1,
    scheduler,
    speculative,
    structured,
    workspace,
)

ALWAYS = {"core": scheduler.HOOKS, "worker": (*runner_v1.HOOKS, *rehearsal.HOOKS)}
"""Those that a process of this role has for certain; the others are of features that it may never load."""

HOOKS = (
    *lifecycle.HOOKS,
    *scheduler.HOOKS,
    *encoder.HOOKS,
    *structured.HOOKS,
    *runner_v1.HOOKS,
    *rehearsal.HOOKS,
    *speculative.HOOKS,
    *lora.HOOKS,
    *builds.HOOKS,
    *workspace.HOOKS,
    *planner.HOOKS,
    *connectors.HOOKS,
)
