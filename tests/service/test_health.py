"""Health: what the probes answer while ticks hang or fail, and that nothing keeps the sidecar from ending."""

from __future__ import annotations

import json
import re
import signal
import socket
import time
import urllib.error
from pathlib import Path

import pytest
from harness import PROMISE_FACTOR, Sidecar, until

from ullage_sidecar import health

ENDS_WITHIN_S = 5
# Reading the segments fails as the files in a directory say: one for ticks, one for requests.
FAULTY = """
import sys, threading
from pathlib import Path
from ullage_sidecar import discovery, health
health.LIVE_WITHIN_S = health.READY_WITHIN_S = 3
faults, find = Path({faults!r}), discovery.find

def faulty(directory, *, events=False):
    name = threading.current_thread().name
    fault = faults / ("tick" if name == "ullage-watch" else "request" if "reader" in name else "none")
    kind = fault.read_text() if fault.exists() else ""
    if kind == "raise once":
        fault.unlink()
    if kind.startswith("raise"):
        raise ZeroDivisionError("a bug of ours\\nforged line \\x1b[31m" + "x" * 10_000)
    while kind == "hang":
        pass
    return find(directory, events=events)

discovery.find = faulty
"""
OVERFLOW = """
import sys, ullage
ullage.buffer("rows", capacity=10, unit="rows").observe(11)
print("ready", flush=True)
sys.stdin.read()
"""


class Faults:
    """Says in which of a sidecar's threads reading hangs or raises."""

    def __init__(self, directory):
        self.directory = directory

    def set(self, thread, kind):
        """Have reads in ``thread`` (tick, request) fail: raise, raise once or hang; or not, with an empty kind."""
        new = self.directory / "new"
        new.write_text(kind)
        new.rename(self.directory / thread)


@pytest.fixture
def faults(tmp_path):
    return Faults(tmp_path)


@pytest.fixture
def serve(segments, faults):
    """Start a sidecar that has faults; it is gone at the end of the test."""
    started = []

    def start(*options, **named):
        code = FAULTY.format(faults=str(faults.directory))
        started.append(Sidecar(segments, *options, code=code, **named))
        return started[-1]

    yield start
    for one in started:
        one.end()


def problem(watching, path):
    """Return the status and detail of a page that must be a problem document; None if it is not an error now."""
    try:
        watching.get(path)
    except urllib.error.HTTPError as error:
        answer = error
    except (urllib.error.URLError, ConnectionError):
        assert watching.process.poll() is None, watching.log()
        return None
    else:
        return None
    body = json.loads(answer.read())
    assert answer.headers["content-type"] == "application/problem+json"
    assert body["status"] == answer.code
    assert body["title"]
    return answer.code, body["detail"]


def post_mortems(watching):
    """How many lines of post-mortem it has written."""
    return sum(line.startswith("{") for line in watching.log().splitlines())


def busy(watching):
    """Whether it uses a processor for a fifth of half a second: it loops."""
    threads = Path(f"/proc/{watching.process.pid}/task")

    def used():
        return sum(int((one / "schedstat").read_text().split()[0]) for one in threads.iterdir())

    before = used()
    time.sleep(0.5)  # the interval in which CPU time is measured
    return used() - before > 0.1e9


def ends(watching):
    """Send SIGTERM; return the status and the seconds to the end."""
    begun = time.monotonic()
    watching.process.send_signal(signal.SIGTERM)
    status = watching.process.wait(ENDS_WITHIN_S * PROMISE_FACTOR)
    return status, time.monotonic() - begun


@pytest.mark.fault("a tick that hangs", sees="/livez and /readyz 503, last values of /metrics; a restart")
def test_a_tick_that_hangs_fails_both_probes_while_everything_is_served(serve, faults, program):
    assert program(OVERFLOW).line() == "ready"
    watching = serve()
    faults.set("tick", "hang")

    status, detail = until(lambda: problem(watching, "/livez"), 60, "a failing /livez")

    assert status == 503
    assert re.fullmatch(r"no tick has succeeded for \d+ s; the current tick has been running for \d+ s", detail)
    assert problem(watching, "/readyz")[0] == 503
    last = watching.value("ullage_last_tick_timestamp_seconds")
    assert time.time() - last > 2
    assert watching.value("ullage_tick_failures_total") == 0
    assert watching.value("ullage_buffer_used_slots", process="app0/main", buffer="rows") == 11
    assert ("rows", "bounds_violation") in watching.warnings()
    assert watching.states() == {"app0/main": "running"}


@pytest.mark.fault("ticks that raise", sees="/livez and /readyz 503 with the reason; /metrics goes on; a restart")
def test_ticks_that_raise_fail_both_probes_with_the_reason_until_one_succeeds(serve, faults, program):
    assert program(OVERFLOW).line() == "ready"
    watching = serve()
    faults.set("tick", "raise")

    status, detail = until(lambda: problem(watching, "/livez"), 60, "a failing /livez")

    assert status == 503
    reason = r"no tick has succeeded for \d+ s; the last failure: ZeroDivisionError at <string>:\d+ \(faulty\): a bug "
    assert re.match(reason, detail)
    assert detail.isprintable()
    assert len(detail) < 500
    assert problem(watching, "/readyz")[0] == 503
    assert watching.value("ullage_tick_failures_total") >= 2
    assert watching.value("ullage_buffer_used_slots", process="app0/main", buffer="rows") == 11
    assert watching.log().count("Traceback") == 1

    faults.set("tick", "")

    until(lambda: problem(watching, "/readyz") is None, 60, "readiness")
    assert watching.get("/readyz") == watching.get("/livez") == b"ok\n"


