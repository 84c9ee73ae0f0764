"""A tensor may live on a device: we read its shape, never its contents. One that refuses stands for it."""

from __future__ import annotations

CODE = """
import ullage
import types

class Some(types.SimpleNamespace):
    pass  # like an object of the engine, it can be referred to weakly

from ullage.engines.vllm.attention import metadata_builders
from ullage.engines.vllm import startup_audit
from ullage.engines.vllm.views import common as view_common, view_v1
from ullage.engines.vllm.identity import current
from ullage.engines.vllm.contract_registry import ContractRegistry

class Device:
    type = "cuda"
    def __str__(self): return "cuda:0"

class OnDevice:
    shape, dtype, device, nbytes = (4, 7), "torch.int32", Device(), 112
    def data_ptr(self): return id(self)
    def __getitem__(self, where): return self
    def refuse(self, *_args, **_kwargs): raise AssertionError("the contents were asked for: a synchronisation")
    item = tolist = numpy = cpu = __bool__ = __int__ = __index__ = __float__ = __len__ = __iter__ = __eq__ = refuse
    __repr__ = __str__ = __format__ = refuse
    __hash__ = object.__hash__
    def stride(self, dim): return 7

Tensor = type("Tensor", (OnDevice,), {})
tensor = OnDevice()
size = ullage.Contract("size", dims=("rows", "columns"), dtype="int32")
size.claim("planner", (4, 7))
assert size.check(tensor) and size.check(tensor)
size.claim("planner", (4, 8))
assert not size.check(tensor)
try:
    size.require(tensor)
except ullage.ShapeViolation:
    pass
metadata = ullage.SchedulerMetadata(4)
assert not metadata.check(tensor)
metadata.update(max_num_seqs=8)
assert not metadata.check(tensor)
table = ullage.watch("table", tensor, dim=1, unit="columns")
table.slice(3); table.slice(9); table.rebind(OnDevice.__new__(OnDevice))
CpuGpuBuffer = type("CpuGpuBuffer", (), {"cpu": tensor, "gpu": OnDevice()})

class Builder:
    def __init__(self):
        self.kv_cache_spec, self.vllm_config = Some(block_size=64), config
        self.expanded_block_table_buffer = self.arange_buffer = self.paged_kv_indices = Tensor()
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        return "built"

config = Some(
    model_config=Some(max_model_len=256),
    scheduler_config=Some(max_num_seqs=4, max_num_batched_tokens=4, max_num_scheduled_tokens=4),
    parallel_config=Some(decode_context_parallel_size=1), speculative_config=None,
    compilation_config=Some(static_forward_context={"layer": Some(kv_cache=Tensor(), topk_indices_buffer=Tensor())}),
)
table = Some(
    block_table=CpuGpuBuffer(), slot_mapping=CpuGpuBuffer(), block_size=64, dcp_world_size=1, pcp_world_size=1
)
builder = Builder()
group = Some(metadata_builders=[builder], layer_names=["layer"], backend=type("TritonMLABackend", (), {}))
runner = Some(
    vllm_config=config, max_model_len=256, input_ids=CpuGpuBuffer(), seq_lens=Tensor(), attn_groups=[[group]],
    kv_cache_config=Some(num_blocks=4, kv_cache_groups=[Some(kv_cache_spec=Some(block_size=64))]),
    input_batch=Some(block_table=Some(block_tables=[table]), token_ids_cpu=Tensor()),
)
view = view_v1.view(runner)
startup_audit.audit(view, current().part(ContractRegistry))
metadata_builders.watch(view, current())
batch = Some(num_actual_tokens=9, num_reqs=9, max_seq_len=999, block_table_tensor=Tensor(), causal=Tensor())
assert builder.build(0, batch) == "built"
assert metadata_builders.PROBE.calls == 1
print(list(view_common.tensors({"input_ids": CpuGpuBuffer(), "positions": Tensor(), "name": "runner"})))
"""


def test_contents_are_never_asked_for(program):
    out = program(CODE).finish()

    assert out.strip() == (
        "[TensorInfo(attribute='input_ids', shape=(4, 7), dtype='int32', nbytes=224, location='device'), "
        "TensorInfo(attribute='positions', shape=(4, 7), dtype='int32', nbytes=112, location='device')]"
    )
