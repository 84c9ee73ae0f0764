"""Limits that every process of one engine must share: a limit that changes at run time must change everywhere."""

from __future__ import annotations

from typing import Any

from ullage.engines.vllm._sizes import agreed, inputs


def claim_of_runner(runner: Any) -> None:
    """Claim the limits that a worker's buffers were allocated for, when its KV cache is."""
    _claim("model runner", runner.vllm_config, runner.max_model_len, runner.kv_cache_config.num_blocks)


def claim_of_scheduler(scheduler: Any) -> None:
    """Claim the limits by which requests are admitted; whatever they may reach, the block tables must."""
    config = scheduler.vllm_config
    _claim("scheduler", config, scheduler.max_model_len, scheduler.kv_cache_manager.block_pool.num_gpu_blocks)
    reach = agreed("block_table.tokens")
    needed = inputs(config, max_model_len=scheduler.max_model_len)
    reach.claim("scheduler", (scheduler.max_model_len,), role="requires", inputs=needed)


def _claim(source: str, config: Any, max_model_len: int, blocks: int) -> None:
    scheduler = config.scheduler_config
    shape = (max_model_len, scheduler.max_num_seqs, scheduler.max_num_batched_tokens, blocks)
    agreed("limits").claim(source, shape)
