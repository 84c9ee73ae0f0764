"""vLLM's own classes, imported once: runs programs with them in forked children, driven over stdin and stdout.

One JSON document a line: {"directory": "...", "code": "..."}; the answer is what the code said with ``say``, or where
it failed. Where a class needs a CUDA device to be made, it is made without its constructor and given what that would
have allocated; its functions are vLLM's own.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from types import SimpleNamespace

CHANNEL = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import torch  # noqa: E402
from vllm.plugins import load_general_plugins  # noqa: E402

load_general_plugins()

from vllm.v1.attention.backends import flash_attn  # noqa: E402
from vllm.v1.attention.backends.mla import indexer  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec  # noqa: E402
from vllm.v1.worker import block_table, gpu_model_runner, workspace  # noqa: E402
from vllm.v1.worker.gpu import block_table as block_table_v2  # noqa: E402
from vllm.v1.worker.gpu import input_batch, states  # noqa: E402
from vllm.v1.worker.gpu.spec_decode import speculator  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.dflash import speculator as dflash  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.standalone_ar.speculator import StandaloneARSpeculator  # noqa: E402

from ullage.engines.vllm.attention.metadata_builders import watch  # noqa: E402
from ullage.engines.vllm.contract_registry import ContractRegistry  # noqa: E402
from ullage.engines.vllm.identity import current  # noqa: E402
from ullage.engines.vllm.startup_audit import audit  # noqa: E402
from ullage.engines.vllm.views import view_v1, view_v2  # noqa: E402
from ullage.host.process import process  # noqa: E402


class Some(SimpleNamespace):
    """Like an object of the engine, it can be referred to weakly."""


WATCHED = (flash_attn, gpu_model_runner, process, workspace)
V2 = (block_table_v2, input_batch, states, speculator, dflash, EagleSpeculator, StandaloneARSpeculator)
"""What programs use besides what stands here."""


def audit_v1(runner):
    """Do to a stand-in of the V1 runner what the probe does when its KV cache is initialised."""
    _audit(view_v1.view(runner))


def audit_v2(runner):
    """The same of the V2 runner."""
    _audit(view_v2.view(runner))


def _audit(view):
    audit(view, current().part(ContractRegistry))
    watch(view, current())


def config(max_model_len=200_000, max_num_seqs=8, max_num_batched_tokens=64, look_ahead=2):
    """What the probes and the functions under test read of a configuration."""
    return Some(
        model_config=Some(max_model_len=max_model_len, model="tiny", served_model_name=None),
        scheduler_config=Some(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_scheduled_tokens=max_num_batched_tokens,
        ),
        parallel_config=Some(
            data_parallel_size=1,
            data_parallel_rank=0,
            data_parallel_index=0,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            rank=0,
        ),
        speculative_config=Some(num_speculative_tokens=look_ahead, enable_adaptive_verification=False),
        compilation_config=Some(static_forward_context={}, max_cudagraph_capture_size=None),
        device_config=Some(device_type="cuda"),
    )


def sparse(columns, rows=64, block_size=64, config=None):
    """The metadata builder of a sparse-attention indexer, with a copy of the block table so wide."""
    builder = object.__new__(indexer.DeepseekV32IndexerMetadataBuilder)
    builder.vllm_config, builder.kv_cache_spec = config or CONFIG, Some(block_size=block_size)
    builder.supports_varlen, builder.compress_ratio, builder.max_prefill_buffer_size = False, 1, 40 * 200_000
    builder.decode_seq_lens_buffer = torch.zeros(rows, dtype=torch.int32)
    builder.decode_lens_buffer = torch.zeros(rows, dtype=torch.int32)
    builder.arange_buffer = torch.arange(rows, dtype=torch.int32)
    builder.expanded_block_table_buffer = torch.zeros((rows, columns), dtype=torch.int32)
    return builder


def full(block_size):
    """The cache of a layer that attends to everything."""
    return FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)


def runner(*builders, config=None, spec=None, **more):
    """A V1 runner whose KV cache is initialised: its tables are vLLM's own, one KV-cache group with these builders."""
    config, spec = config or CONFIG, spec or full(64)
    limits, longest = config.scheduler_config, config.model_config.max_model_len
    tokens, requests = limits.max_num_batched_tokens, limits.max_num_seqs
    tables = block_table.MultiGroupBlockTable(
        max_num_reqs=requests,
        max_num_batched_tokens=tokens,
        pin_memory=False,
        device=torch.device("cpu"),
        block_sizes=[spec.block_size],
        max_num_blocks=[-(-longest // spec.block_size)],
    )
    fields = {
        "vllm_config": config,
        "max_model_len": longest,
        "kv_cache_config": Some(num_blocks=4096, kv_cache_groups=[Some(kv_cache_spec=spec)]),
        "input_batch": Some(token_ids_cpu=torch.zeros((requests, longest), dtype=torch.int32), block_table=tables),
        "attn_groups": [[Some(metadata_builders=list(builders), kv_cache_group_id=0)]],
        "input_ids": torch.zeros(tokens),
        "seq_lens": torch.zeros(requests),
        "query_start_loc": torch.zeros(requests + 1),
    }
    return Some(**{**fields, **more})


CONFIG = config()
NAMES = {name: value for name, value in globals().items() if not name.startswith("_")}


def run(directory, code):
    """Run ``code`` in this child; return the answer."""
    os.environ["ULLAGE_DIR"] = directory
    said = []
    try:
        exec(code, {**NAMES, "say": said.append})
    except BaseException:
        return {"failed": traceback.format_exc()}
    return {"said": said}


for line in sys.stdin:
    child = os.fork()
    if not child:
        print(json.dumps(run(**json.loads(line))), file=CHANNEL, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
os._exit(0)  # nothing of the engine was started
