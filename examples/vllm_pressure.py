"""A real vLLM, not changed by one line, under a load that rises until requests are preempted, and falls again.

    python examples/vllm_pressure.py [--seconds 30]

With ullage installed and ULLAGE_DIR set, vLLM loads the hook itself: it is a plugin.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import tiny_llama

KV_BLOCKS = 24
MAX_TOKENS = 160


def main() -> None:
    """Generate with more and more requests at once, then with one."""
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=30)
    seconds = options.parse_args().seconds
    os.environ.update(tiny_llama.ENVIRONMENT, VLLM_LOGGING_LEVEL="ERROR")

    from vllm import LLM, SamplingParams  # noqa: PLC0415  it reads the environment when it is imported

    with tempfile.TemporaryDirectory() as directory:
        llm = LLM(
            model=str(tiny_llama.make(Path(directory))),
            num_gpu_blocks_override=KV_BLOCKS,
            disable_log_stats=False,
            **tiny_llama.ARGUMENTS,
        )
        sampling = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, temperature=0.0, detokenize=False)
        print("loading", flush=True)
        start = time.monotonic()
        while (passed := time.monotonic() - start) < seconds:
            requests = 1 + int(15 * passed / (seconds * 0.5)) if passed < seconds * 0.6 else 1
            prompts = [{"prompt_token_ids": [3 + row, *range(3, 35)]} for row in range(min(requests, 12))]
            llm.generate(prompts, sampling, use_tqdm=False)
        metrics = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
        print(f"preempted {metrics['vllm:num_preemptions']:g}", flush=True)


if __name__ == "__main__":
    main()
