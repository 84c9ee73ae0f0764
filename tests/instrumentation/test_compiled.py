"""Called from a compiled function, our hot calls are no-ops without a graph break."""

from __future__ import annotations

import pytest
from harness import missing

CODE = """
{before}
import torch
import ullage
rows = ullage.buffer("rows", capacity=10, unit="rows")
size = ullage.Contract("size")
size.claim("planner", 3)
{after}

@torch.compile(backend="eager", fullgraph=True)
def step(x):
    rows.observe(x.shape[0] * 5)
    rows.exhausted()
    size.check(x)
    return x + 1

assert step(torch.zeros(3)).tolist() == [1, 1, 1]
assert step(torch.zeros(4)).tolist() == [1, 1, 1, 1]
rows.observe(7)
assert size.check(torch.zeros(3)) is True
from ullage.segment import reader
from ullage.host.process import process
snapshot = reader.read(process.session.open().path)
(buffer,) = snapshot.buffers
(tally,) = [claim for claim in snapshot.claims if claim.tally]
print(buffer.observations, buffer.used, buffer.exhaustions, tally.checks, snapshot.process.hook_errors)
from torch._dynamo import config
before = len(config.ignore_logging_functions)
rows.close(); size.close()
print(before - len(config.ignore_logging_functions))
"""


@pytest.fixture(autouse=True)
def torch():
    """Tell why there is no torch, if there is none."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        missing("torch is not installed")


@pytest.mark.fault("observe in a compiled function", sees="nothing: a no-op, no graph break")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("import torch._dynamo", ""),
        ("", "import torch._dynamo.config\nullage.step()"),
    ],
)
def test_a_traced_caller_sees_nothing_of_us(program, before, after):
    out = program(CODE.format(before=before, after=after), TORCHDYNAMO_SUPPRESS_ERRORS="0").finish()

    assert out.split() == ["1", "7", "0", "1", "0", "7"]
