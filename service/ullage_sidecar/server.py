"""The server: uvicorn, which waits for its address, sleeps until a request comes, and ends in time."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import uvicorn

from ullage_sidecar.connections import Connection
from ullage_sidecar.ratelimit import RateLimit

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from starlette.types import ASGIApp

log = logging.getLogger("ullage")
RETRY_S = 1.0
LOGGED_EVERY_S = 60.0
REQUESTS_END_WITHIN_S = 1
PROCESS_ENDS_WITHIN_S = 4.0
READERS = 4
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)  # as ::1 of localhost is without IPv6
BACKLOG = 64  # all of it is accepted at once, before one connection too many closes another


def serve(app: ASGIApp, host: str, port: int, *, on_hangup: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; wait for the address if it cannot be bound. For the main thread.

    The process ends ``PROCESS_ENDS_WITHIN_S`` after the signal at the latest, whatever its threads do.

    Args:
        app: What answers the requests.
        host: Name or address to listen on.
        port: Port to listen on; 0 for any that is free.
        on_hangup: Called on SIGHUP, in the event loop. Unblocks SIGHUP, which the caller may have blocked.
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        # The same event loop and parser everywhere, whatever else is installed.
        loop="asyncio",
        http=Connection,
        ws="none",
        lifespan="off",
        backlog=BACKLOG,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=REQUESTS_END_WITHIN_S,
        date_header=False,
        log_config=None,
        log_level="error",  # a malformed request, which any client can send, is a warning
        access_log=False,
    )
    _Server(config, on_hangup).run()


class _Server(uvicorn.Server):
    """Waits for an event, instead of checking ten times a second whether it should exit."""

    def __init__(self, config: uvicorn.Config, on_hangup: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_hangup = on_hangup
        self._exit = asyncio.Event()
        self._exit_begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(_Readers(READERS, "ullage-reader"))
        self._loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        threading.Thread(target=_end_process, args=(self._exit_begun,), name="ullage-end", daemon=True).start()
        sockets = await self._bind()
        if sockets:
            await super().startup(sockets)

    async def main_loop(self) -> None:
        await self._exit.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not uvicorn's, which raises the signal again when it has ended: the post-mortems are still to be written.
        del sig, frame
        if self.should_exit:
            return
        self.should_exit = True
        self._exit_begun.set()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._exit.set)

    async def _bind(self) -> list[socket.socket]:
        """Return sockets bound to the address; none if the server was told to exit while it was not available."""
        failures = RateLimit(LOGGED_EVERY_S)
        while not self.should_exit:
            try:
                sockets = await _listeners(self.config.host, self.config.port)
            except (OSError, ValueError) as error:
                if failures.allows():
                    log.error(  # noqa: TRY400  the line says it all
                        "cannot listen on %s port %d: %s; trying again every second, the segments are watched "
                        "meanwhile; free the port, or set another address with --host and --port",
                        self.config.host,
                        self.config.port,
                        error,
                    )
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._exit.wait(), RETRY_S)
            else:
                for one in sockets:
                    host, port, *_ = one.getsockname()
                    log.info("serving on http://%s:%d", f"[{host}]" if ":" in host else host, port)
                return sockets
        return []


class _Readers(ThreadPoolExecutor):
    """Threads that read segments for requests. The end does not wait for them: a read may hang."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().shutdown(wait=False, cancel_futures=True)


async def _listeners(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of ``host`` that this machine has.

    Raises:
        OSError: An address is taken, or the machine has none of them.
        ValueError: ``host`` cannot be the name of a host.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listeners: list[socket.socket] = []
    absent: OSError | None = None
    with ExitStack() as opened:
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                one = socket.create_server(address, family=family, backlog=BACKLOG)
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error
            else:
                listeners.append(opened.enter_context(one))
        if absent is not None and not listeners:
            raise absent
        opened.pop_all()
    return listeners


def _end_process(begun: threading.Event) -> None:
    """End the process some time after the end has ``begun``: a thread that hangs would keep it for ever."""
    begun.wait()
    time.sleep(PROCESS_ENDS_WITHIN_S)
    os._exit(0)  # what was logged has been flushed line by line
