"""A tensor may live on a device: we read its shape, never its contents. One that refuses stands for it."""

from __future__ import annotations

CODE = """
import types
import ullage
from ullage.engines.vllm import runner_v1

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
runner = types.SimpleNamespace(input_ids=CpuGpuBuffer())
print(list(runner_v1._held(runner)))
"""


def test_contents_are_never_asked_for(program):
    out = program(CODE).finish()

    assert out.strip() == "[Held(attribute='input_ids', shape=(4, 7), dtype='int32', nbytes=224, location='device')]"
