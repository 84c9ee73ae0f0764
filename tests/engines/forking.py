"""vLLM imported once; a forked child for each conversation over a UNIX socket, with engines of its own.

The first line of a conversation is the child's environment; each further line is a command, ``{"do": name, ...}``,
with one line in answer. ``start`` makes an engine; other commands say which with ``engine``. The functions below are
the commands. All prompts and seeds are fixed: two children that are told the same generate the same tokens.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import pickle
import socket
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples"))
import tiny_llama

os.environ.update(tiny_llama.ENVIRONMENT)

from vllm import LLM, SamplingParams  # the environment comes first


def prompts(count, shortest, longer):
    """Return prompts of ``shortest`` tokens, ``shortest + longer`` tokens, and so on."""
    return [
        {"prompt_token_ids": [3 + (row * 7 + column) % 250 for column in range(shortest + row * longer)]}
        for row in range(count)
    ]


def sampling(**given):
    """Return greedy sampling of 24 tokens but for what is ``given``."""
    return SamplingParams(**{"max_tokens": 24, "ignore_eos": True, "temperature": 0.0, "detokenize": False, **given})


def said(outputs):
    """Return tokens of each completion and, where they were asked for, the tokens that were likely in the prompt."""
    return [
        [[list(completion.token_ids) for completion in output.outputs], _likely(output.prompt_logprobs)]
        for output in outputs
    ]


def _likely(logprobs):
    return [sorted(position or ()) for position in logprobs or ()]


def generate(llm, count=8, shortest=20, longer=10, times=1, *, ranked=False, **given):
    """Generate; with ``ranked``, a later request has a higher priority."""
    more = {"priority": [count - row for row in range(count)]} if ranked else {}
    asked = prompts(count, shortest, longer)
    return [said(llm.generate(asked, sampling(**given), use_tqdm=False, **more)) for _ in range(times)]


def spell(llm, expression):
    """Generate what a regular expression allows in each second request."""
    from vllm.sampling_params import StructuredOutputsParams

    bound = {"structured_outputs": StructuredOutputsParams(regex=expression), "ignore_eos": False, "detokenize": True}
    every = [sampling(max_tokens=48, **(bound if row % 2 else {})) for row in range(8)]
    return said(llm.generate(prompts(8, 20, 10), every, use_tqdm=False))


def begin(llm, count, shortest=20, longer=10, first=0, tokens=60):
    """Add requests, without a step; return their ids."""
    asked = prompts(count, shortest, longer)
    return [
        llm.llm_engine.add_request(str(first + row), prompt, sampling(max_tokens=tokens))
        for row, prompt in enumerate(asked)
    ]


def step(llm, times):
    """Step; return what finished."""
    return said(output for _ in range(times) for output in llm.llm_engine.step() if output.finished)


def finish(llm):
    """Step until all is finished; return it, in the order of its end."""
    done = []
    while llm.llm_engine.has_unfinished_requests():
        done += step(llm, 1)
    return done


def abort(llm, rounds, count, steps, keep=0):
    """Abort all but the first ``keep`` of ``count`` requests, after ``steps[n % len(steps)]`` steps in round n."""
    done = []
    for number in range(rounds):
        ids = begin(llm, count, first=number * count)
        done += step(llm, steps[number % len(steps)])
        llm.llm_engine.abort_request(ids[keep:], internal=True)
        done += finish(llm)
    return done


def sleep(llm, level):
    """Put the engine to sleep, and wake it up."""
    llm.sleep(level)
    llm.wake_up()


def adapt(llm, directory, order):
    """Generate with the adapters whose numbers are in ``order``, each for one of the requests; 0 for none."""
    import torch
    from safetensors.torch import save_file
    from vllm.lora.request import LoRARequest

    requests = {0: None}
    for number in sorted({*order} - {0}):
        adapter = Path(directory) / f"adapter-{number}"
        adapter.mkdir(exist_ok=True)
        modules = ["q_proj", "v_proj"]
        described = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": modules, "task_type": "CAUSAL_LM"}
        (adapter / "adapter_config.json").write_text(json.dumps(described))
        chance = torch.Generator().manual_seed(number)
        weights = {}
        layers = [f"base_model.model.model.layers.{layer}.self_attn" for layer in (0, 1)]
        for name in [f"{layer}.{module}" for layer in layers for module in modules]:
            weights[f"{name}.lora_A.weight"] = torch.randn(4, 64, generator=chance)
            weights[f"{name}.lora_B.weight"] = torch.randn(64, 4, generator=chance)
        save_file(weights, adapter / "adapter_model.safetensors")
        requests[number] = LoRARequest(f"adapter-{number}", number, str(adapter))
    chosen = [requests[number] for number in order]
    return said(llm.generate(prompts(len(order), 20, 10), sampling(), use_tqdm=False, lora_request=chosen))


def embed(llm, count):
    """Embed; return the first numbers of each vector."""
    outputs = llm.embed(prompts(count, 20, 10), use_tqdm=False)
    return [[round(float(value), 4) for value in output.outputs.embedding[:8]] for output in outputs]


def copy(_):
    """Tell which of vLLM's patched functions do not survive pickle and cloudpickle as themselves."""
    import cloudpickle
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    originals = [Scheduler, GPUModelRunner, BlockPool]
    originals += [Scheduler.schedule, GPUModelRunner.execute_model, BlockPool.get_new_blocks]
    return [
        f"{original.__qualname__} by {module.__name__}"
        for original in originals
        for module in (pickle, cloudpickle)
        if module.loads(module.dumps(original)) is not original
    ]


def preemptions(llm):
    """Return how many vLLM counted."""
    return sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")


def blocks(llm):
    """Return how many KV blocks are in use, of an engine in this process."""
    pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
    return pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()  # block 0 is vLLM's own


COMMANDS = (generate, spell, begin, step, finish, abort, sleep, adapt, embed, copy, preemptions, blocks)


def enlarge_weights():
    """Have the random weights of a model in this process be so large that its tokens depend on all of the prompt."""
    from vllm.model_executor.model_loader import dummy_loader

    original = dummy_loader.initialize_single_dummy_weight
    dummy_loader.initialize_single_dummy_weight = functools.partial(original, low=-0.5, high=0.5)


def converse(lines):
    """Answer until the other half closes."""
    os.environ.update(json.loads(lines.readline()))
    enlarge_weights()
    commands = {command.__name__: command for command in COMMANDS}
    engines = {}
    for line in lines:
        told = json.loads(line)
        do, name = told.pop("do"), told.pop("engine", "")
        if do == "start":
            engines[name] = LLM(disable_log_stats=False, seed=0, **told)
            answer = "ready"
        elif do == "shutdown":
            engines.pop(name).llm_engine.engine_core.shutdown()
            gc.collect()
            answer = "down"
        else:
            answer = commands[do](engines[name], **told)
        lines.write(json.dumps(answer) + "\n")
        lines.flush()
    for engine in engines.values():
        engine.llm_engine.engine_core.shutdown()


def main():
    """Fork for each conversation; the child ends as a program does."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(sys.argv[1])
        listening.listen()
        print("listening", flush=True)
        os.dup2(2, 1)  # vLLM writes to stdout; nothing reads it any more, and a full pipe would stop the engines
        while True:
            connection, _ = listening.accept()
            with connection:
                if os.fork() == 0:
                    listening.close()
                    with connection.makefile("rw") as lines:
                        try:
                            converse(lines)
                        except Exception:
                            traceback.print_exc()  # before the other half sees the end
                            raise SystemExit(1) from None
                    return


if __name__ == "__main__":
    main()
