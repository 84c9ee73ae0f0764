"""The host process in a directory full of bad segments: it starts as fast, records as usual, and sees no exception."""

from __future__ import annotations

import os
import secrets
import statistics
from contextlib import closing
from functools import partial

import pytest
from mutate import KINDS, mutate
from sealing import SegmentFile, corpus, crowd, place

from ullage.segment import reader
from ullage.segment.layout import BUFFERS, IDENTITY

DEAD = 3000
MUTATED = 40 * len(KINDS)
EXTRA_S = 0.5
MARGIN = 4  # the machine may be busy
HOST = """
import time
begun = time.perf_counter()
import ullage
rows = ullage.buffer("rows", capacity=100, unit="rows")
print(time.perf_counter() - begun, flush=True)
rows.observe(42)
width = ullage.Contract("width", dims=("columns",), relation=("==",), unit="columns")
width.claim("runner", (3126,), role="is", inputs={"block_size": 64})
for _ in range(50):
    ullage.step()
print("recorded", flush=True)
input()
"""


@pytest.fixture
def start(program):
    """Start the host in a directory; return how long that took, and what its own segment says."""

    def begin(directory, **environment):
        before = set(directory.iterdir())
        host = program(HOST, directory=directory, **environment)
        took = host.line()
        assert host.line() == "recorded", host.failure()
        (own,) = [path for path in set(directory.iterdir()) - before if path.suffix == ".ullage"]
        snapshot = reader.read(own)
        host.say("")
        host.finish()
        return float(took), snapshot

    return begin


def fill(directory):
    """Leave mutated segments of every kind, the files that once did harm, and dead segments of many names."""
    contents = list(corpus().items())
    for number in range(MUTATED):
        name, content = contents[number % len(contents)]
        with closing(place(directory, content, secrets.token_bytes(16))) as file:
            mutate(file, number, "host", name)
    content = dict(contents)["program"]
    for harm in HARMS:
        with closing(place(directory, content, secrets.token_bytes(16))) as file:
            harm(file)
    (directory / "backup.ullage").write_bytes(content)
    (directory / os.fsdecode(b"caf\xe9.ullage")).write_bytes(b"not a segment")
    crowd(directory, DEAD)


def far(file):
    """Put the buffers where no file ends."""
    file.head([r._replace(offset=2**63 + 5) if r.id == BUFFERS.id else r for r in file.regions.values()])


def huge(file):
    """Declare millions of buffers, and make the file as large as they need."""
    large = {BUFFERS.id: {"records": 6 << 20, "offset": 1 << 20}}
    file.head([r._replace(**large.get(r.id, {})) for r in file.regions.values()], file_bytes=4 << 30)
    file.resize(4 << 30)


IDENTITIES = (
    '{"process":""}',
    "[" * 3000,
    '{"process":"\\ud800"}',
    '{"process":"a\\nb"}',
    '{"process":"%s"}' % ("é" * 1700),
)
HARMS = (far, huge, *(partial(SegmentFile.seal, region=IDENTITY, index=0, payload=i.encode()) for i in IDENTITIES))


@pytest.mark.fault("dead and mutated segments in the host's directory", sees="the host's own numbers")
def test_a_host_records_among_bad_segments_and_starts_as_fast(start, segments, tried, capsys):
    empty, crowded = segments / "empty", segments / "crowded"
    empty.mkdir()
    crowded.mkdir()
    usual = statistics.median(start(empty)[0] for _ in range(3))
    fill(crowded)
    there = len(list(crowded.iterdir()))

    for strict in ({"ULLAGE_STRICT": "1"}, {"ULLAGE_STRICT": ""}):
        took, own = start(crowded, **strict)

        with capsys.disabled():
            print(f"\na start among {there} files took {took - usual:.2f} s longer than the usual {usual:.2f} s")
        assert took - usual < EXTRA_S * MARGIN
        assert [(buffer.name, buffer.used, buffer.observations) for buffer in own.buffers] == [("rows", 42, 1)]
        assert [claim.source for claim in own.claims if not claim.tally] == ["runner"]
        assert own.process.steps == 50
        assert own.process.hook_errors == 0
    tried(there)
