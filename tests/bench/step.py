"""What the hook costs a step of a real vLLM: watched and plain blocks of steps in random order in one process, A/A
beside them.

The plain steps run vLLM's own functions, not our wrappers. Everything in one process: the worst case, since the probes
of the core and of the worker add up.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples"))
import tiny_llama

ROUNDS = int(os.environ.get("ULLAGE_BENCH_ROUNDS", "150"))
TOKENS = 128
BLOCK, SETTLE = 15, 4
"""Steps in one mode before the next, and how many of them are not counted: each change of a class makes the interpreter
specialise its code anew, which never happens to a user."""


def wrapped(llm):
    """Return what is wrapped: (class, name, wrapper, vLLM's own function)."""
    from ullage.engines._patch import _definer
    from ullage.engines.vllm import builds, runner_v1, scheduler, tables

    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    found = []
    for builder, _ in tables.each_builder(runner):
        for hook in builds.BUILDS:
            attribute = hook.target.partition(".")[2]
            owner = _definer(type(builder), attribute)
            wrapper = owner.__dict__[attribute]
            found.append((owner, attribute, wrapper, wrapper.__wrapped__))
    for hook in (*scheduler.HOOKS, *runner_v1.HOOKS):
        class_name, _, attribute = hook.target.partition(".")
        owner = _definer(getattr(sys.modules[hook.module], class_name), attribute)
        wrapper = owner.__dict__[attribute]
        found.append((owner, attribute, wrapper, wrapper.__wrapped__))
    return found


def main():
    directory = tempfile.TemporaryDirectory(dir="/dev/shm")
    os.environ.update(tiny_llama.ENVIRONMENT, ULLAGE_DIR=directory.name, VLLM_ENABLE_V1_MULTIPROCESSING="0")
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(tiny_llama.make(Path(directory.name))),
        num_gpu_blocks_override=256,
        distributed_executor_backend="uni",
        enable_prefix_caching=False,
        **tiny_llama.ARGUMENTS,
    )
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0.0, detokenize=False)
    prompts = [{"prompt_token_ids": [3 + (i * 7 + j) % 250 for j in range(20 + i * 10)]} for i in range(8)]
    engine, hooks, number = llm.llm_engine, wrapped(llm), iter(range(10**9))
    modes, groups = ("plain", "watched", "plain again"), []
    gc.collect()
    gc.freeze()
    gc.disable()
    for _ in range(ROUNDS):
        for prompt in prompts:
            engine.add_request(str(next(number)), prompt, sampling)
        engine.step()
        engine.step()
        for _ in range((TOKENS - 4) // (len(modes) * BLOCK)):
            taken = {}
            for mode in random.sample(modes, len(modes)):
                for owner, attribute, wrapper, original in hooks:
                    setattr(owner, attribute, wrapper if mode == "watched" else original)
                times = []
                for _ in range(BLOCK):
                    start = time.perf_counter_ns()
                    engine.step()
                    times.append(time.perf_counter_ns() - start)
                taken[mode] = statistics.median(times[SETTLE:]) / 1000
            groups.append(taken)
        while engine.has_unfinished_requests():
            engine.step()
        gc.collect()
    report(groups)


def report(groups):
    """Print what a block of steps takes longer than the plain ones beside it, with an error by resampling."""
    plain = statistics.median(group["plain"] for group in groups)
    print(f"{len(groups)} groups of {BLOCK - SETTLE} steps of 8 requests in each mode; plain {plain:.0f} us a step")
    for mode in groups[0]:
        longer = [group[mode] - (group["plain"] + group["plain again"]) / 2 for group in groups]
        resampled = [statistics.median(random.choices(longer, k=len(longer))) for _ in range(500)]
        middle, error = statistics.median(longer), statistics.stdev(resampled)
        print(
            f"{mode:12} {middle:+6.1f} us (standard error {error:.1f})   "
            f"{middle / plain:+.2%} (standard error {error / plain:.2%})"
        )


if __name__ == "__main__":
    main()
