"""More than one engine in a program, at once or one after another; and one whose model has no KV cache."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import tiny_llama
from harness import until
from soundness import Sight

FIRST = {"max_model_len": 512, "max_num_seqs": 16, "max_num_batched_tokens": 512, "num_gpu_blocks_override": 256}
SECOND = {"max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 64, "num_gpu_blocks_override": 20}
CORE = {"kv_blocks", "running_requests", "scheduled_tokens"}
LOAD = {"count": 6, "times": 2}


class Told(NamedTuple):
    """What a scenario left: moments in order, and (ullage's, vLLM's) blocks in use while requests ran."""

    moments: list
    blocks: dict

    @property
    def last(self):
        """The moment at its end."""
        return self.moments[-1]

    @property
    def problems(self):
        """What must not be, of all moments, each once."""
        return list(dict.fromkeys(problem for moment in self.moments for problem in moment.problems))


def capacities(limits):
    """Return what the buffers of an engine with these limits hold."""
    tokens, requests = limits["max_num_batched_tokens"], limits["max_num_seqs"]
    return {
        "kv_blocks": limits["num_gpu_blocks_override"] - 1,
        "running_requests": requests,
        "scheduled_tokens": tokens,
        "request_slots": requests,
        "step_tokens": tokens,
        "padded_tokens": tokens,
        "block_table_row": limits["max_model_len"] // 32,
    }


def claimed_limits(moment, process):
    """Return the limits that a process claims: tokens of a sequence, requests, tokens of a step."""
    return {shape[:3] for (contract, _), shape in moment.claims(process).items() if contract == "limits"}


def limits_of(limits):
    """Return the limits that an engine's processes must claim."""
    return {(limits["max_model_len"], limits["max_num_seqs"], limits["max_num_batched_tokens"])}


class Scenario:
    """A program with engines, and its sidecar."""

    def __init__(self, child, model, directory, *, in_process):
        self._child, self._model = child, str(model)
        self._executor = "uni" if in_process else None
        self._sight = Sight(directory)
        self.moments = []

    def start(self, engine, limits, **more):
        """Start an engine."""
        arguments = {**tiny_llama.ARGUMENTS, **limits, "distributed_executor_backend": self._executor, **more}
        self._child.ask("start", engine=engine, model=self._model, **arguments)
        self.look()

    def ask(self, do, engine, **arguments):
        """Have an engine do something, and look."""
        answer = self._child.ask(do, engine=engine, **arguments)
        self.look()
        return answer

    def look(self):
        """Note the present moment."""
        self.moments.append(self._sight.look())
        return self.moments[-1]

    def both_at_once(self):
        """Step two engines in turn; return (used by ullage, by vLLM) after each step, by engine."""
        blocks = {"first": [], "second": []}
        for engine in blocks:
            self.ask("begin", engine, count=4, tokens=30)
        for _ in range(8):
            for engine, process in (("first", "vllm0/main"), ("second", "vllm1/main")):
                self.ask("step", engine, times=1)
                buffers = self.moments[-1].buffers(process)
                used = buffers["kv_blocks"].used if "kv_blocks" in buffers else None
                blocks[engine].append((used, self._child.ask("blocks", engine=engine)))
        for engine in blocks:
            self.ask("finish", engine)
        return blocks

    def settle(self):
        """Wait until no living process says that a block is in use."""
        until(lambda: not any(self._used(self.look())), what="a pool without use")

    @staticmethod
    def _used(moment):
        every = [buffer for process in moment.living for buffer in moment.buffers(process).values()]
        return [buffer.used for buffer in every if buffer.name == "kv_blocks"]


@pytest.fixture(scope="module")
def scenario(forking, make_model, make_directory):
    """Start a Scenario; its program ends with the module."""
    running = []

    def start(model="llama", *, in_process):
        directory = make_directory()
        child = forking.fork(directory, VLLM_ENABLE_V1_MULTIPROCESSING="0" if in_process else "1")
        running.append(child)
        return Scenario(child, make_model(model), directory, in_process=in_process)

    yield start
    with ThreadPoolExecutor() as every:
        list(every.map(lambda child: child.end(), running))


@pytest.fixture(scope="module")
def encoder(scenario):
    """An engine whose model has an encoder alone, after it has embedded."""
    told = scenario("bert", in_process=True)
    told.start("only", {}, runner="pooling", skip_tokenizer_init=False, block_size=None)
    told.ask("embed", "only", count=8)
    return Told(told.moments, {})


@pytest.fixture(scope="module")
def two_in_process(scenario):
    """Two engines in one process, after both have generated in turn."""
    told = scenario(in_process=True)
    told.start("first", FIRST)
    told.start("second", SECOND)
    for engine in ("first", "second", "first"):
        told.ask("generate", engine, **LOAD)
    return Told(told.moments, told.both_at_once())


@pytest.fixture(scope="module")
def successor_in_process(scenario):
    """A second engine in the process of a first one that was shut down."""
    return _succession(scenario(in_process=True))


@pytest.fixture(scope="module")
def with_workers(scenario):
    """Run the two scenarios whose engines have processes of their own, at the same time: most of it is imports."""
    told = [scenario(in_process=False), scenario(in_process=False)]
    with ThreadPoolExecutor(2) as both:
        return list(both.map(lambda run, one: run(one), (_coexistence, _succession), told))


@pytest.fixture(scope="module")
def two_with_workers(with_workers):
    """Two engines of one program, each with processes of its own, after both have generated in turn."""
    return with_workers[0]


