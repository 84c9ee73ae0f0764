"""ASGI wrappers: what holds for every request, whatever its path."""

from __future__ import annotations

import ipaddress
import socket
from email.utils import formatdate
from typing import TYPE_CHECKING

from ullage_sidecar.problems import problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


def dated(app: ASGIApp) -> ASGIApp:
    """Give each response the current date. uvicorn's own date is updated by the loop that this server does without."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"date", formatdate(usegmt=True).encode())]
            await send(message)

        await app(scope, receive, send_dated)

    return wrapped


def head_as_get(app: ASGIApp) -> ASGIApp:
    """Answer HEAD with the headers of GET. The server sends no body: it still sees the original scope."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await app(scope, receive, send)

    return wrapped


def own_hosts_only(app: ASGIApp, address: str) -> ASGIApp:
    """Refuse a foreign ``Host`` header if ``address``, on which the server listens, is a loopback address.

    A web page can point its own name at a loopback address (DNS rebinding); its requests then carry that name. On
    other addresses the sidecar has names that it cannot know, and accepts any.
    """
    own = address.lower()
    if not _is_loopback(own):
        return app

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        host = next((value.decode("latin-1") for key, value in scope["headers"] if key == b"host"), own)
        name = _without_port(host.lower())
        if name == own or _is_loopback(name):
            await app(scope, receive, send)
        else:
            await problem(421, "this server answers for localhost and loopback addresses only")(scope, receive, send)

    return wrapped


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        # Reads each spelling of an address that listening accepts, like 127.1. Bytes, since text would be IDNA-encoded.
        found = socket.getaddrinfo(name.encode(), None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, ValueError):  # a name, or no text that could be one
        return False
    address = ipaddress.ip_address(found[0][4][0])
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_loopback


def _without_port(host: str) -> str:
    """Return the name in a ``Host`` header; an IPv6 address stands in brackets there."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
