"""The segment: what a writer stores, a reader reads, whatever state the file is in."""

from __future__ import annotations

import os
import struct
import time
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.segment import header, layout, reader, text
from ullage.segment.layout import (
    BUFFERS,
    CLAIMS,
    EVENTS,
    PROBES,
    B,
    BufferPayload,
    ClaimPayload,
    EventPayload,
    Kind,
    Phase,
)
from ullage.segment.reader import UnreadableError
from ullage.segment.writer import Segment


@pytest.fixture
def segment(segments):
    made = Segment.create(segments)
    yield made
    made.close()


def write_buffer(segment, name="rows", capacity=100, flags=0, **words):
    index = segment.allocate(BUFFERS)
    plain = segment.words(BUFFERS, index)
    plain[B.CAPACITY] = capacity
    for word, value in words.items():
        plain[B[word]] = value
    payload = BufferPayload(4096, 1, Kind.HARD, 1, flags, b"rows", b"max_num_seqs", name.encode())
    segment.seal(BUFFERS, index, payload.pack())
    return index


def test_the_layout_fits_its_budget_and_keeps_the_hot_words_in_one_cache_line():
    assert (BUFFERS.records, CLAIMS.records, EVENTS.records) == (512, 256, 1024)
    assert layout.FILE_BYTES <= 1 << 20
    assert (BUFFERS.offset + B.USED * 8) % 64 == 0
    assert B.N100 - B.USED == 7
    assert BUFFERS.sealed_bytes - 72 == layout.NAME_BYTES
    assert BUFFERS.stride % 64 == 0
    for region in layout.REGIONS:
        assert region.offset % 8 == 0
        assert region.sealed_at % 8 == 0
    for before, after in zip(layout.REGIONS, layout.REGIONS[1:], strict=False):
        assert before.end == after.offset


def test_a_buffer_reads_back_as_it_was_written(segment):
    write_buffer(segment, USED=7, HIGH_WATER=95, N50=3, N95=1, BEYOND=2, GROWS=1, PRIOR_RATIO_PPM=970_000)

    (buffer,) = reader.read(segment.path).buffers

    assert (buffer.name, buffer.unit, buffer.limit, buffer.nbytes) == ("rows", "rows", "max_num_seqs", 4096)
    assert (buffer.capacity, buffer.used, buffer.high_water) == (100, 7, 95)
    assert buffer.occupancy == (3, 0, 0, 1, 0, 0)
    assert buffer.observations == 6
    assert buffer.out_of_bounds == 2
    assert buffer.high_water_ratio == pytest.approx(0.97)


def test_each_flag_of_a_buffer_reads_back_alone(segment):
    flags = {"inventory": layout.FLAG_INVENTORY, "closed": layout.FLAG_CLOSED, "histogram": layout.FLAG_HISTOGRAM}
    write_buffer(segment, "none")
    for name, flag in flags.items():
        write_buffer(segment, name, flags=flag)

    buffers = reader.read(segment.path).buffers

    seen = {buffer.name: {flag for flag in flags if getattr(buffer, flag)} for buffer in buffers}
    assert seen == {"none": set(), "inventory": {"inventory"}, "closed": {"closed"}, "histogram": {"histogram"}}


def test_a_buffer_without_capacity_has_no_ratio(segment):
    write_buffer(segment, capacity=0)

    (buffer,) = reader.read(segment.path).buffers

    assert buffer.ratio is None
    assert buffer.high_water_ratio is None


def test_a_record_is_read_whatever_was_released_before_it(segment):
    indices = [write_buffer(segment, f"buffer {number}") for number in range(100)]
    for index in indices[:-1]:
        segment.release(BUFFERS, index)

    (buffer,) = reader.read(segment.path).buffers

    assert buffer.name == "buffer 99"


def test_only_the_dummy_phases_are_dummy_and_a_phase_of_a_later_version_is_not(segment):
    dummy = set()
    for value in range(20):
        segment.process[layout.P.PHASE] = value
        if layout.enum_of(Phase, reader.read(segment.path).process.phase).is_dummy:
            dummy.add(value)

    assert dummy == {Phase.DUMMY_RUN, Phase.PROFILE_RUN, Phase.CAPTURE}


