"""Connections: how long one may be idle, and how many there may be. uvicorn limits neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

HEAD_WITHIN_S = 10.0
MAX_CONNECTIONS = 256


class Connection(H11Protocol):
    """An HTTP/1.1 connection that is closed if it sends no complete request head within ten seconds.

    The time runs from the opening of the connection, or from the first byte of a further request. Between requests
    uvicorn's ``timeout_keep_alive`` holds. One connection too many closes the one that has been idle longest.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
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

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _time_the_head(self) -> None:
        """Start the timer unless it runs; stop it when the head is complete. Single bytes do not restart it."""
        if self._busy:
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_WITHIN_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
