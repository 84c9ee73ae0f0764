"""Connections: how long one may be idle or unread, and how many there may be. uvicorn limits none of these."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

HEAD_WITHIN_S = 10.0
READ_WITHIN_S = 10.0
# Bytes of an answer in the kernel. Left alone it takes megabytes, and reports none of them sent until a third is read.
SEND_BUFFER = 1 << 16
MAX_CONNECTIONS = 256


class Connection(H11Protocol):
    """An HTTP/1.1 connection that is closed if it sends no complete request head within ten seconds.

    The time runs from the opening of the connection, or from the first byte of a further request. Between requests
    uvicorn's ``timeout_keep_alive`` holds. One connection too many closes the one that has been idle longest.

    It is also closed if the client reads nothing of an answer for ten seconds. A slow client that keeps reading is not.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self._active = self.loop.time()

    @property
    def _busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def rank(self) -> tuple[bool, float]:
        """Its place among all connections, the one that has been idle longest first."""
        return self._busy, self._active

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer; close another connection if this one is too many."""
        super().connection_made(transport)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        transport.set_write_buffer_limits(high=0)  # calls pause_writing for any unsent byte, not only above 64 KiB
        self._time_the_head()
        if len(self.connections) > MAX_CONNECTIONS:
            idlest = min(cast("set[Connection]", self.connections), key=lambda one: one.rank)
            # Not lost until the loop runs again: the next connection must not choose it once more.
            self.connections.discard(idlest)
            idlest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle the request that ``data`` completes, if any."""
        self._active = self.loop.time()
        super().data_received(data)
        self._time_the_head()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._active = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start watching whether the client reads the answer."""
        super().pause_writing()
        self._time_the_reader()

    def resume_writing(self) -> None:
        """Stop watching: the whole answer has been sent."""
        self._stop_read_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_head_timer()
        self._stop_read_timer()
        super().connection_lost(exc)

    def _time_the_head(self) -> None:
        """Start the timer unless it runs; stop it when the head is complete. Single bytes do not restart it."""
        if self._busy:
            self._stop_head_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_WITHIN_S, self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _time_the_reader(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self._read_timer = self.loop.call_later(READ_WITHIN_S, self._check_the_reader, unsent)

    def _check_the_reader(self, unsent: int) -> None:
        """Close the connection if none of the ``unsent`` bytes has been sent; otherwise look again later."""
        if self.transport.get_write_buffer_size() < unsent:
            self._time_the_reader()
        else:
            self.transport.abort()  # close() would wait for the client to read

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None