@pytest.fixture(scope="module")
def successor_with_workers(with_workers):
    """A second engine of the program of a first one that was shut down, each with processes of its own."""
    return with_workers[1]


def _coexistence(told):
    told.start("first", FIRST)
    told.start("second", SECOND)
    for engine in ("first", "second", "first"):
        told.ask("generate", engine, **LOAD)
    told.settle()
    return Told(told.moments, {})


def _succession(told):
    told.start("first", FIRST)
    told.ask("generate", "first", **LOAD)
    told.ask("shutdown", "first")
    told.start("second", SECOND)
    told.ask("generate", "second", **LOAD)
    told.settle()
    return Told(told.moments, {})


# -- row 1: an encoder without a KV cache ----------------------------------------------------------------------------


def test_an_encoder_is_no_error_and_nothing_is_found(encoder):
    assert encoder.problems == []


def test_an_encoder_has_claims_and_an_inventory(encoder):
    main = encoder.last.living["vllm0/main"]

    assert encoder.last.claims("vllm0/main")
    assert [buffer for buffer in main.buffers if buffer.inventory]
    assert encoder.last.buffers("vllm0/main")["step_tokens"].high_water > 0


def test_an_encoder_has_no_buffer_without_room(encoder):
    assert {name for name, capacity in encoder.last.capacities("vllm0/main").items() if capacity == 0} == set()


# -- row 2: two at once in one process -------------------------------------------------------------------------------


def test_two_in_one_process_are_no_error_and_nothing_is_found(two_in_process):
    assert two_in_process.problems == []


def test_two_in_one_process_are_two_engines(two_in_process):
    assert two_in_process.last.states == {"vllm0/main": "running", "vllm1/main": "running"}
    assert len(set(two_in_process.last.engines.values())) == 2


@pytest.mark.parametrize(("process", "limits"), [("vllm0/main", FIRST), ("vllm1/main", SECOND)])
def test_two_in_one_process_have_limits_of_their_own(two_in_process, process, limits):
    assert two_in_process.last.capacities(process) == capacities(limits)
    assert claimed_limits(two_in_process.last, process) == limits_of(limits)


@pytest.mark.parametrize("engine", ["first", "second"])
def test_two_in_one_process_use_the_blocks_that_vllm_says(two_in_process, engine):
    pairs = two_in_process.blocks[engine]

    assert max(theirs for _, theirs in pairs) > 4
    assert [ours for ours, _ in pairs] == [theirs for _, theirs in pairs]


# -- row 2b: two at once with processes of their own -----------------------------------------------------------------


def test_two_with_workers_are_no_error_and_nothing_is_found(two_with_workers):
    assert two_with_workers.problems == []


def test_two_with_workers_are_two_engines_of_three_processes(two_with_workers):
    states = two_with_workers.last.states
    names = [f"vllm{number}/{process}" for number in (0, 1) for process in ("api", "core", "worker-tp0")]

    assert states == dict.fromkeys(names, "running")
    pairs = {(process.partition("/")[0], engine) for process, engine in two_with_workers.last.engines.items()}
    assert len(pairs) == len({engine for _, engine in pairs}) == 2


@pytest.mark.parametrize(("engine", "limits"), [("vllm0", FIRST), ("vllm1", SECOND)])
def test_two_with_workers_have_limits_of_their_own(two_with_workers, engine, limits):
    moment = two_with_workers.last

    core, worker = (moment.capacities(f"{engine}/{process}") for process in ("core", "worker-tp0"))
    assert core | worker == capacities(limits)
    assert core.keys() == CORE
    for process in (f"{engine}/core", f"{engine}/worker-tp0"):
        assert claimed_limits(moment, process) == limits_of(limits)


# -- row 3: one after another ----------------------------------------------------------------------------------------


def test_a_successor_in_process_is_no_error_and_nothing_is_found(successor_in_process):
    assert successor_in_process.problems == []


def test_what_was_shut_down_in_process_has_no_records_left(successor_in_process):
    moment = successor_in_process.last
    others = [process for process in moment.living if not process.startswith("vllm1/")]

    assert {process for process in others if moment.capacities(process)} == set()
    assert {process for process in others if moment.claims(process)} == set()


def test_a_successor_in_process_has_limits_of_its_own(successor_in_process):
    assert successor_in_process.last.capacities("vllm1/main") == capacities(SECOND)
    assert claimed_limits(successor_in_process.last, "vllm1/main") == limits_of(SECOND)


def test_a_successor_with_workers_is_no_error_and_nothing_is_found(successor_with_workers):
    assert successor_with_workers.problems == []


def test_what_was_shut_down_with_its_workers_has_stopped(successor_with_workers):
    states = successor_with_workers.last.states

    assert (states.get("vllm0/core"), states.get("vllm0/worker-tp0")) == ("stopped", "stopped")


def test_a_successor_with_workers_has_limits_of_its_own(successor_with_workers):
    moment = successor_with_workers.last

    assert {process for process in moment.living if process.startswith("vllm1/")} == {
        "vllm1/api",
        "vllm1/core",
        "vllm1/worker-tp0",
    }
    assert moment.capacities("vllm1/core") | moment.capacities("vllm1/worker-tp0") == capacities(SECOND)
    for process in ("vllm1/core", "vllm1/worker-tp0"):
        assert claimed_limits(moment, process) == limits_of(SECOND)
