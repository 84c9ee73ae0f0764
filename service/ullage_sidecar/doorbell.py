"""Tells when a file in the segment directory may have lost or got its writer, so that nobody need look all the time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# From <sys/inotify.h>. A process that dies closes its files as one that lives does.
_IN_CLOSE_WRITE, _IN_MOVED_TO, _IN_DELETE = 0x8, 0x80, 0x200
_EVENTS = _IN_CLOSE_WRITE | _IN_MOVED_TO | _IN_DELETE
_BYTES = 1 << 16
SETTLE_S = 0.1  # the kernel says that a file is closed just before it drops the lock; and a burst is one ring


class Doorbell:
    """Waits for the kernel's word on a directory (inotify), across containers that share the volume.

    Where the kernel has none to give (none is left for this user, or the directory is on another machine), it never
    rings: who waits for it must look now and then all the same.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stop, self._stopped = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._stop, select.POLLIN)
        if self._inotify >= 0:
            self._poll.register(self._inotify, select.POLLIN)

    def listen(self, directory: Path) -> None:
        """Listen to ``directory`` if it exists. Again for one that was made anew; else it is a no-op."""
        if self._inotify >= 0:
            self._libc.inotify_add_watch(self._inotify, os.fsencode(directory), _EVENTS)

    def wait(self, seconds: float) -> bool:
        """Return when it rings, or after ``seconds``; False once ``stop`` was called."""
        ready = {fd for fd, _ in self._poll.poll(seconds * 1000)}
        if self._inotify in ready:
            time.sleep(SETTLE_S)
            with contextlib.suppress(OSError):
                os.read(self._inotify, _BYTES)
        return self._stop not in ready

    def stop(self) -> None:
        """Have ``wait`` return False, now and ever after. From any thread."""
        os.write(self._stopped, b"\0")

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in (self._stop, self._stopped, self._inotify):
            if fd >= 0:
                os.close(fd)
