"""Engine instances of one program: at once, one after another, failed, dropped. Stand-ins have the shapes of vLLM."""

from __future__ import annotations

import os

import pytest

from ullage.segment import reader

VLLM = """
import gc, os, sys, types
import ullage

vllm = types.ModuleType("vllm")
vllm.__version__ = "0.32.0"
sys.modules["vllm"] = vllm
from ullage.engines.vllm import register
from ullage.host.process import process
from ullage.segment import reader
register()

class Executor: pass

class EngineCore:
    def __init__(self, fails=False):
        self.model_executor = Executor()
        self.scheduler = object()
        if fails:
            self.shutdown()
            raise MemoryError("no memory for the KV cache")
    def shutdown(self):
        self.model_executor.shutdown()

class MultiprocExecutor(Executor):
    is_failed = False
    def shutdown(self): pass

class InprocClient:
    def __init__(self, *args, **kwargs):
        self.engine_core = EngineCore(*args, **kwargs)
        self.engine_core.model_executor = MultiprocExecutor()
    def shutdown(self):
        self.engine_core.shutdown()

class MPClient:
    def __init__(self, asyncio_mode, vllm_config):
        self.resources = Executor()

Executor.shutdown = lambda self: None

def module(name, *classes):
    made = types.ModuleType(name)
    for cls in classes:
        setattr(made, cls.__name__, cls)
    sys.modules[name] = made

module("vllm.v1.engine.core_client", InprocClient, MPClient)
module("vllm.v1.engine.core", EngineCore)
module("vllm.v1.executor.multiproc_executor", MultiprocExecutor)
process.chores.check()

def files():
    return sorted(os.listdir(os.environ["ULLAGE_DIR"]))
"""


@pytest.fixture
def told(program, segments):
    """Run a program to its end; return its segments by name, and what it wrote."""

    def told(code, **environment):
        out = program(VLLM + code, **environment).finish()
        seen = [reader.read(path) for path in segments.glob("*.ullage")]
        return {each.name: each for each in seen}, out

    return told


def outcomes(seen):
    return {name: each.outcome(list(seen.values())) for name, each in seen.items()}


def test_the_first_engine_has_the_programs_own_buffers_and_a_second_one_none(told):
    seen, _ = told(
        """
rows = ullage.buffer("rows", capacity=10, unit="rows")
first, second = InprocClient(), InprocClient()
rows.observe(7)
os._exit(0)
""",
        ULLAGE_ENGINE_ID="vllm0:0123456789abcdef",
    )

    assert {name: [buffer.name for buffer in each.buffers] for name, each in seen.items()} == {
        "vllm0/main": ["rows"],
        "vllm1/main": [],
    }


def test_what_the_program_registered_goes_on_from_zero_when_the_engine_is_shut_down(told):
    seen, out = told("""
client = InprocClient()
rows = ullage.buffer("rows", capacity=10, unit="rows")
limit = ullage.Contract("limit")
limit.claim("program", 5)
rows.observe(9)
client.shutdown()
rows.observe(3)
assert ullage.buffer("rows", capacity=20, unit="rows") is rows
rows.close()
print(process.session.segment is not None)
""")

    assert out.strip() == "True"
    assert outcomes(seen) == {"vllm0/main": "stopped", "app0/main": "stopped"}
    assert seen["vllm0/main"].buffers[0].high_water == 9
    (rows,) = seen["app0/main"].buffers
    assert (rows.high_water, rows.grows, rows.closed) == (3, 1, True)
    assert [(claim.source, claim.shape) for claim in seen["app0/main"].claims if not claim.tally] == [("program", (5,))]


@pytest.mark.parametrize("end", ["client.shutdown()", "del client; gc.collect()"])
def test_an_engine_that_is_over_reads_as_stopped_and_the_next_one_has_another_name_and_id(told, end):
    seen, _ = told(f"client = InprocClient()\n{end}\nclient = InprocClient()\nos._exit(0)")

    assert outcomes(seen) == {"vllm0/main": "stopped", "vllm1/main": "killed"}
    assert len({each.engine_id for each in seen.values()}) == 2


def test_a_client_that_is_dropped_while_another_thread_begins_an_engine_waits_for_nothing(told):
    seen, out = told("""
import threading
client, held, go_on = InprocClient(), threading.Event(), threading.Event()
def begins():
    with process._lock:
        held.set()
        go_on.wait(20)
thread = threading.Thread(target=begins)
thread.start()
held.wait(20)
del client
gc.collect()
print(process.session.segment is not None, go_on.is_set())
go_on.set()
thread.join()
process.chores.check()
print(process.session.segment is not None)
""")

    assert out.split() == ["True", "False", "False"]
    assert outcomes(seen) == {"vllm0/main": "stopped"}


