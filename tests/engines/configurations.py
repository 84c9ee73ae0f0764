"""Configurations of vLLM 0.32 on CPU in which ullage must find nothing: data, which test_configurations.py runs.

A request is a command of ``forking.py`` with its arguments, or one of a server's client. ``{scratch}`` in an argument
is a directory of the run's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Mode = Literal["in process", "processes", "server"]
Request = dict[str, Any]


@dataclass(frozen=True)
class Configuration:
    """One way to run vLLM, and what is asked of it.

    Attributes:
        kind: What is special about it; one of each kind is run by ``make test``, all by ``make test-long``.
        arguments: Those of the engine, on top of the tiny model's own.
        requests: What it is asked, in order. Those of equal model, arguments and mode share an engine.
        at_least: What must hold beyond what is common to all: a fact about a buffer, and its least value.
        quick: It is the one of its kind in ``make test``.
        test: The test that compares the tokens, asks for errors and for findings already, as ``file::function``; a
            configuration that has one is not run again by ``make test``.
    """

    name: str
    kind: str
    requests: tuple[Request, ...]
    arguments: dict[str, Any] = field(default_factory=dict)
    model: str = "llama"
    mode: Mode = "in process"
    at_least: dict[tuple[str, str], int] = field(default_factory=dict)
    quick: bool = False
    test: str = ""


GENERATE = {"do": "generate", "times": 2}
SMALL_POOL = {"num_gpu_blocks_override": 20, "max_num_seqs": 4, "max_num_batched_tokens": 64}
PRESSED = {"do": "generate", "shortest": 60, "max_tokens": 160}
EXHAUSTED = {("kv_blocks", "exhaustions"): 1, ("kv_blocks", "deferrals"): 1}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
FEATURES = "test_vllm_features.py::test_a_thousand_steps_of_all_of_it_find_nothing_and_change_no_token"
SERVER = "test_vllm_server.py::test_the_tokens_are_the_same"

CONFIGURATIONS = (
    Configuration("plain", "schedule", (GENERATE,), quick=True),
    Configuration("chunked prefill off", "schedule", (GENERATE,), {"enable_chunked_prefill": False}),
    Configuration(
        "prefix cache on",
        "prefix cache",
        ({"do": "generate", "shortest": 200, "times": 3},),
        quick=True,
    ),
    Configuration("prefix cache off", "prefix cache", (GENERATE,), {"enable_prefix_caching": False}),
    Configuration(
        "sequences of 40 tokens",
        "length",
        ({"do": "generate", "shortest": 10, "longer": 1, "max_tokens": 20, "times": 2},),
        {"max_model_len": 40, "max_num_batched_tokens": 64},
    ),
    Configuration(
        "sequences of 1999 tokens",
        "length",
        ({"do": "generate", "count": 2, "shortest": 1900, "max_tokens": 80},),
        {"max_model_len": 1999, "num_gpu_blocks_override": 300},
        at_least={("block_table_row", "high_water"): 62},
    ),
    Configuration(
        "sequences as long as the pool holds",
        "length",
        ({**GENERATE, "count": 4},),
        {"max_model_len": -1, "num_gpu_blocks_override": 20},
        test=FEATURES,
    ),
    Configuration("blocks of 32", "block size", (GENERATE,), {"block_size": 32}),
    Configuration("blocks of 64", "block size", (GENERATE,), {"block_size": 64}, quick=True),
    Configuration("blocks of 128", "block size", (GENERATE,), {"block_size": 128}),
    Configuration(
        "ngram with 3 drafts",
        "speculation",
        ({"do": "generate", "max_tokens": 60, "times": 4},),
        {"speculative_config": NGRAM},
        test=FEATURES,
    ),
    Configuration(
        "structured output",
        "grammar",
        ({"do": "spell", "expression": "(ab){6}c"}, {"do": "spell", "expression": "(ab){20}c"}),
        at_least={("grammar_bitmask", "high_water"): 4},
        quick=True,
    ),
    Configuration(
        "four completions of a prompt",
        "sampling",
        ({"do": "generate", "count": 6, "n": 4, "temperature": 1.0, "seed": 7},),
        quick=True,
    ),
    Configuration(
        "logprobs of prompts",
        "prompt logprobs",
        ({"do": "generate", "count": 6, "shortest": 60, "longer": 20, "prompt_logprobs": 3, "logprobs": 2},),
        quick=True,
    ),
    Configuration(
        "logprobs of prompts in chunks",
        "prompt logprobs",
        ({"do": "generate", "count": 6, "shortest": 60, "longer": 20, "prompt_logprobs": 3, "logprobs": 2},),
        {"max_num_batched_tokens": 64},
    ),
    Configuration(
        "abort of half",
        "abort",
        ({"do": "abort", "rounds": 10, "count": 10, "steps": [5, 6, 7, 8, 9, 10, 11], "keep": 5},),
        quick=True,
    ),
    Configuration(
        "abort of all", "abort", ({"do": "abort", "rounds": 10, "count": 10, "steps": [4]}, GENERATE), quick=True
    ),
    Configuration(
        "50 times 30 cancelled",
        "abort",
        ({"do": "abort", "rounds": 50, "count": 30, "steps": [0, 1, 0, 2]}, GENERATE),
        at_least={("running_requests", "high_water"): 16},
        quick=True,
    ),
    Configuration(
        "exhaustion, first come first served", "exhaustion", (PRESSED,), SMALL_POOL, at_least=EXHAUSTED, quick=True
    ),
    Configuration(
        "exhaustion, by priority",
        "exhaustion",
        ({**PRESSED, "ranked": True},),
        {**SMALL_POOL, "scheduling_policy": "priority"},
        at_least=EXHAUSTED,
    ),
    Configuration(
        "two slots for three adapters",
        "adapters",
        (
            {"do": "adapt", "directory": "{scratch}", "order": [1, 1, 1, 1]},
            {"do": "adapt", "directory": "{scratch}", "order": [1, 2, 3, 1, 0, 3]},
        ),
        {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8},
        at_least={("lora_slots", "high_water"): 2},
        quick=True,
    ),
    Configuration("mixture of experts", "experts", (GENERATE,), model="mixtral", quick=True),
    Configuration(
        "KV blocks in files",
        "connector",
        (GENERATE,),
        {
            "kv_transfer_config": {
                "kv_connector": "ExampleConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"shared_storage_path": "{scratch}"},
            }
        },
        quick=True,
    ),
    Configuration(
        "sleep and wake", "sleep", (GENERATE, {"do": "sleep", "level": 1}, {**GENERATE, "count": 4}), quick=True
    ),
    Configuration(
        "sliding window",
        "groups of layers",
        ({"do": "generate", "shortest": 100, "longer": 20},),
        model="gemma3",
        at_least={("block_table_row-2", "high_water"): 1},  # a table for each of its three groups
        quick=True,
    ),
    Configuration(
        "two tensor-parallel ranks",
        "ranks",
        (GENERATE,),
        {"tensor_parallel_size": 2},
        mode="processes",
        quick=True,
    ),
    Configuration(
        "server",
        "server",
        ({"do": "complete", "count": 12}, {"do": "cancel", "count": 40}, {"do": "complete", "count": 12}),
        mode="server",
        test=SERVER,
    ),
    Configuration(
        "embedding of a decoder",
        "embedding",
        ({"do": "embed", "count": 8},),
        {"runner": "pooling", "convert": "embed"},
        quick=True,
    ),
    Configuration("pickled functions", "pickle", (GENERATE, {"do": "copy"}), quick=True),
)
