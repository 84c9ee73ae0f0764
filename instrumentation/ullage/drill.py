"""``python -m ullage.drill``: a synthetic violation, to test where alerts go.

A process of an engine ``drill`` has a buffer ``drill`` that goes out of bounds. When the drill is over its segment is
removed, and the warning with it; an alert that also looks at the counter stays until it forgets (ours: 15 minutes).
No other engine is touched.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from ullage.host.process import process
from ullage.recording.buffers import buffer
from ullage.segment import reader
from ullage.segment.sweep import survey

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = "drill"
CAPACITY = 100
_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: list[str] | None = None) -> int:
    """Hold the drill; return 0, or 1 if no segment can be written here."""
    parser = argparse.ArgumentParser(prog="python -m ullage.drill", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120, help="how long it lasts (120)")
    seconds = parser.parse_args(arguments).seconds
    for number in _ENDS:
        signal.signal(number, _end)
    # It is no process of the engine whose environment it may have inherited.
    for inherited in ("ULLAGE_ENGINE", "ULLAGE_ENGINE_ID"):
        os.environ.pop(inherited, None)
    process.session.identity.engine = ENGINE
    rows = buffer(ENGINE, capacity=CAPACITY, unit="rows", kind="fixed")
    segment = process.session.open()
    if segment is None:
        _say("no segment can be written: set ULLAGE_DIR to the volume of the segments")
        return 1
    try:
        rows.observe(CAPACITY + 1)
        name = reader.glance(segment.path).name
        _say(f'{name} is out of bounds for {seconds:g} s: ullage_warning_active{{process="{name}"}}')
        time.sleep(seconds)
    finally:
        segment.path.unlink(missing_ok=True)
        _clear(segment.path.parent)
        _say("over: its warning is cleared, its alert follows when its rule forgets the counter")
    return 0


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _clear(directory: Path) -> None:
    """Remove what drills left that were killed."""
    for path, left in survey(directory):
        if left.identity.get("engine") == ENGINE and not left.alive:
            with contextlib.suppress(OSError):
                path.unlink()


def _say(what: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(1, f"ullage drill: {what}\n".encode())


if __name__ == "__main__":
    raise SystemExit(main())
