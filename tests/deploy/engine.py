"""A real vLLM in one process that generates for ever; it knows nothing of ullage. Argument: the model."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "examples"))
import tiny_llama
from vllm import LLM, SamplingParams

llm = LLM(model=sys.argv[1], num_gpu_blocks_override=64, distributed_executor_backend="uni", **tiny_llama.ARGUMENTS)
sampling = SamplingParams(max_tokens=16, ignore_eos=True, temperature=0.0, detokenize=False)
print("ready", flush=True)
while True:
    llm.generate([{"prompt_token_ids": [3, 5, 7]}], sampling, use_tqdm=False)
    time.sleep(0.1)
