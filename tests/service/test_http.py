"""HTTP as clients of every kind use it: methods, codings, hosts, and connections that say nothing."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import resource
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness import PROMISE_FACTOR, Sidecar

IDLE_S = 1
QUICK = f"from ullage_sidecar import connections; connections.HEAD_WITHIN_S = {IDLE_S}"
REQUEST = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
DESCRIPTORS = 1024  # the usual soft limit in a container


@pytest.fixture
def serve(segments):
    """Start a sidecar; it is gone at the end of the test."""
    started = []

    def start(*options, code=""):
        started.append(Sidecar(segments, *options, code=code))
        return started[-1]

    yield start
    for one in started:
        one.end()


def ask(watching, method, path, **headers):
    """Return the status, headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", watching.port, timeout=20)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def connect(watching):
    """Open a connection to it."""
    return socket.create_connection(("127.0.0.1", watching.port), timeout=10 * PROMISE_FACTOR)


def answered(client):
    """Wait for the answer to ``REQUEST``."""
    received = b""
    while not received.endswith(b"\r\n\r\nok\n"):
        more = client.recv(4096)
        assert more, received
        received += more
    return True


def closed(client):
    """Wait until the other side has closed a connection; fail if it sends something first."""
    try:
        received = client.recv(1)
    except ConnectionResetError:
        return True
    return received == b""


def stays_open(client, seconds):
    """Wait; nothing may come, the end of the connection neither."""
    client.settimeout(seconds)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.settimeout(20)


def test_head_answers_as_get_does_without_a_body(serve):
    watching = serve()
    pages = ["/", *watching.json("/openapi.json")["paths"], "/openapi.json"]
    assert {"/metrics", "/livez", "/readyz", "/v1/events"} <= set(pages)

    for page in pages:
        status, headers, body = ask(watching, "HEAD", page)
        expected = ask(watching, "GET", page)

        assert (status, body) == (200, b""), page
        assert headers.keys() == expected[1].keys(), page
        assert headers["content-type"] == expected[1]["content-type"], page
        assert int(headers["content-length"]) > 0, page
    assert ask(watching, "HEAD", "/v1/nothing")[0] == 404
    status, headers, body = ask(watching, "POST", "/metrics")
    assert (status, headers["allow"], json.loads(body)["status"]) == (405, "GET", 405)


ACCEPTED = ["gzip", "GZIP", "deflate, gzip;q=0.5", "gzip ; q=1.000", "*", "br;q=0, *;q=0.1", "gzip;q=x, *"]
REFUSED = ["", "identity", "gzip;q=0", "gzip; q=0.000", "*;q=0", "gzip;q=0, *", "*, gzip;q=0", "gzipped", "gzip;q=2"]


def test_gzip_is_used_only_where_the_request_accepts_it(serve):
    watching = serve()

    used = {}
    for value in ACCEPTED + REFUSED:
        _, headers, body = ask(watching, "GET", "/metrics", Accept_Encoding=value)
        used[value] = headers.get("content-encoding") == "gzip"
        assert b"ullage_build_info" in (gzip.decompress(body) if used[value] else body)

    assert used == dict.fromkeys(ACCEPTED, True) | dict.fromkeys(REFUSED, False)


OWN = ["localhost", "LocalHost:9877", "127.0.0.1", "127.8.9.10:80", "[::1]", "[::1]:9877"]
FOREIGN = ["example.com", "example.com:9877", "localhost.example.com", "127.0.0.1.example.com", "[::2]", "10.0.0.1", ""]


@pytest.mark.fault("a foreign Host header (DNS rebinding)", sees="421, unless the sidecar listens on other addresses")
def test_a_foreign_host_is_refused_on_a_loopback_address(serve):
    watching = serve()

    answers = {host: ask(watching, "GET", "/v1/warnings", Host=host) for host in OWN + FOREIGN}

    assert {host: status for host, (status, _, _) in answers.items()} == (
        dict.fromkeys(OWN, 200) | dict.fromkeys(FOREIGN, 421)
    )
    _, headers, body = answers["example.com"]
    assert headers["content-type"] == "application/problem+json"
    assert json.loads(body)["title"] == "Misdirected Request"


def test_any_host_is_accepted_on_other_addresses_and_the_configured_one_on_loopback(serve):
    assert ask(serve("--host", "0.0.0.0"), "GET", "/livez", Host="example.com")[0] == 200

    watching = serve("--host", "LOCALHOST")
    assert ask(watching, "GET", "/livez", Host="localhost")[0] == 200
    assert ask(watching, "GET", "/livez", Host="example.com")[0] == 421


@pytest.mark.parametrize(
    "sent", [b"", REQUEST[:-2], REQUEST + REQUEST[:9]], ids=["nothing", "half a head", "a request and a half"]
)
def test_a_connection_without_a_complete_head_is_closed(serve, sent):
    watching = serve(code=QUICK)
    with connect(watching) as client:
        client.sendall(sent)
        if sent.startswith(REQUEST):
            assert answered(client)

        assert closed(client)
    assert "WARNING" not in watching.log()


def test_single_bytes_do_not_keep_a_connection_open(serve):
    watching = serve(code=QUICK)
    with connect(watching) as client:
        client.settimeout(IDLE_S / 5)
        for _ in range(5 * IDLE_S * PROMISE_FACTOR):
            try:
                client.sendall(b"x")
                assert client.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                pass
            return
    pytest.fail("it is still open")


def test_a_kept_alive_connection_serves_further_requests_beyond_the_time_for_a_head(serve):
    watching = serve(code=QUICK)
    connection = http.client.HTTPConnection("127.0.0.1", watching.port, timeout=20)
    try:
        connection.connect()
        own = connection.sock
        for _ in range(4):
            connection.request("GET", "/livez")
            assert connection.getresponse().read() == b"ok\n"
            stays_open(own, IDLE_S * 0.6)
        assert connection.sock is own, "the same connection"
    finally:
        connection.close()


def test_one_connection_too_many_closes_the_one_that_was_idle_longest(serve):
    watching = serve(code="from ullage_sidecar import connections; connections.MAX_CONNECTIONS = 3")
    with ExitStack() as opened:
        first, second, third = (opened.enter_context(connect(watching)) for _ in range(3))
        first.sendall(REQUEST)
        assert answered(first)

        fourth = opened.enter_context(connect(watching))

        assert closed(second)
        for client in (first, third, fourth):
            client.sendall(REQUEST)
            assert answered(client)


@pytest.mark.fault("1,100 idle connections", sees="the answers to all others")
def test_more_idle_connections_than_descriptors_keep_no_other_out(serve, tried):
    number = 1_100
    tried(number)
    watching = serve()
    resource.prlimit(watching.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    with ExitStack() as opened:
        for _ in range(number):
            opened.enter_context(connect(watching)).sendall(b"GET /metrics HTTP/1.1\r\n")

        for _ in range(5):
            assert b"ullage_build_info" in watching.get("/metrics")
            assert watching.get("/livez") == b"ok\n"

        assert len(list(Path(f"/proc/{watching.process.pid}/fd").iterdir())) < 256 + 64
    assert not re.search(r"WARNING|ERROR|Traceback|out of system resource", watching.log())
