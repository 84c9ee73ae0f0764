"""What the hook writes passes the gate, whatever its host gives it."""

from __future__ import annotations

import pytest
from harness import LONG

from ullage.segment import reader

ANYTHING = """
import os, sys
import ullage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ullage.recording.inventory import TensorInfo, inventory
from ullage.segment import reader
from ullage.host.process import process

texts = st.text(max_size=100)
names = st.sampled_from(["a", "b", "c"]) | texts
numbers = st.integers(-2, 300) | st.integers() | st.floats() | st.booleans() | texts
scalars = numbers | st.none() | st.lists(st.integers(), max_size=2)
shapes = st.integers(-1, 9) | st.lists(st.integers(-1, 9) | st.none() | numbers, max_size=9)
kinds = st.sampled_from(["hard", "managed", "fixed"]) | texts
roles = st.sampled_from(["provides", "requires", "is"]) | texts
inputs = st.dictionaries(texts, scalars, max_size=6)
uses = st.sampled_from(["observe", "resize", "exhausted", "checked", "warn_at"])
units = st.sampled_from(["rows", "tokens"]) | texts
buffers, contracts = {}, {}

class Tensor:
    def __init__(self, shape): self.shape, self.dtype = shape, "torch.int32"

def register(name, capacity, unit, kind, limit, size):
    buffers[name] = ullage.buffer(name, capacity=capacity, unit=unit, kind=kind, limit=limit, bytes=size)

def use(name, what, number):
    if name in buffers: getattr(buffers[name], what)(number)

def count(name, used, times):
    if name in buffers: buffers[name].observe(used, times)

def violate(name, index, count, detail):
    if name in buffers: buffers[name].violated(index, count, detail)

def close(name):
    for handles in (buffers, contracts):
        if name in handles: handles.pop(name).close()

def agree(name, dims, relation, unit, dtype):
    contracts[name] = ullage.Contract(name, dims=dims, relation=relation, unit=unit, dtype=dtype)

def claim(name, source, shape, role, given, dtype):
    if name in contracts: contracts[name].claim(source, shape, role=role, inputs=given, dtype=dtype)

def compare(name, have, need, given, sources):
    if name in contracts: contracts[name].compare(have, need, inputs=lambda: given, sources=sources)

def check(name, shape, source):
    if name in contracts: contracts[name].check(Tensor(shape), source)

def identify(name, number):
    process.session.identify(model_name=name, tp_rank=number)

def hold(owner, attribute, shape, nbytes):
    inventory(process, owner, [TensorInfo(attribute, shape, "int32", nbytes)])

calls = st.one_of(
    st.tuples(st.just(register), names, numbers, units, kinds, texts | st.none(), numbers | st.none()),
    st.tuples(st.just(use), names, uses, numbers),
    st.tuples(st.just(count), names, numbers, numbers),
    st.tuples(st.just(violate), names, numbers, numbers, texts),
    st.tuples(st.just(close), names),
    st.tuples(st.just(agree), names, st.lists(texts, min_size=1, max_size=9), st.sampled_from(["==", ">="]) | texts,
              texts, st.just("") | texts),
    st.tuples(st.just(claim), names, names, shapes, roles, inputs, texts),
    st.tuples(st.just(claim), st.just("a"), st.just("source"), st.integers(0, 9), st.just("is"), inputs, st.just("")),
    st.tuples(st.just(compare), names, shapes, shapes, inputs, st.tuples(texts, texts)),
    st.tuples(st.just(check), names, st.tuples(st.integers(-1, 9)) | shapes, texts),
    st.tuples(st.just(hold), texts, texts, st.tuples(st.integers()), st.integers(0, 2**63 - 1)),
    st.tuples(st.just(identify), texts, st.integers()),
    st.tuples(st.just(lambda text: process.session.note_failure(text)), texts),
    st.tuples(st.just(ullage.step)),
)

refused = []

@settings(max_examples=int(sys.argv[1]), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.lists(calls, max_size=30))
def anything(steps):
    register("a", 10, "rows", "hard", None, None)
    agree("a", ["n"], "==", "", "")
    for function, *arguments in steps:
        function(*arguments)
    snapshot = reader.read(process.session.open().path)
    assert (snapshot.refused, snapshot.half_written) == (0, 0)
    for name in list(buffers): close(name)
    for name in list(contracts): close(name)

from ullage import safety
safety.MAX_ERRORS = 10**9
ullage.step()
anything()
print("passed")
"""


@pytest.mark.fault("whatever the public API is given", sees="no record that its reader refuses")
def test_what_the_hook_writes_passes_whatever_it_is_given(program, segments, tried):
    examples = 2_000 if LONG else 150
    running = program(ANYTHING, examples, ULLAGE_STRICT="0")

    out, err = running.process.communicate(timeout=280)

    assert out == "passed\n", err
    tried(examples)


ODD = ["", "a/b", "x" * 500, "\ud800", "\n\x1b[31mred", "ü" * 300, "\N{GRINNING FACE}" * 300, "vllm0:"]


@pytest.mark.fault("names from the environment that are odd", sees="the process, its name cleaned and cut")
@pytest.mark.parametrize("odd", ODD, ids=ascii)
@pytest.mark.parametrize("variable", ["ULLAGE_ENGINE", "ULLAGE_ENGINE_ID", "VLLM_PLUGINS", "model"])
def test_a_name_from_outside_is_cleaned_and_cut(program, segments, variable, odd):
    given = odd.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    program(
        """
        import sys, ullage
        from ullage.host.process import process
        ullage.step()
        process.session.identify(model_name=sys.argv[1], engine_version=sys.argv[1], other=sys.argv[1])
        """,
        given if variable == "model" else "",
        **({variable: given} if variable != "model" else {}),
    ).finish()

    (path,) = segments.glob("*.ullage")
    snapshot = reader.read(path)

    assert snapshot.refused == 0
    assert snapshot.name.isprintable()
    assert 0 < len(snapshot.name) <= 200
    assert snapshot.identity["role"] == "main"
