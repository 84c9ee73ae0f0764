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

ROUNDS = int(os.environ.get("ULLAGE_BENCH_ROUNDS", "60"))
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
    taken = {"plain": [], "watched": [], "plain again": []}
    gc.collect()
    gc.freeze()
    gc.disable()
    for _ in range(ROUNDS):
        for prompt in prompts:
            engine.add_request(str(next(number)), prompt, sampling)
        engine.step()
        engine.step()
        while engine.has_unfinished_requests():
            for mode in random.sample(sorted(taken), len(taken)):
                for owner, attribute, wrapper, original in hooks:
                    setattr(owner, attribute, wrapper if mode == "watched" else original)
                for position in range(BLOCK if engine.has_unfinished_requests() else 0):
                    start = time.perf_counter_ns()
                    engine.step()
                    if position >= SETTLE:
                        taken[mode].append(time.perf_counter_ns() - start)
                    if not engine.has_unfinished_requests():
                        break
        gc.collect()
    report(taken)


def report(taken):
    """Print medians, their ratios, and a standard error by resampling."""
    plain = taken["plain"]
    print(f"{len(plain)} steps of 8 requests in each mode")
    for mode, times in taken.items():
        ratio = statistics.median(times) / statistics.median(plain) - 1
        resampled = [
            statistics.median(random.choices(times, k=len(times)))
            / statistics.median(random.choices(plain, k=len(plain)))
            - 1
            for _ in range(200)
        ]
        error = statistics.stdev(resampled)
        print(f"{mode:12} {statistics.median(times) / 1000:8.1f} us a step   {ratio:+.2%} (standard error {error:.2%})")


if __name__ == "__main__":
    main()
