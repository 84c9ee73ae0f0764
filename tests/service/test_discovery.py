"""Which files of a directory are read: all of a few; of too many the living, then the newest."""

from __future__ import annotations

import json
import os

import pytest

from ullage.segment import layout
from ullage.segment.layout import BUFFERS, BufferPayload
from ullage.segment.writer import Segment
from ullage_sidecar import discovery


@pytest.fixture
def written(segments):
    """Write the segment of a process with N buffers. The process is dead unless ``lives``."""
    living = []

    def write(process, age, *, buffers=1, lives=False):
        segment = Segment.create(segments, json.dumps({"process": process}).encode())
        for number in range(buffers):
            index = segment.allocate(BUFFERS)
            segment.seal(BUFFERS, index, BufferPayload(0, 1, 1, 1, 0, b"rows", b"", b"%d" % number).pack())
        os.utime(segment.path, (0, 10_000 - age))
        living.append(segment) if lives else segment.close()

    yield write
    for segment in living:
        segment.close()


def read(directory):
    return {snapshot.name for snapshot in discovery.find(directory).snapshots}


@pytest.mark.fault("more segments than the sidecar reads", sees="the living and the newest; reason too_many")
def test_of_too_many_the_living_and_the_newest_are_read(written, segments, monkeypatch):
    monkeypatch.setattr(discovery, "FEW_FILES", 2)
    monkeypatch.setattr(discovery, "MAX_FILES", 3)
    for age in range(5):
        written(f"dead/{age}", age)
    written("old/living", 9_000, lives=True)

    found = discovery.find(segments)

    assert {snapshot.name for snapshot in found.snapshots} == {"old/living", "dead/0", "dead/1"}
    assert {(bad.reason, bad.file.endswith(layout.SUFFIX)) for bad in found.unreadable} == {("too_many", True)}
    assert len(found.unreadable) == 3


def test_files_are_read_until_they_hold_too_many_records(written, segments, monkeypatch):
    monkeypatch.setattr(discovery, "FEW_FILES", 2)
    monkeypatch.setattr(discovery, "MAX_RECORDS", 10)
    written("living", 9_000, buffers=4, lives=True)
    for age in range(4):
        written(f"dead/{age}", age, buffers=4)

    assert read(segments) == {"living", "dead/0", "dead/1"}


def test_a_few_are_all_read(written, segments):
    for age in range(discovery.FEW_FILES):
        written(f"dead/{age}", age, buffers=0)

    assert len(read(segments)) == discovery.FEW_FILES


@pytest.mark.fault("junk with names like those of segments", sees="the living; each file of junk is named")
def test_junk_does_not_hide_a_segment(written, segments, monkeypatch):
    monkeypatch.setattr(discovery, "MAX_LISTED", 100)
    written("living", 9_000, lives=True)
    for number in range(200):
        (segments / f"{number:031d}.ullage").touch()

    assert read(segments) == {"living"}