def test_a_shutdown_of_one_is_no_shutdown_of_another(told):
    seen, _ = told("first, second = InprocClient(), InprocClient()\nfirst.shutdown()\nos._exit(0)")

    assert outcomes(seen) == {"vllm0/main": "stopped", "vllm1/main": "killed"}


@pytest.mark.fault("an engine whose start fails in a program that goes on", sees="crashed; the next one is another")
def test_an_engine_whose_start_failed_has_crashed_and_the_next_one_is_another(told):
    seen, _ = told("""
try:
    InprocClient(fails=True)
except MemoryError:
    pass
client = InprocClient()
os._exit(0)
""")

    assert outcomes(seen) == {"vllm0/main": "crashed", "vllm1/main": "killed"}
    assert [(event.kind.name, event.subject) for event in seen["vllm0/main"].events] == [
        ("HOST_EXCEPTION", "engine start"),
        ("FAILURE", "engine start"),
    ]


@pytest.mark.fault("a program that reloads its engine again and again", sees="the newest two and the first failure")
def test_a_program_that_reloads_its_engine_leaves_few_files_descriptors_and_maps(told):
    seen, out = told("""
def held():
    maps = open("/proc/self/maps").read().count(".ullage")
    return len(os.listdir("/proc/self/fd")), maps, len(files())

for _ in range(3):
    InprocClient().shutdown()
before = held()
for _ in range(30):
    InprocClient().shutdown()
gc.collect()
print(before == held(), before)
""")

    assert out.startswith("True"), out
    assert sorted(seen) == ["vllm31/main", "vllm32/main"]


SERVERS = """
import subprocess
from types import SimpleNamespace as Some
def config(rank):
    parallel = Some(_api_process_count=2, _api_process_rank=rank)
    return Some(parallel_config=parallel, model_config=Some(model="tiny", served_model_name=None))
class CoreEngineProcManager:
    def __init__(self, engines, start, local_start, vllm_config): pass
module("vllm.v1.engine.utils", CoreEngineProcManager)
process.chores.check()
"""


def test_several_api_servers_and_their_launcher_are_processes_of_one_engine(program, segments):
    servers = VLLM + SERVERS + "MPClient(True, config(int(sys.argv[1])))"
    launch = f"""
launched = CoreEngineProcManager(1, 0, 0, config(-1))
for rank in range(2):
    subprocess.run([sys.executable, "-c", {servers!r}, str(rank)], check=True)
"""
    program(VLLM + SERVERS + launch).finish()

    seen = [reader.read(path) for path in segments.glob("*.ullage")]
    assert sorted(each.name for each in seen) == ["vllm0/api-server0", "vllm0/api-server1", "vllm0/launcher"]
    assert len({each.engine_id for each in seen}) == 1
    assert {each.outcome(seen) for each in seen} == {"stopped"}


def test_a_second_engine_of_a_named_one_has_a_number(told):
    seen, _ = told("first, second = InprocClient(), InprocClient()\nos._exit(0)", ULLAGE_ENGINE="prod")

    assert sorted(seen) == ["prod-2/main", "prod/main"]


def test_what_is_started_after_the_end_of_an_engine_does_not_join_it(told):
    _, out = told("""
first, second = InprocClient(), InprocClient()
ids = [each.identity.engine_id for each in process.sessions]
second.shutdown()
print(os.environ["ULLAGE_ENGINE_ID"] == f"vllm0:{ids[0]}")
first.shutdown()
print(os.environ.get("ULLAGE_ENGINE_ID"))
""")

    assert out.split() == ["True", "None"]


@pytest.mark.fault("a fork with two engines", sees="no value of the parent changes")
def test_a_forked_child_with_two_engines_records_apart_and_joins_the_one_that_starts_it(told):
    seen, _ = told(
        """
rows = ullage.buffer("rows", capacity=10, unit="rows")
rows.observe(2)
first, second = InprocClient(), InprocClient()
child = os.fork()
if child == 0:
    rows.observe(9)
    process.current("vllm").roles.add("core")
    process.session.identify(dp_rank=0)
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
""",
        ULLAGE_ENGINE_ID="vllm0:0123456789abcdef",
    )

    assert {name: [buffer.used for buffer in each.buffers] for name, each in seen.items()} == {
        "vllm0/main": [2],
        "vllm1/main": [],
        "vllm1/core": [9],
    }
    assert seen["vllm1/core"].engine_id == seen["vllm1/main"].engine_id
    assert os.getpid() not in {each.process.pid for each in seen.values()}
