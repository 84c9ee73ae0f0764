"""A reader against a writing process: no number is torn, no event is half-written, nothing stored is lost."""

from __future__ import annotations

import time

import pytest
from harness import LONG, until

from ullage.segment import reader

SECONDS = 200 if LONG else 20
KILLS = 200 if LONG else 12

# Each value that the writer stores says which it is: a torn or a mixed one would not.
WRITER = """
import ullage, time, sys
from ullage.host.process import process
from ullage.segment.layout import EventKind
PATTERNS = (0x0101010101010101, 0x2222222222222222, 0x4747474747474747, 0x0F0F0F0F0F0F0F0F)
numbers = ullage.buffer("numbers", capacity=1 << 62, unit="rows", kind="managed")
arena = ullage.buffer("arena", capacity=8, unit="rows", kind="managed")
print("ready", flush=True)
end, n = time.monotonic() + float(sys.argv[1]), 0
while time.monotonic() < end:
    for pattern in PATTERNS:
        numbers.observe(pattern)
    n += 1
    process.session.emit(EventKind.RESIZE, f"subject {n}", numbers=(n, n * 3, n * 5, n * 7), detail=f"{n} " * 60)
    arena.resize(8 + n % 2 * 8)
    arena.observe(4 + n % 2 * 4)
    if n % 50 == 0:
        short = ullage.buffer(f"short {n}", capacity=n, unit="rows", limit=f"{n}")
        short.observe(n)
        short.close()
print(n, flush=True)
input()
"""
PATTERNS = {0x0101010101010101, 0x2222222222222222, 0x4747474747474747, 0x0F0F0F0F0F0F0F0F}


def check(snapshot):
    """Hold everything in a snapshot against what the writer can have meant."""
    for buffer in snapshot.buffers:
        if buffer.name == "numbers":
            assert buffer.used in {0, *PATTERNS}
            assert buffer.high_water in {0, *PATTERNS}
        elif buffer.name == "arena":
            assert buffer.capacity in (8, 16)
            assert buffer.high_water <= 8
            assert buffer.high_water_ratio in (None, 0, 0.25, 0.5, 1)  # the half of either, or 8 of 8 at a shrink
        else:
            number = int(buffer.name.split()[1])
            assert (buffer.capacity, buffer.limit) == (number, str(number))
            assert buffer.used in (0, number)
    for event in snapshot.events:
        if event.subject.startswith("subject"):
            number = int(event.subject.split()[1])
            assert event.numbers == (number, number * 3, number * 5, number * 7)
            assert event.detail == (f"{number} " * 60)[:348].rstrip("\0")


@pytest.mark.fault("reads while it is written", sees="whole numbers and events")
def test_a_reader_never_sees_a_torn_number_or_a_half_written_event(program, segments):
    running = program(WRITER, SECONDS)
    assert running.line() == "ready"
    (path,) = segments.glob("*.ullage")

    reads = events = half_written = 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        snapshot = reader.read(path)
        check(snapshot)
        reads += 1
        events += len(snapshot.events)
        half_written += snapshot.half_written
    written = int(running.line())

    assert reads > 20
    assert events > 1000
    assert written > 1000
    print(f"{reads} reads, {events} events read, {half_written} caught half-written, {written} rounds written")


@pytest.mark.fault("SIGKILL at a random moment", sees="everything that was acknowledged")
def test_killed_at_any_moment_nothing_acknowledged_is_lost(program, segments, tried):
    tried(KILLS)
    acknowledge = """
import ullage, sys
rows = ullage.buffer("rows", capacity=1 << 40, unit="rows")
n = 0
while True:
    n += 1
    rows.observe(n)
    if n % 64 == 0:
        sys.stdout.write(f"{n}\\n"); sys.stdout.flush()
"""
    for kill in range(KILLS):
        before = set(segments.glob("*.ullage"))
        running = program(acknowledge)
        running.line()
        time.sleep(0.003 * (kill % 17))
        running.process.kill()
        acknowledged = [int(line) for line in running.process.stdout if line.endswith("\n")]
        running.process.wait()
        (path,) = set(segments.glob("*.ullage")) - before

        snapshot = until(lambda path=path: (s := reader.read(path)).alive or s)
        (rows,) = snapshot.buffers

        assert rows.used >= max(acknowledged, default=64)
        assert 0 <= rows.used - rows.observations <= 1
        assert rows.high_water == rows.used
        assert snapshot.half_written == 0