@pytest.mark.fault("a damaged number of records in use", sees="all records, as without that number")
@pytest.mark.parametrize("end", [0, -1, BUFFERS.records + 1, 2**62])
def test_a_number_of_records_that_cannot_be_hides_none(segment, end):
    for number in range(100):
        write_buffer(segment, f"buffer {number}")
    segment.process[layout.P.BUFFERS_END] = end

    assert len(reader.read(segment.path).buffers) == 100


@pytest.mark.fault("records run out", sees="ullage_records_dropped_total")
def test_records_run_out_and_come_back(segment):
    taken = [segment.allocate(BUFFERS) for _ in range(BUFFERS.records)]

    assert taken == list(range(512))
    assert segment.allocate(BUFFERS) is None
    segment.release(BUFFERS, 17)
    assert segment.allocate(BUFFERS) == 17


def test_a_released_record_reads_as_empty(segment):
    index = write_buffer(segment)
    assert len(reader.read(segment.path).buffers) == 1

    segment.release(BUFFERS, index)

    snapshot = reader.read(segment.path)
    assert snapshot.buffers == ()
    assert snapshot.half_written == 0


def test_the_ring_keeps_the_newest_events(segment):
    for number in range(1, EVENTS.records + 11):
        segment.emit(EventPayload(number, number, (number, 0, 0, 0), 1, b"rows", b""))

    snapshot = reader.read(segment.path)

    assert [event.number for event in snapshot.events] == list(range(11, EVENTS.records + 11))
    assert snapshot.process.events == EVENTS.records + 10


shapes = st.lists(st.integers(0, 2**40) | st.just(layout.NO_SIZE), min_size=1, max_size=layout.MAX_DIMS)
words = st.text(max_size=12)


@given(shape=shapes, contract=words, source=words, dtype=words, unit=words)
@settings(max_examples=200)
def test_a_claim_survives_packing(shape, contract, source, dtype, unit):
    given = ClaimPayload(
        tuple(shape),
        1,
        0,
        bytes([1] * len(shape)),
        text.encode(dtype, 16),
        text.encode(unit, 16),
        b"rows",
        text.encode(contract, 96),
        text.encode(source, 64),
        b'{"a":1}',
    )

    read = ClaimPayload.unpack(given.pack())

    assert read.shape == given.shape
    assert text.decode(read.contract) == text.clean(contract)
    assert text.decode(read.source) == text.clean(source)
    assert text.decode(read.dtype).encode() == given.dtype
    assert text.decode(read.inputs) == '{"a":1}'


@given(st.text(), st.integers(0, 40))
def test_text_is_cleaned_and_cut_between_characters(value, size):
    data = text.encode(value, size)

    assert len(data) <= size
    assert text.clean(value).startswith(data.decode())
    assert text.decode(data.ljust(size, b"\0")) == data.decode()
    assert data.decode().isprintable()


def test_a_claim_reads_back_with_its_inputs(segment):
    index = segment.allocate(CLAIMS)
    payload = ClaimPayload(
        (3126, layout.NO_SIZE),
        3,
        0,
        b"\1\2",
        b"int32",
        b"columns",
        b"rows,columns",
        b"block_table.width",
        b"runner",
        b'{"bs":64}',
    )
    segment.seal(CLAIMS, index, payload.pack())
    segment.words(CLAIMS, index)[layout.C.VIOLATIONS] = 4

    (claim,) = reader.read(segment.path).claims

    assert claim.shape == (3126, None)
    assert claim.role is layout.Role.IS
    assert claim.relations == (layout.Relation.EQUAL, layout.Relation.AT_LEAST)
    assert claim.inputs == {"bs": 64}
    assert claim.violations == 4


