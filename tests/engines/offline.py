"""A real vLLM, offline, driven over stdin and stdout: one JSON document a line.

Commands: {"do": "generate", "prompts": n, "tokens": n, "times": n}, {"do": "steps"}, {"do": "preemptions"},
{"do": "break", "probe": "module:Class.function"}, {"do": "spell", "prompts": n, "tokens": n}, {"do": "rehearse"},
{"do": "mix", "times": n}, {"do": "stop"}.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples"))
sys.path.insert(0, str(Path(__file__).parent.parent / "support"))
import interpreter
import tiny_llama

os.environ.update(tiny_llama.ENVIRONMENT)


def prompts(count):
    return [
        {"prompt_token_ids": [3 + (row * 7 + column) % 250 for column in range(20 + row * 10)]} for row in range(count)
    ]


def generate(llm, count, tokens, times):
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0, detokenize=False)
    for _ in range(times):
        outputs = llm.generate(prompts(count), sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def steps(llm):
    """Run an engine in this process step by step; return what vLLM and ullage say after each."""
    from vllm import SamplingParams
    from vllm.v1.core.sched.scheduler import Scheduler

    from ullage.segment import reader

    said = []
    make_stats = Scheduler.make_stats

    def listen(self, *args, **kwargs):
        stats = make_stats(self, *args, **kwargs)
        said.append(stats)
        return stats

    Scheduler.make_stats = listen
    sampling = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.0, detokenize=False)
    engine, pairs = llm.llm_engine, []
    for number, prompt in enumerate(prompts(8)):
        engine.add_request(str(number), prompt, sampling)
    (path,) = Path(os.environ["ULLAGE_DIR"]).glob("*.ullage")
    while engine.has_unfinished_requests():
        said.clear()
        engine.step()
        buffers = {buffer.name: buffer for buffer in reader.read(path).buffers}
        blocks = buffers["kv_blocks"]
        pairs.append(
            {
                "vllm": [said[-1].kv_cache_usage, said[-1].num_running_reqs] if said else None,
                "ullage": [blocks.used / blocks.capacity, buffers["running_requests"].used],
                "high_water": blocks.high_water / blocks.capacity,
            }
        )
    Scheduler.make_stats = make_stats
    return pairs


def preemptions(llm):
    return sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")


def spell(llm, count, tokens):
    """Generate text that a grammar allows."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    grammar = StructuredOutputsParams(regex="(ab){6}c")
    sampling = SamplingParams(max_tokens=tokens, temperature=0.0, structured_outputs=grammar)
    return [output.outputs[0].text for output in llm.generate(prompts(count), sampling, use_tqdm=False)]


def mix(llm, times):
    """Generate with and without a grammar, from prompts that share a beginning; return steps done and tokens."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.core.sched.scheduler import Scheduler

    counted = 0
    schedule = Scheduler.schedule

    def count(self, *args, **kwargs):
        nonlocal counted
        counted += 1
        return schedule(self, *args, **kwargs)

    Scheduler.schedule = count
    grammar = StructuredOutputsParams(regex="(ab){20}c")
    common = {"temperature": 0.0, "ignore_eos": True}
    every = [SamplingParams(max_tokens=44 - row, **common) for row in range(5)]
    every += [SamplingParams(max_tokens=41, temperature=0.0, structured_outputs=grammar) for _ in range(3)]
    tokens = []
    for _ in range(times):
        outputs = llm.generate(prompts(8), every, use_tqdm=False)
        tokens.append([list(output.outputs[0].token_ids) for output in outputs])
    Scheduler.schedule = schedule
    return [counted, tokens]


def rehearse(llm):
    """Run the model on as many tokens as it can, as vLLM does to find out how much memory that needs."""
    llm.llm_engine.model_executor.driver_worker.worker.model_runner.profile_run()


def break_probe(probe):
    """Make a probe raise from now on."""
    import importlib

    module, _, path = probe.partition(":")
    *owners, function = path.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))

    def broken(*_args, **_kwargs):
        raise RuntimeError("this probe is broken")

    setattr(owner, function, broken)


def main():
    # vLLM and its libraries write to stdout: the protocol gets a descriptor of its own.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
        interpreter.install()
    from vllm import LLM

    model, blocks, in_process = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "in-process"
    arguments = {**tiny_llama.ARGUMENTS, **json.loads(sys.argv[4])}
    llm = LLM(
        model=model,
        num_gpu_blocks_override=blocks,
        disable_log_stats=False,
        distributed_executor_backend="uni" if in_process else None,
        **arguments,
    )
    commands = {
        "generate": lambda c: generate(llm, c["prompts"], c["tokens"], c.get("times", 1)),
        "steps": lambda _: steps(llm),
        "preemptions": lambda _: preemptions(llm),
        "spell": lambda c: spell(llm, c["prompts"], c["tokens"]),
        "mix": lambda c: mix(llm, c["times"]),
        "rehearse": lambda _: rehearse(llm),
        "break": lambda c: break_probe(c["probe"]),
    }
    print(json.dumps("ready"), file=channel, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "stop":
            break
        print(json.dumps(commands[command["do"]](command)), file=channel, flush=True)


if __name__ == "__main__":
    main()
