"""vLLM as a server: the same tokens, the same numbers as its own metrics, and an orderly end."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import Sidecar, until
from prometheus_client.parser import text_string_to_metric_families

PROMPTS = [[3 + (row * 7 + column) % 250 for column in range(20 + row * 10)] for row in range(8)]
TOKENS = 24


@pytest.fixture(scope="module")
def plain_tokens(start_server):
    """What a server without the hook generates."""
    server = start_server(256, hook=False)
    tokens = generate(server)
    server.end()
    return tokens


@pytest.fixture(scope="module")
def server(start_server):
    """A watched server."""
    return start_server(256)


@pytest.fixture(scope="module")
def sidecar(server):
    """Its sidecar."""
    watching = Sidecar(server.directory)
    yield watching
    watching.end()


def generate(server):
    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        return list(clients.map(lambda prompt: server.complete(prompt, TOKENS), PROMPTS))


def own(server, name):
    """One of vLLM's own metrics."""
    families = text_string_to_metric_families(server.get("/metrics"))
    return next(sample.value for family in families for sample in family.samples if sample.name == name)


def test_the_tokens_are_the_same(server, sidecar, plain_tokens):
    assert generate(server) == plain_tokens


def test_at_rest_its_own_metrics_and_ours_agree(server, sidecar):
    def used(buffer):
        return sidecar.value("ullage_buffer_used_slots", process="vllm0/core", buffer=buffer)

    until(lambda: own(server, "vllm:num_requests_running") == 0)

    capacity = sidecar.value("ullage_buffer_capacity_slots", process="vllm0/core", buffer="kv_blocks")
    assert used("kv_blocks") / capacity == own(server, "vllm:kv_cache_usage_perc") == 0
    assert used("running_requests") == own(server, "vllm:num_requests_running") == 0
    assert sidecar.value("ullage_buffer_exhaustions_total", process="vllm0/core", buffer="kv_blocks") == own(
        server, "vllm:num_preemptions_total"
    )
    high_water = sidecar.value("ullage_buffer_high_water_slots", process="vllm0/core", buffer="kv_blocks")
    assert high_water >= own(server, "vllm:kv_cache_usage_perc") * capacity
    assert high_water > 0


def test_what_it_is_and_what_its_processes_are_called(sidecar):
    infos = [dict(labels) for (name, labels) in sidecar.metrics() if name == "ullage_process_info"]

    assert {info["process"]: info["role"] for info in infos} == {
        "vllm0/api": "api",
        "vllm0/core": "core",
        "vllm0/worker-tp0": "worker",
    }
    assert {(info["engine"], info["engine_version"], info["model_name"]) for info in infos} == {
        ("vllm", "0.32.0", "tiny")
    }


@pytest.mark.fault("SIGTERM of a vLLM server", sees="stopped, no warning")
def test_sigterm_is_a_stop_of_all_and_no_warning(server, sidecar):
    assert set(sidecar.states().values()) == {"running"}

    server.process.send_signal(signal.SIGTERM)
    server.process.wait(timeout=120)
    until(lambda: "running" not in sidecar.states().values(), 60, "the end of all")

    assert sidecar.states() == dict.fromkeys(("vllm0/api", "vllm0/core", "vllm0/worker-tp0"), "stopped")
    assert sidecar.warnings() == {}
    assert "WARNING" not in sidecar.log()
