"""A real Prometheus with an hour of what a sidecar that has seen everything exposes."""

from __future__ import annotations

import json
import time

import pytest
from everything import samples
from prometheus import PrometheusServer, backfill

TARGET = {"job": "vllm", "instance": "10.0.0.7:9877", "namespace": "prod", "pod": "llama-0"}
HOUR_S, STEP_S = 3600, 30


def page(number):
    """Return what is scraped the ``number``-th time. Counters rise in proportion to what they are."""
    lines = []
    for name, labels, value in [*samples(), ("up", {}, 0.0)]:
        inside = ",".join(f"{label}={json.dumps(text)}" for label, text in labels.items())
        rises = name.endswith(("_total", "_bucket"))
        lines.append(f"{name}{{{inside}}} {value * number if rises else value}")
    return "\n".join(lines)


@pytest.fixture(scope="session")
def hour(prometheuses, tmp_path_factory):
    """Every release of Prometheus, by version, with that hour."""
    begin = int(time.time()) - HOUR_S
    pages = [(begin + number * STEP_S, TARGET, page(number)) for number in range(1, HOUR_S // STEP_S + 1)]
    servers = {}
    for release in prometheuses:
        room = tmp_path_factory.mktemp("hour") / release.version
        backfill(release.promtool, room, pages)
        servers[release.version] = PrometheusServer(release.prometheus, room)
    yield servers
    for server in servers.values():
        server.end()


@pytest.fixture
def ask(release, hour):
    """Ask one of them; return the samples of the answer."""
    return lambda query: hour[release.version].get("query", query=query)["result"]