@pytest.mark.fault("a record caught half-written", sees="the others; ullage_segment_read_errors_total")
def test_a_record_caught_half_written_is_skipped_and_counted(segment):
    write_buffer(segment, "whole")
    index = write_buffer(segment, "torn")
    start = BUFFERS.offset + index * BUFFERS.stride + BUFFERS.sealed_at
    segment._words[start // 8] = 0  # as a writer does before it writes the payload

    snapshot = reader.read(segment.path)

    assert [buffer.name for buffer in snapshot.buffers] == ["whole"]
    assert snapshot.half_written == 1


@pytest.mark.fault("a death in the middle of a resize", sees="the last words, one by one")
def test_words_of_two_epochs_are_read_all_the_same_if_the_writer_died_between(segment):
    index = write_buffer(segment, USED=5)
    segment.words(BUFFERS, index)[B.EPOCH_CHECK] = 1  # a resize begins with this, and ends with EPOCH

    (buffer,) = reader.read(segment.path).buffers

    assert buffer.used == 5


@pytest.mark.fault("a damaged descriptor", sees="the other records")
@pytest.mark.parametrize("byte", range(BUFFERS.sealed_at, BUFFERS.sealed_at + 16 + BUFFERS.sealed_bytes, 7))
def test_a_damaged_descriptor_is_never_believed(segment, byte):
    index = write_buffer(segment)
    segment._bytes[BUFFERS.offset + index * BUFFERS.stride + byte] ^= 0x40

    snapshot = reader.read(segment.path)

    assert snapshot.buffers == ()
    assert snapshot.half_written == 1


# -- other versions ---------------------------------------------------------------------------------------------


def rewritten(segment, directory, major=layout.MAJOR, minor=layout.MINOR, regions=None):
    """Copy a segment with another header, moving each region to where that header says."""
    regions = regions or layout.REGIONS
    body = bytearray(segment.path.read_bytes())
    out = bytearray(max(region.end for region in regions))
    for old, new in zip(layout.REGIONS, regions, strict=True):
        for index in range(min(old.records, new.records)):
            source, target = old.offset + index * old.stride, new.offset + index * new.stride
            record = body[source : source + old.stride]
            plain = record[: old.sealed_at].ljust(new.sealed_at, b"\0")[: new.sealed_at]
            seal, payload = record[old.sealed_at : old.sealed_at + 16], record[old.sealed_at + 16 :]
            payload = bytes(payload[: old.sealed_bytes].ljust(new.sealed_bytes, b"\0")[: new.sealed_bytes])
            sequence = struct.unpack_from("<q", seal)[0] if new.sealed_bytes else 0
            if sequence:
                seal = struct.pack("<qq", sequence, layout.checksum(payload, sequence))
            out[target : target + new.stride] = (plain + seal + payload)[: new.stride].ljust(new.stride, b"\0")
    head = struct.pack("<8sIIQ16sI", layout.MAGIC, major, minor, len(out), bytes(16), len(regions))
    head += b"".join(struct.pack("<IIQIII4x", *region) for region in regions)
    out[: len(head) + 4] = head + struct.pack("<I", zlib.crc32(head))
    path = directory / f"{bytes(16).hex()}{layout.SUFFIX}"
    path.write_bytes(out)
    return path


def grown(by):
    """The regions of a version whose records have ``by`` bytes more (or less) plain words and payload."""
    regions, offset = [], layout.PAGE
    for region in layout.REGIONS:
        payload = by if region.sealed_bytes else 0
        plain = by if region.sealed_bytes and region.sealed_at else 0
        new = layout.Region(
            region.id,
            region.records,
            offset,
            region.stride + plain + payload,
            region.sealed_at + plain,
            region.sealed_bytes + payload,
        )
        regions.append(new)
        offset = new.end
    return tuple(regions)


@pytest.mark.fault("a file of an older or newer minor version", sees="what both know")
@pytest.mark.parametrize("by", [16, -8])
def test_a_file_of_another_minor_version_is_read_as_far_as_it_is_known(segment, segments, by):
    write_buffer(segment, "kept", USED=7, N50=2)
    path = rewritten(segment, segments, minor=layout.MINOR + 1, regions=grown(by))

    (buffer,) = reader.read(path).buffers

    assert (buffer.used, buffer.capacity, buffer.unit) == (7, 100, "rows")
    assert buffer.name == "kept"
    assert buffer.occupancy[0] == 2


@pytest.mark.fault("a file of another major version", sees="segment_unreadable, with both versions")
def test_a_file_of_another_major_version_is_named_as_such(segment, segments):
    path = rewritten(segment, segments, major=2)

    with pytest.raises(UnreadableError, match=rf"format 2\.{layout.MINOR}; this reader knows 1\.x") as error:
        reader.read(path)

    assert error.value.reason == "version"


@pytest.mark.fault("an enumeration of a newer writer", sees="unknown")
def test_an_unknown_enum_value_reads_as_unknown(segment):
    index = segment.allocate(BUFFERS)
    segment.seal(BUFFERS, index, BufferPayload(0, 1, 250, 251, 0, b"rows", b"", b"new").pack())
    probe = segment.allocate(PROBES)
    segment.words(PROBES, probe)[0] = 99
    segment.seal(PROBES, probe, layout.ProbePayload(b"p", b"").pack())

    snapshot = reader.read(segment.path)

    assert snapshot.buffers[0].kind is Kind.UNKNOWN
    assert snapshot.buffers[0].location is layout.Location.UNKNOWN
    assert snapshot.probes[0].status is layout.ProbeStatus.UNKNOWN


# -- files that are no segments -----------------------------------------------------------------------------------


@pytest.mark.fault("a file that is no segment, or empty", sees="segment_unreadable, with the reason")
@pytest.mark.parametrize(
    ("reason", "content"),
    [
        ("empty", b""),
        ("truncated", layout.MAGIC),
        ("magic", b"\x7fELF" + bytes(5000)),
        ("truncated", header.pack_header(bytes(16)).ljust(5000, b"\0")),
        ("checksum", header.pack_header(bytes(16))[:60] + b"\xff" * 5000),
    ],
)
def test_what_is_no_segment_is_refused_with_a_reason(segments, reason, content):
    path = segments / f"bad{layout.SUFFIX}"
    path.write_bytes(content)

    with pytest.raises(UnreadableError, match=path.name) as error:
        reader.read(path)

    assert error.value.reason == reason


@pytest.mark.fault("a symlink, FIFO or directory of that name", sees="segment_unreadable")
@pytest.mark.parametrize("make", ["symlink", "fifo", "directory"])
def test_only_regular_files_are_read(segments, make):
    path = segments / f"odd{layout.SUFFIX}"
    {"symlink": lambda: path.symlink_to("/dev/zero"), "fifo": lambda: os.mkfifo(path), "directory": path.mkdir}[make]()

    with pytest.raises(UnreadableError) as error:
        reader.read(path)

    assert error.value.reason == "not_regular"


def test_a_file_that_shrinks_under_the_reader_is_an_error_not_a_signal(segment, segments):
    write_buffer(segment)
    copy = segments / f"copy{layout.SUFFIX}"
    copy.write_bytes(segment.path.read_bytes()[:30_000])

    with pytest.raises(UnreadableError) as error:
        reader.read(copy)

    assert error.value.reason == "truncated"


# -- liveness -----------------------------------------------------------------------------------------------------


def test_a_segment_is_alive_as_long_as_its_lock_is_held(segment):
    assert reader.read(segment.path).alive

    copy = Segment.create(segment.path.parent)
    copy.close()

    assert not reader.read(copy.path).alive
    assert reader.read(segment.path).alive


@pytest.mark.fault("the host opens and closes the file", sees="running")
def test_opening_and_closing_the_file_elsewhere_in_the_process_does_not_lose_the_lock(segment):
    segment.path.read_bytes()

    assert reader.read(segment.path).alive


@pytest.mark.fault("umask 077", sees="its segment")
def test_a_segment_is_readable_by_others_whatever_the_umask(segments):
    before = os.umask(0o077)
    try:
        made = Segment.create(segments)
    finally:
        os.umask(before)

    assert made.path.stat().st_mode & 0o777 == 0o644
    made.close()


def test_a_read_costs_no_more_than_a_scrape_can_bear(segment):
    for index in range(200):
        write_buffer(segment, f"buffer {index}")
    taken = []
    for _ in range(9):
        start = time.perf_counter()
        reader.read(segment.path, events=False)
        taken.append(time.perf_counter() - start)

    assert min(taken) < 0.1  # 3 ms on an idle machine; one that freezes does not freeze nine times
