"""What the hook costs a step of a real vLLM: watched and plain steps in random order in one process, A/A beside them.

Instead of each function that is wrapped stands one that calls either vLLM's own or our wrapper: classes that change
would make the interpreter specialise its code anew, which never happens to a user. Everything in one process, where the
probes of the core and of the worker add up.

Most of the noise is the model's forward pass, in which nothing of ours runs: it is measured by itself and left out.
Steps that are looked at are too rare to come up here: once in each round one is forced, and added as often as they are.
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

from ullage.engines.step_patch import _arguments, _parameters
from ullage.engines.vllm.identity import current
from ullage.progress.sampler import SAMPLE_EVERY

ROUNDS = int(os.environ.get("ULLAGE_BENCH_ROUNDS", "150"))
TOKENS = 128
MODES = ("plain", "watched", "plain again")


def wrapped(llm):
    """Return what is wrapped: (class, name, wrapper, vLLM's own function)."""
    from ullage.engines.patch import _definer
    from ullage.engines.vllm.attention import metadata_builders
    from ullage.engines.vllm.core import scheduler
    from ullage.engines.vllm.views import view_v1
    from ullage.engines.vllm.worker import runner_v1

    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    found = []
    for builder in view_v1.view(runner).builders:
        for hook in metadata_builders.BUILDS:
            attribute = hook.target.partition(".")[2]
            owner = _definer(type(builder.engine_object), attribute)
            wrapper = owner.__dict__[attribute]
            found.append((owner, attribute, wrapper, wrapper.__wrapped__))
    for hook in (*scheduler.PATCHES, *runner_v1.PATCHES):
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


class Stopwatch:
    """Measures steps, and the model's forward pass in them. Times are microseconds."""

    def __init__(self, engine):
        from ullage.engines.vllm.core.scheduler import _scheduling

        self.engine, self.forward = engine, 0
        runner = type(engine.model_executor.driver_worker.worker.model_runner)
        pool = engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        scheduling = _scheduling.get(pool)
        forward, clock = runner._model_forward, time.perf_counter_ns

        def timed(*args, **kwargs):
            start = clock()
            # What changed in a plain step is none of the next watched one's: it would be in most of them.
            scheduling.free = pool.get_num_free_blocks()
            result = forward(*args, **kwargs)
            self.forward += clock() - start
            return result

        runner._model_forward = timed

    def step(self):
        """Run one and return how long it took, its forward pass left out, and the forward pass."""
        self.forward = 0
        start = time.perf_counter_ns()
        self.engine.step()
        whole = time.perf_counter_ns() - start
        return (whole - self.forward) / 1000, self.forward / 1000


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
    engine, number, watching, groups, looks = llm.llm_engine, iter(range(10**9)), [True], [], []
    for owner, attribute, wrapper, original in wrapped(llm):
        setattr(owner, attribute, switched(original, wrapper, watching))
    watch = Stopwatch(engine)
    gc.collect()
    gc.freeze()
    gc.disable()
    for _ in range(ROUNDS):
        for prompt in prompts:
            engine.add_request(str(next(number)), prompt, sampling)
        for _ in range(3):
            engine.step()
        several = (TOKENS - 7) // len(MODES)
        forced = random.randrange(several)
        for group in range(several):
            taken = {}
            for mode in random.sample(MODES, len(MODES)):
                watching[:] = [True] if mode == "watched" else []
                taken[mode] = watch.step()
            groups.append(taken)
            if group == forced:
                watching[:] = [True]
                current().sampler.start()
                looks.append([watch.step()[0] - taken["plain"][0] for _ in range(2)])
        watching[:] = [True]
        while engine.has_unfinished_requests():
            engine.step()
        gc.collect()
    report(groups, looks)


def report(groups, looks):
    """Print what a step takes longer than the plain one beside it, with an error by resampling."""
    rest, forward = (statistics.median(group["plain"][part] for group in groups) for part in (0, 1))
    plain = rest + forward
    print(
        f"{len(groups)} steps of 8 requests in each mode; "
        f"plain {plain:.0f} us a step, {forward:.0f} of it the model's forward pass"
    )
    said(plain, "watched: the forward pass", [group["watched"][1] - group["plain"][1] for group in groups])
    for mode in MODES[1:]:
        said(plain, f"{mode}: all else", [group[mode][0] - group["plain"][0] for group in groups])
    more = trimmed([group["watched"][0] - group["plain"][0] for group in groups])
    looked, after = (trimmed([pair[part] for pair in looks]) for part in (0, 1))
    print(f"{len(looks)} sampled steps, one in {SAMPLE_EVERY}: {looked:+.0f} us, the next one {after:+.0f} us")
    total = more + (looked + after - 2 * more) / SAMPLE_EVERY
    print(f"watched, those included: {total:+.1f} us, {total / plain:+.2%}")


def said(plain, what, longer):
    """Print the middle of how much longer something takes."""
    for name, average in (("median", statistics.median), ("mean of the middle 80 %", trimmed)):
        resampled = [average(random.choices(longer, k=len(longer))) for _ in range(200)]
        middle, error = average(longer), statistics.stdev(resampled)
        print(
            f"{what:26} {middle:+6.1f} us (standard error {error:.1f})   "
            f"{middle / plain:+.2%} (standard error {error / plain:.2%})   {name}"
        )


def trimmed(values):
    """Return the mean without the lowest and the highest tenth."""
    cut = len(values) // 10
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


if __name__ == "__main__":
    main()
