"""vLLM: the plugin that vLLM loads in each of its processes, the versions it was made for, and what it watches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ullage.engines import registry

if TYPE_CHECKING:
    from collections.abc import Mapping

SUPPORTED = ((0, 22), (0, 34))
"""First version supported, and first one not: where the hooked functions were read. Tested is 0.32.0."""

PROBES: Mapping[str, tuple[str, ...]] = {
    "vllm.v1.engine.core_client": (".lifecycle",),
    "vllm.v1.engine.async_llm": (".lifecycle",),
    "vllm.v1.engine.core": (".lifecycle",),
    "vllm.v1.executor.multiproc_executor": (".lifecycle",),
    "vllm.v1.core.sched.scheduler": (".scheduler",),
    "vllm.v1.core.kv_cache_manager": (".scheduler",),
    "vllm.v1.core.block_pool": (".scheduler",),
    "vllm.v1.core.encoder_cache_manager": (".encoder",),
    "vllm.v1.structured_output": (".structured",),
    "vllm.v1.worker.gpu_model_runner": (".runner_v1", ".dummy_runs"),
    "vllm.v1.worker.block_table": (".runner_v1",),
    "vllm.v1.worker.gpu.model_runner": (".runner_v2",),
    "vllm.v1.worker.gpu_worker": (".runner_v2",),
    "vllm.v1.worker.gpu.states": (".runner_v2",),
    "vllm.v1.worker.gpu.block_table": (".runner_v2",),
    "vllm.v1.worker.gpu.buffer_utils": (".uva",),
    "vllm.v1.worker.cpu.buffer_utils": (".uva",),
    "vllm.v1.spec_decode.llm_base_proposer": (".speculative",),
    "vllm.lora.model_manager": (".lora",),
    "vllm.v1.attention.backends.mla.indexer": (".metadata_builders",),
    "vllm.v1.attention.backends.flashinfer": (".backends",),
    "vllm.v1.worker.workspace": (".workspace",),
    "vllm.v1.attention.backends.flash_attn": (".planner",),
    "vllm.v1.attention.backends.mla.flashattn_mla": (".planner",),
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl.worker": (".connectors",),
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker": (".connectors",),
}
"""By vLLM's module: ours that watch it, which are imported then."""

RUNNER_V1, RUNNER_V2 = "runner v1", "runner v2"
"""Roles of a process with such a runner, besides worker: it may have imported the other one too."""

ALWAYS: Mapping[str, tuple[str, ...]] = {
    "core": (".scheduler",),
    RUNNER_V1: (".runner_v1", ".dummy_runs"),
    RUNNER_V2: (".runner_v2",),
}
"""Those that a process of this role has for certain; the others are of features that it may never load."""


def register() -> None:
    """Install the probes; the entry point ``vllm.general_plugins``.

    Called by vLLM without a guard, several times, in processes of all kinds: it raises nothing, opens nothing
    and imports nothing of vLLM. A probe is installed when vLLM imports the module that it is for.
    """
    if "vllm.model_executor.models.registry" not in sys.orig_argv:  # a process that only inspects models
        registry.register("vllm")
