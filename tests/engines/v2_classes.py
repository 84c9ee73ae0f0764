"""vLLM's own classes of the V2 runner's state, driven to their limits and beyond; run in a process of its own.

Two stand-ins, as there is no device: vLLM's own replacement of pinned memory on CPU, and a kernel that writes what was
staged, as the real one does, without looking where a row ends. The runner that holds the objects is a stand-in too.
"""

import json
import sys
import types
from types import SimpleNamespace

import numpy as np
import torch
import vllm.v1.worker.cpu.shm  # noqa: F401  puts vLLM's replacement of pinned memory in place
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.gpu import block_table, buffer_utils, states, structured_outputs

from ullage.engines.vllm import register


class Some(SimpleNamespace):
    """Like an object of the engine, it can be referred to weakly."""


CPU = torch.device("cpu")


class Kernel:
    def __getitem__(self, _grid):
        return self

    def __call__(self, output, stride, indices, starts, contents, ends, _groups, **_constants):
        flat, begin = output.view(-1), 0
        for index, start, end in zip(indices.tolist(), starts.tolist(), ends.tolist(), strict=True):
            at = index * stride + start
            flat[at : at + end - begin] = contents[begin:end]
            begin = end


buffer_utils._apply_write_kernel = Kernel()


class GPUModelRunner:
    def __init__(self):
        parallel = Some(
            data_parallel_size=1,
            data_parallel_rank=0,
            data_parallel_index=0,
            decode_context_parallel_size=1,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            rank=0,
        )
        self.vllm_config = Some(
            parallel_config=parallel,
            model_config=Some(model="tiny", served_model_name=None, max_model_len=8),
            scheduler_config=Some(max_num_seqs=4, max_num_batched_tokens=16),
            speculative_config=None,
            compilation_config=Some(static_forward_context={}),
            device_config=Some(device_type="cpu"),
        )
        self.max_num_tokens, self.max_model_len, self.vocab_size = 16, 8, 129280
        spec = {"num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
        groups = [Some(kv_cache_spec=FullAttentionSpec(block_size=size, **spec)) for size in (2, 4)]
        self.kv_cache_config = Some(num_blocks=8, kv_cache_groups=groups)
        self.attn_groups, self.speculator = [], None
        self.structured_outputs_worker = structured_outputs.StructuredOutputsWorker(
            max_num_logits=4, vocab_size=129280, device=CPU, mask_stride=1, num_bonus_tokens=1
        )
        self.input_buffers = Some(input_ids=torch.zeros(16))
        self.cudagraph_manager = None
        self.req_states = states.RequestState(
            max_num_reqs=4,
            max_model_len=8,
            max_num_batched_tokens=16,
            num_speculative_steps=0,
            vocab_size=32,
            device=CPU,
        )

    def initialize_kv_cache(self):
        self.block_tables = block_table.BlockTables(
            block_sizes=[2, 4],
            max_num_reqs=4,
            max_num_batched_tokens=16,
            max_num_blocks_per_group=[4, 2],
            device=CPU,
        )

    def sample_tokens(self, grammar_output):
        requests, mask = grammar_output.structured_output_request_ids, grammar_output.grammar_bitmask
        logits = torch.zeros(len(requests), 129280)
        self.structured_outputs_worker.apply_grammar_bitmask(logits, None, requests, mask)

    def execute_model(self, scheduler_output):  # noqa: ARG002  as vLLM has it
        self.req_states.apply_staged_writes()


GPUModelRunner.__module__ = "vllm.v1.worker.gpu.model_runner"
module = types.ModuleType(GPUModelRunner.__module__)
module.GPUModelRunner = GPUModelRunner
sys.modules[GPUModelRunner.__module__] = module
register()

runner = GPUModelRunner()
runner.initialize_kv_cache()
requests, tables = runner.req_states, runner.block_tables
batch = Some(total_num_scheduled_tokens=1, num_scheduled_tokens={"a": 1})
said = {}


def refused(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except (AssertionError, RuntimeError) as error:
        return str(error)
    return None


def add(name, tokens):
    requests.add_request(name, prompt_len=len(tokens), all_token_ids=tokens, num_computed_tokens=0, max_tokens=1)


add("a", [1, 2, 3])
runner.execute_model(batch)
said["fits"] = requests.all_token_ids.gpu[requests.req_id_to_index["a"]].tolist()
add("b", [5] * 8)
runner.execute_model(batch)
said["pool"] = [buffer.cpu.shape[0] for buffer in requests.all_token_ids.write_contents._uva_bufs]

add("c", [7] * 10)
assert requests.req_id_to_index["b"] == requests.req_id_to_index["c"] + 1
runner.execute_model(batch)
said["neighbour"] = requests.all_token_ids.gpu[requests.req_id_to_index["b"]].tolist()
add("d", [9])
said["no slot"] = refused(add, "e", [9])

tables.append_block_ids(0, ([1, 2, 3], [1]), overwrite=True)
tables.append_block_ids(0, ([4], [2]), overwrite=False)
said["no column"] = refused(tables.append_block_ids, 0, ([5], []), overwrite=False)
said["no column in the other group"] = refused(tables.append_block_ids, 1, ([1], [1, 2, 3, 4]), overwrite=True)
mask = np.zeros((3, 4041), dtype=np.int32)
grammar = Some(structured_output_request_ids=["a", "b", "c"], grammar_bitmask=mask)
said["no column in the mask"] = refused(runner.sample_tokens, grammar)
print(json.dumps(said))
