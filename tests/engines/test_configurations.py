"""Each configuration of vLLM: the same requests with the hook and without, the same tokens, and nothing found."""

from __future__ import annotations

import http.client
import json
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import tiny_llama
from configurations import CONFIGURATIONS
from harness import LONG, until
from soundness import Moment, Sight

BLOCKS = 256
RUN = [one for one in CONFIGURATIONS if LONG or (one.quick and not one.test)]


class Result(NamedTuple):
    """What one configuration did, with the hook and without, and what was seen of it then.

    ``preempted`` is how often the engine, with all that shared it, had preempted a request by vLLM's count.
    """

    answers: list
    expected: list
    moment: Moment
    preempted: int


def engine_of(configuration):
    """Return what configurations have in common that can share an engine."""
    return json.dumps([configuration.model, {**tiny_llama.ARGUMENTS, **configuration.arguments}, configuration.mode])


class Offline:
    """A child of a vLLM that forks, with an engine."""

    def __init__(self, forking, model, configuration, directory, scratch):
        in_process = configuration.mode == "in process"
        self._scratch = str(scratch)
        self._child = forking.fork(directory, VLLM_ENABLE_V1_MULTIPROCESSING="0" if in_process else "1")
        arguments = {
            "num_gpu_blocks_override": BLOCKS,
            "distributed_executor_backend": "uni" if in_process else None,
            **tiny_llama.ARGUMENTS,
            "skip_tokenizer_init": False,
            **configuration.arguments,
        }
        self.ask({"do": "start", "model": str(model), **arguments})

    def ask(self, request):
        """Return the answer to a request of the list."""
        given = json.loads(json.dumps(request).replace("{scratch}", self._scratch))
        return self._child.ask(**given)

    def preempted(self):
        """Return how often a request was preempted."""
        return self._child.ask("preemptions")

    def end(self):
        """Shut it down."""
        self._child.end()


class Client:
    """A server of vLLM, asked over HTTP."""

    def __init__(self, server):
        self._server = server

    def ask(self, request):
        """Return the answer to a request of the list."""
        rows = range(request["count"])
        with ThreadPoolExecutor(len(rows)) as clients:
            return list(clients.map({"complete": self._complete, "cancel": self._cancel}[request["do"]], rows))

    def preempted(self):
        """Return how often a request was preempted."""
        return float(re.search(r"(?m)^vllm:num_preemptions_total\S* (\S+)$", self._server.get("/metrics"))[1])

    def end(self):
        """Have it end in order."""
        self._server.process.send_signal(signal.SIGTERM)
        self._server.process.wait(timeout=120)

    @staticmethod
    def _prompt(row):
        return [3 + (row * 7 + column) % 250 for column in range(20 + row * 5)]

    def _complete(self, row):
        return self._server.complete(self._prompt(row), 24)

    def _cancel(self, row):
        """Close a stream after its first line."""
        body = {"model": "tiny", "prompt": self._prompt(row), "max_tokens": 200, "ignore_eos": True, "stream": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=120)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            return connection.getresponse().readline()[:5].decode()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def start(forking, make_model, start_server, make_directory):
    """Start the engine of a configuration, watched if there is a directory."""

    def start(configuration, directory):
        if configuration.mode == "server":
            return Client(start_server(BLOCKS, hook=directory is not None, directory=directory))
        return Offline(forking, make_model(configuration.model), configuration, directory, make_directory())

    return start


@pytest.fixture(scope="module")
def sights():
    """What a sidecar sees of each engine that was watched."""
    return []


@pytest.fixture(scope="module")
def results(start, sights, make_model, make_directory):
    """Run all that shares an engine with a configuration, once; return the Result of each by its name."""
    known = {}

    def run(configuration, sight, directory):
        engine = start(configuration, directory)
        told = {}
        for one in [other for other in RUN if engine_of(other) == engine_of(configuration)]:
            answers = [engine.ask(request) for request in one.requests]
            told[one.name] = (answers, _at_rest(sight) if sight else None, engine.preempted())
        engine.end()
        return told

    def results(configuration):
        if configuration.name not in known:
            make_model(configuration.model)  # before two ask for it at once
            directory = make_directory()
            sights.append(Sight(directory))
            with ThreadPoolExecutor(2) as both:
                plain = both.submit(run, configuration, None, None)
                watched = run(configuration, sights[-1], directory)
            for name, (answers, moment, preempted) in watched.items():
                known[name] = Result(answers, plain.result()[name][0], moment, preempted)
        return known[configuration.name]

    return results


def _at_rest(sight):
    """Return the moment at which no process says any more that blocks are in use: the last step is over."""

    def rest():
        moment = sight.look()
        every = [buffer for process in moment.living for buffer in moment.buffers(process).values()]
        return None if any(buffer.used for buffer in every if buffer.name == "kv_blocks") else moment

    return until(rest, what="an engine at rest")


def _over(sight):
    """Return the present moment if no process lives any more."""
    moment = sight.look()
    return None if moment.living else moment


def name_of(configuration):
    """Return its name as a part of a test's."""
    return configuration.name.replace(" ", "-")


@pytest.fixture(scope="module", params=RUN, ids=name_of)
def configuration(request):
    """A configuration that this run is to cover."""
    return request.param


@pytest.fixture(scope="module")
def result(configuration, results):
    """What became of it."""
    return results(configuration)


def test_the_tokens_are_the_same(result):
    assert any(result.expected)
    assert result.answers == result.expected


def test_nothing_is_found_and_no_probe_fails(result):
    assert result.moment.living
    assert result.moment.problems == []


def test_exhaustions_are_vllms_preemptions(result):
    assert result.moment.total("kv_blocks", "exhaustions") == result.preempted


SPECIAL = [one for one in RUN if one.at_least]


@pytest.mark.parametrize("configuration", SPECIAL, ids=name_of, indirect=True, scope="module")
def test_what_is_special_about_it_was_seen(configuration, result):
    facts = {(buffer, fact): result.moment.total(buffer, fact) for buffer, fact in configuration.at_least}

    assert {key: value for key, value in facts.items() if value < configuration.at_least[key]} == {}


def test_all_processes_of_all_engines_stop_in_order(results, sights):
    for configuration in RUN:
        results(configuration)

    for sight in sights:
        end = until(lambda sight=sight: _over(sight), what="the end of all processes")
        assert set(end.states.values()) == {"stopped"}
        assert end.problems == []


def test_each_kind_is_run_or_has_a_test():
    kinds = {one.kind for one in CONFIGURATIONS}

    assert {one.kind for one in CONFIGURATIONS if one.quick or one.test} == kinds
    assert len({one.name for one in CONFIGURATIONS}) == len(CONFIGURATIONS)


@pytest.mark.parametrize("test", sorted({one.test for one in CONFIGURATIONS if one.test}))
def test_a_test_that_a_configuration_names_exists(test):
    file, _, function = test.partition("::")

    assert f"\ndef {function}(" in (Path(__file__).parent / file).read_text()
