"""HTTP as clients of every kind use it: methods, codings, hosts, and connections that say nothing."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import resource
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from harness import PROMISE_FACTOR, Sidecar, until

IDLE_S = 1
QUICK = f"from ullage_sidecar import connections; connections.HEAD_WITHIN_S = {IDLE_S}"
UNREAD_S = 2
IMPATIENT = f"from ullage_sidecar import connections; connections.READ_WITHIN_S = {UNREAD_S}"
MANY_BUFFERS = """
import sys, ullage
buffers = [ullage.buffer(f"buffer_{n:03}_" + "x" * 40, capacity=10, unit="rows") for n in range(512)]
for buffer in buffers:
    buffer.observe(3)
print("ready", flush=True)
sys.stdin.read()
"""
LARGE = 300_000  # bytes, more than the sockets of both sides hold
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


def connect_narrow(watching, size=4096):
    """Open a connection whose client side holds about ``size`` unread bytes."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
    client.settimeout(10 * PROMISE_FACTOR)
    client.connect(("127.0.0.1", watching.port))
    return client


def open_sockets(watching):
    """Count the sockets of its process."""
    count = 0
    for one in Path(f"/proc/{watching.process.pid}/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            count += str(one.readlink()).startswith("socket:")
    return count


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


OWN = [
    *("localhost", "LocalHost:9877", "127.0.0.1", "127.8.9.10:80", "[::1]", "[::1]:9877"),
    *("127.1", "0x7f000001:9877", "2130706433", "[::ffff:127.0.0.1]"),
]
FOREIGN = [
    *("example.com", "example.com:9877", "localhost.example.com", "127.0.0.1.example.com", "127.0.0.1 example.com"),
    *("[::2]", "[::ffff:10.0.0.1]", "10.0.0.1", "0x0a000001", "*", "é", ""),
]


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


@pytest.mark.parametrize("address", ["127.1", "0x7f000001"])
def test_a_loopback_address_in_another_spelling_is_guarded_too(serve, address):
    watching = serve("--host", address)

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


@pytest.fixture
def large_page(program):
    """A program whose series make a page larger than sockets hold."""
    running = program(MANY_BUFFERS)
    assert running.line() == "ready"


@pytest.mark.parametrize("requests", [1, 12], ids=["one request", "twelve at once"])
@pytest.mark.fault("clients that do not read the answer", sees="answers to all others")
def test_clients_that_do_not_read_the_answer_are_closed(serve, tried, large_page, requests):
    number = 25
    tried(number)
    watching = serve(code=IMPATIENT)
    assert len(watching.get("/metrics")) > LARGE
    before = open_sockets(watching)
    with ExitStack() as opened:
        for _ in range(number):
            opened.enter_context(connect_narrow(watching)).sendall(
                b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * requests
            )
        until(lambda: open_sockets(watching) >= before + number // 2, what="the connections of the clients")

        until(lambda: open_sockets(watching) <= before, UNREAD_S * PROMISE_FACTOR + 60, "the end of the connections")

        assert watching.get("/livez") == b"ok\n"
    assert not re.search(r"WARNING|ERROR|Traceback", watching.log())


def test_a_client_that_reads_slowly_gets_the_whole_answer(serve, large_page):
    watching = serve(code=IMPATIENT)
    with connect_narrow(watching, 1 << 15) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        begun = time.monotonic()
        received = bytearray()
        while more := client.recv(LARGE // 25):
            received += more
            time.sleep(0.1)

    head, _, body = received.partition(b"\r\n\r\n")
    assert time.monotonic() - begun > 2 * UNREAD_S
    assert len(body) == int(re.search(rb"content-length: (\d+)", head)[1]) > LARGE


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
