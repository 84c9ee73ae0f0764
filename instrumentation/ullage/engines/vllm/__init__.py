"""vLLM: the plugin that vLLM loads in each of its processes, the versions it was made for, and what it watches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ullage.engines import registry

if TYPE_CHECKING:
    from collections.abc import Mapping

SUPPORTED = ((0, 22), (0, 34))
"""First version supported, and first one not: where the patched functions were read. Tested is 0.32.0."""

PROBES: Mapping[str, tuple[str, ...]] = {
    "vllm.v1.engine.core_client": (".core.lifecycle",),
    "vllm.v1.engine.utils": (".core.lifecycle",),
    "vllm.v1.engine.async_llm": (".core.lifecycle",),
    "vllm.v1.engine.core": (".core.lifecycle",),
    "vllm.v1.executor.multiproc_executor": (".core.lifecycle",),
    "vllm.v1.core.sched.scheduler": (".core.scheduler",),
    "vllm.v1.core.kv_cache_manager": (".core.scheduler",),
    "vllm.v1.core.block_pool": (".core.scheduler",),
    "vllm.v1.core.encoder_cache_manager": (".core.encoder_cache",),
    "vllm.v1.structured_output": (".core.structured_output",),
    "vllm.v1.worker.gpu_model_runner": (".worker.runner_v1", ".worker.dummy_runs"),
    "vllm.v1.worker.block_table": (".worker.runner_v1",),
    "vllm.v1.worker.gpu.model_runner": (".worker.runner_v2",),
    "vllm.v1.worker.gpu_worker": (".worker.runner_v2",),
    "vllm.v1.worker.gpu.states": (".worker.runner_v2",),
    "vllm.v1.worker.gpu.block_table": (".worker.runner_v2",),
    "vllm.v1.worker.gpu.buffer_utils": (".worker.uva",),
    "vllm.v1.worker.cpu.buffer_utils": (".worker.uva",),
    "vllm.v1.spec_decode.llm_base_proposer": (".worker.spec_decode",),
    "vllm.lora.model_manager": (".worker.lora",),
    "vllm.v1.attention.backends.mla.indexer": (".attention.metadata_builders",),
    "vllm.v1.attention.backends.flashinfer": (".attention.flashinfer",),
    "vllm.v1.worker.workspace": (".worker.workspace",),
    "vllm.v1.attention.backends.flash_attn": (".attention.planner",),
    "vllm.v1.attention.backends.mla.flashattn_mla": (".attention.planner",),
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl.worker": (".core.connectors",),
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker": (".core.connectors",),
}
"""By vLLM's module: ours that watch it, which are imported then."""

RUNNER_V1, RUNNER_V2 = "runner v1", "runner v2"
"""Roles of a process with such a runner, besides worker: it may have imported the other one too."""

ALWAYS: Mapping[str, tuple[str, ...]] = {
    "core": (".core.scheduler",),
    RUNNER_V1: (".worker.runner_v1", ".worker.dummy_runs"),
    RUNNER_V2: (".worker.runner_v2",),
}
"""Those that a process of this role has for certain; the others are of features that it may never load."""


def register() -> None:
    """Install the probes; the entry point ``vllm.general_plugins``.

    Called by vLLM without a guard, several times, in processes of all kinds: it raises nothing, opens nothing
    and imports nothing of vLLM. A probe is installed when vLLM imports the module that it is for.
    """
    if "vllm.model_executor.models.registry" not in sys.orig_argv:  # a process that only inspects models
        registry.register("vllm")
