"""Files in whatever state: the reader refuses or reads them, the writer goes on, the sidecar serves the others."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys

import pytest
from harness import LONG, missing, until

from ullage.segment import layout, reader
from ullage.segment.layout import EVENTS
from ullage_sidecar import discovery

STORY = """
import ullage, sys
rows = ullage.buffer("rows", capacity=100, unit="rows")
size = ullage.Contract("size"); size.claim("planner", 4, inputs={"batch": 4})
for used in (5, 95, 101): rows.observe(used)
rows.resize(200)
ullage.step()
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


@pytest.fixture
def running(program, segments):
    """A program, and the path of its segment."""
    one = program(STORY)
    assert one.line() == "ready"
    (one.path,) = segments.glob("*.ullage")

    def tell(line):
        one.say(line)
        assert one.line() == "done"

    one.tell = tell
    return one


@pytest.mark.fault("a byte of the file is changed", sees="the record is left out and counted, or the file refused")
def test_any_byte_of_a_valid_file_may_change(running, tmp_path, tried):
    content = running.path.read_bytes()
    used = [position for position, byte in enumerate(content) if byte]
    chance = random.Random(3)
    elsewhere = [chance.randrange(len(content)) for _ in range(20_000 if LONG else 200)]
    positions = used if LONG else used[::3]
    path = tmp_path / running.path.name
    path.write_bytes(content)
    with path.open("r+b", buffering=0) as file:
        for position in (*positions, *elsewhere):
            changed = bytes([content[position] ^ (1 << chance.randrange(8))])
            os.pwrite(file.fileno(), changed, position)
            try:
                snapshot = reader.read(path)
            except reader.UnreadableError as error:
                assert error.reason in {"magic", "version", "checksum", "truncated", "value"}  # noqa: PT017
            else:
                assert snapshot.process.pid is not None
            found = discovery.find(tmp_path, events=True)
            assert len(found.snapshots) + len(found.unreadable) == 1
            os.pwrite(file.fileno(), content[position : position + 1], position)
    tried(len(positions) + len(elsewhere))


@pytest.mark.fault("a truncated file", sees="segment_unreadable, with the reason")
@pytest.mark.parametrize("keep", [1, 43, 44, 4095, 4096, 5000, 100_000, layout.FILE_BYTES - 1])
def test_a_file_may_end_anywhere(running, tmp_path, keep):
    path = tmp_path / "short.ullage"
    path.write_bytes(running.path.read_bytes()[:keep])

    with pytest.raises(reader.UnreadableError) as error:
        reader.read(path)

    assert error.value.reason == "truncated"


@pytest.mark.fault("an oversized file", sees="segment_unreadable, reason oversized")
def test_a_file_longer_than_any_segment_is_refused_before_it_is_read(running, tmp_path):
    path = tmp_path / running.path.name
    content = running.path.read_bytes()
    path.write_bytes(content + bytes(layout.MAX_FILE_BYTES - len(content)))
    assert reader.read(path).buffers[0].name == "rows"  # a later minor version may be longer than this one
    os.truncate(path, 1 << 40)

    with pytest.raises(reader.UnreadableError, match="a segment has at most") as error:
        reader.read(path)

    assert error.value.reason == "oversized"


@pytest.mark.fault("a device in the directory", sees="segment_unreadable")
def test_a_device_is_no_segment(tmp_path):
    path = tmp_path / "null.ullage"
    try:
        os.mknod(path, 0o666 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        missing("only root can make a device")

    with pytest.raises(reader.UnreadableError) as error:
        reader.read(path)

    assert error.value.reason == "not_regular"


@pytest.mark.fault("a sidecar of another uid", sees="its segment, and that its writer lives")
def test_another_user_reads_it_and_sees_that_it_lives(running, segments):
    if os.geteuid():
        missing("only root can become another user")
    segments.chmod(0o755)
    code = f"""
import os, sys
sys.path[:0] = {[p for p in sys.path if p]!r}
from ullage.segment import reader
from pathlib import Path
os.setgid(65534); os.setuid(65534)
snapshot = reader.read(Path({str(running.path)!r}))
print(snapshot.alive, snapshot.buffers[0].high_water)
"""

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ran.stdout.split() == ["True", "101"], ran.stderr


@pytest.mark.fault("a file that may not be read", sees="segment_unreadable, reason permission")
def test_a_file_without_permission_is_named(running, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)

    with pytest.raises(reader.UnreadableError) as error:
        reader.read(running.path)

    assert error.value.reason == "permission"


@pytest.mark.fault("the sidecar has no descriptor left", sees="segment_unreadable until there is one")
def test_a_reader_without_descriptors_says_so_and_recovers(running, segments, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        (bad,) = discovery.find(segments).unreadable
        assert bad.reason == "io"

    assert len(discovery.find(segments).snapshots) == 1


@pytest.mark.fault("the segment is unlinked while in use", sees="the process is gone from the metrics, and goes on")
def test_a_writer_whose_file_was_unlinked_goes_on(running, sidecar):
    watching = sidecar()
    assert watching.states() == {"app0/main": "running"}
    running.path.unlink()

    for used in range(50):
        running.tell(f"rows.observe({used}); ullage.step()")

    assert watching.states() == {}
    assert watching.get("/livez") == b"ok\n"


@pytest.mark.fault("the directory is deleted and made again", sees="the processes that start from then on")
def test_a_directory_that_comes_back_is_watched_again(running, program, sidecar, segments):
    watching = sidecar()
    shutil.rmtree(segments)
    running.tell("rows.observe(7); ullage.buffer('late', capacity=1, unit='rows').observe(1)")
    until(lambda: watching.states() == {})
    segments.mkdir()

    assert program(STORY).line() == "ready"

    until(lambda: watching.states() == {"app0/main": "running"})


@pytest.mark.fault("more than 1,024 events", sees="the newest 1,024, and how many were lost")
def test_lapped_events_are_counted(running, sidecar):
    running.tell(
        "from ullage.host.process import process; from ullage.segment.layout import EventKind; "
        "[process.session.emit(EventKind.RESIZE, f'subject {n}') for n in range(3000)]"
    )
    watching = sidecar()

    before = len(reader.read(running.path).events)
    lost = watching.value("ullage_records_dropped_total", process="app0/main", reason="events")

    assert before == EVENTS.records
    assert lost == reader.read(running.path).process.events - EVENTS.records > 1900
    assert len(watching.json("/v1/events?limit=10000")) == EVENTS.records
