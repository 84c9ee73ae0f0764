"""uvicorn, which sleeps here until somebody calls: at rest, waking up is what costs."""

from __future__ import annotations

import asyncio
import contextlib
from email.utils import formatdate
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from types import FrameType

    from fastapi import FastAPI
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


class _Server(uvicorn.Server):
    """Told of a signal that ends it, instead of looking for one ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        if not await self.on_tick(0):
            await self._told.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._told.set)


class _Dated:
    """Gives each answer its date; uvicorn's is of its last look around."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"date", formatdate(usegmt=True).encode())]
            await send(message)

        await self._app(scope, receive, dated)


def serve(app: FastAPI, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        _Dated(app),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        timeout_keep_alive=5,
        date_header=False,
    )
    with contextlib.suppress(KeyboardInterrupt):
        _Server(config).run()
