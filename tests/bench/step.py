"""What the hook costs a step of a real vLLM: watched and plain steps in random order in one process, A/A beside them.

Instead of each function that is wrapped stands one that calls either vLLM's own or our wrapper: classes that change
would make the interpreter specialise its code anew, which never happens to a user. Everything in one process: the worst
case, since the probes of the core and of the worker add up.
"""

from __future__ import annotations

import gc
import inspect
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples"))
import tiny_llama

from ullage.engines._step_hook import _arguments, _parameters

ROUNDS = int(os.environ.get("ULLAGE_BENCH_ROUNDS", "150"))
TOKENS = 128
MODES = ("plain", "watched", "plain again")


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


def switched(function, wrapper, watching):
    """Return a function that calls ``wrapper`` as long as the list ``watching`` has something in it."""
    signature = inspect.signature(function)
    names = {"function": function, "wrapper": wrapper, "watching": watching}
    names |= {f"ullage_default_{name}": each.default for name, each in signature.parameters.items()}
    parameters, arguments = _parameters(signature), _arguments(signature)
    code = (
        f"def switch({parameters}):\n    if watching:\n        return wrapper({arguments})\n"
        f"    return function({arguments})\n"
    )
    exec(compile(code, "<switch>", "exec"), names)
    return names["switch"]


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
    engine, number, watching, groups = llm.llm_engine, iter(range(10**9)), [True], []
    for owner, attribute, wrapper, original in wrapped(llm):
        setattr(owner, attribute, switched(original, wrapper, watching))
    gc.collect()
    gc.freeze()
    gc.disable()
    for _ in range(ROUNDS):
        for prompt in prompts:
            engine.add_request(str(next(number)), prompt, sampling)
        engine.step()
        engine.step()
        for _ in range((TOKENS - 4) // len(MODES)):
            taken = {}
            for mode in random.sample(MODES, len(MODES)):
                watching[:] = [True] if mode == "watched" else []
                start = time.perf_counter_ns()
                engine.step()
                taken[mode] = (time.perf_counter_ns() - start) / 1000
            groups.append(taken)
        watching[:] = [True]
        while engine.has_unfinished_requests():
            engine.step()
        gc.collect()
    report(groups)


def report(groups):
    """Print what a step takes longer than the plain one beside it, with an error by resampling."""
    plain = statistics.median(group["plain"] for group in groups)
    print(f"{len(groups)} steps of 8 requests in each mode; plain {plain:.0f} us a step")
    for mode in MODES[1:]:
        longer = [group[mode] - group["plain"] for group in groups]
        for name, average in (("median", statistics.median), ("mean of the middle 80 %", trimmed)):
            resampled = [average(random.choices(longer, k=len(longer))) for _ in range(200)]
            middle, error = average(longer), statistics.stdev(resampled)
            print(
                f"{mode:12} {middle:+6.1f} us (standard error {error:.1f})   "
                f"{middle / plain:+.2%} (standard error {error / plain:.2%})   {name}"
            )


def trimmed(values):
    """Return the mean without the lowest and the highest tenth."""
    cut = len(values) // 10
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


if __name__ == "__main__":
    main()
