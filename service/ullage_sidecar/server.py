"""uvicorn, which wakes up once a second here instead of ten times: at rest, waking up is what costs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from types import FrameType

    from fastapi import FastAPI

DATE_S = 1.0
"""How often the ``Date`` of the answers is renewed."""


class _Server(uvicorn.Server):
    """Told of a signal that ends it, instead of looking for one."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._told.wait(), DATE_S)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._told.set)


def serve(app: FastAPI, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM."""
    config = uvicorn.Config(app, host=host, port=port, log_config=None, access_log=False, timeout_keep_alive=5)
    with contextlib.suppress(KeyboardInterrupt):
        _Server(config).run()