@pytest.mark.fault("one tick that raises", sees="the next one; ullage_tick_failures_total 1")
def test_one_tick_that_raises_is_counted_and_fails_no_probe(serve, faults):
    watching = serve()
    faults.set("tick", "raise once")

    until(lambda: watching.value("ullage_tick_failures_total") == 1, what="the failure")

    assert watching.get("/readyz") == watching.get("/livez") == b"ok\n"


def test_a_sidecar_whose_ticks_never_succeeded_is_not_ready_and_dates_none(serve, faults):
    faults.set("tick", "raise")
    watching = serve(ready=False)

    status, detail = until(lambda: problem(watching, "/readyz"), 60, "an answer of /readyz")

    assert status == 503
    assert "since the sidecar started" in detail
    assert watching.value("ullage_last_tick_timestamp_seconds") is None
    assert watching.value("ullage_tick_failures_total") >= 1


@pytest.mark.fault("a scrape that cannot read", sees="the sidecar's own metrics; ullage_segments unreadable 1")
def test_a_scrape_that_cannot_read_serves_warnings_and_the_sidecars_own_metrics(serve, faults, program):
    assert program(OVERFLOW).line() == "ready"
    watching = serve()
    faults.set("request", "raise")

    metrics = {name: value for (name, _), value in watching.metrics().items()}

    assert metrics["ullage_build_info"] == metrics["ullage_config_last_reload_successful"] == 1
    assert metrics["ullage_last_tick_timestamp_seconds"] > 0
    assert metrics["ullage_warning_active"] == 1
    assert "ullage_buffer_used_slots" not in metrics
    assert watching.value("ullage_segments", state="unreadable") == 1
    status, detail = problem(watching, "/v1/processes")
    assert (status, detail.partition(" ")[0]) == (500, "ZeroDivisionError")
    assert watching.get("/readyz") == b"ok\n"


def test_the_probes_change_their_answer_after_ten_and_sixty_seconds(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(health.time, "monotonic", lambda: now[0])
    checked = health.Health()
    assert (checked.live, checked.ready) == (True, False)
    checked.begin()
    checked.succeed()

    answers = {}
    for seconds in (0, 9.9, 10.1, 59.9, 60.1):
        now[0] = 1000.0 + seconds
        answers[seconds] = (checked.live, checked.ready)

    assert answers == {
        0: (True, True),
        9.9: (True, True),
        10.1: (True, False),
        59.9: (True, False),
        60.1: (False, False),
    }


@pytest.mark.fault("SIGTERM while a tick or a request hangs", sees="its end within 5 s, post-mortems written")
@pytest.mark.parametrize("thread", ["tick", "request"])
def test_sigterm_ends_it_though_a_thread_hangs(serve, faults, program, thread):
    engine = program(OVERFLOW)
    assert engine.line() == "ready"
    watching = serve()
    engine.kill()
    until(lambda: post_mortems(watching) == 1, what="the post-mortem")
    faults.set(thread, "hang")
    with socket.create_connection(("127.0.0.1", watching.port)) as client:
        client.sendall(b"GET /v1/processes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: busy(watching), what="the endless loop")

        status, seconds = ends(watching)

    print(f"ended after {seconds:.1f} s")
    assert status == 0
    assert post_mortems(watching) == 2, "told again at the end"


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost: localh"], ids=["nothing", "half a head"])
def test_sigterm_ends_it_though_a_connection_is_open(serve, sent):
    watching = serve()
    with socket.create_connection(("127.0.0.1", watching.port)) as client:
        client.sendall(sent)
        watching.get("/livez")

        assert ends(watching)[0] == 0
    assert "Traceback" not in watching.log()


@pytest.mark.fault("a port that is taken", sees="one log line; ticks go on; it serves once the port is free")
def test_a_taken_port_is_waited_for_while_the_segments_are_watched(serve, program):
    assert program(OVERFLOW).line() == "ready"
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        watching = serve(port=port, ready=False)

        until(lambda: "adopted critical bounds_violation" in watching.log(), 60, "the warning in the log")
        until(lambda: "cannot listen" in watching.log(), 60, "the line about the port")
        time.sleep(2.5)  # the port is tried twice more in this time, and must be logged once

        assert watching.process.poll() is None
        (line,) = [line for line in watching.log().splitlines() if "cannot listen" in line]
        assert f"127.0.0.1 port {port}: [Errno 98] Address already in use" in line
        assert "--port" in line

    until(lambda: problem(watching, "/readyz") is None and "serving on" in watching.log(), 60, "the server")
    assert ("rows", "bounds_violation") in watching.warnings()
    assert "Traceback" not in watching.log()


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "a" * 80])
def test_sigterm_ends_it_while_its_address_cannot_be_bound(serve, host):
    watching = serve("--host", host, ready=False)
    until(lambda: f"cannot listen on {host}" in watching.log(), 60, "the line about the address")

    assert ends(watching)[0] == 0
    assert "Traceback" not in watching.log()


def test_a_free_port_is_chosen_and_logged(serve):
    watching = serve(port=0, ready=False)

    found = until(lambda: re.search(r"serving on http://127\.0\.0\.1:(\d+)", watching.log()), 60, "the line")

    watching.port = int(found[1])
    assert watching.get("/livez") == b"ok\n"
