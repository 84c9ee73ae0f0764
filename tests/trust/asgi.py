"""Calls an ASGI application as a server would, without the server."""

from __future__ import annotations


async def get(app, path, **headers):
    """Return the status and the body of a page; ``path`` without a query."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:9877"), *((k.encode(), v.encode()) for k, v in headers.items())],
        "client": ("127.0.0.1", 40_000),
        "server": ("127.0.0.1", 9877),
    }
    status, body = 0, b""

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        nonlocal status, body
        status = message.get("status", status)
        body += message.get("body", b"")

    await app(scope, receive, send)
    return status, body
