"""The gate: what is refused, with which reason, and what that costs."""

from __future__ import annotations

import json
import struct
import zlib

import pytest

from ullage.segment import layout, reader
from ullage.segment.header import pack_header
from ullage.segment.layout import BUFFERS, CLAIMS, EVENTS, PROBES, B, BufferPayload, ClaimPayload, EventPayload, P, Q
from ullage.segment.reader import UnreadableError
from ullage.segment.writer import Segment

LEAST, MOST = -(2**63), 2**63 - 1


@pytest.fixture
def segment(segments):
    """A segment with an identity and one sound buffer."""
    made = Segment.create(segments)
    say(made, process="vllm0/core", engine_id="e")
    buffer(made, b"sound")
    yield made
    made.close()


def say(segment, **identity):
    segment.seal(layout.IDENTITY, 0, json.dumps(identity).encode())


def buffer(segment, name, flags=0, **words):
    index = segment.allocate(BUFFERS)
    for word, value in {"CAPACITY": 10, **words}.items():
        segment.words(BUFFERS, index)[B[word]] = value
    segment.seal(BUFFERS, index, BufferPayload(0, 1, 1, 1, flags, b"rows", b"", name).pack())


def claim(segment, *, contract=b"width", source=b"runner", shape=(4,), inputs=b"{}", flags=0, checks=0):
    index = segment.allocate(CLAIMS)
    segment.words(CLAIMS, index)[0] = checks
    payload = ClaimPayload(shape, 3, flags, b"\1", b"", b"", b"n", contract, source, inputs)
    segment.seal(CLAIMS, index, payload.pack())


def probe(segment, name, calls=1):
    index = segment.allocate(PROBES)
    segment.words(PROBES, index)[Q.CALLS] = calls
    segment.seal(PROBES, index, layout.ProbePayload(name, b"").pack())


def reason(path):
    with pytest.raises(UnreadableError) as error:
        reader.read(path)
    with pytest.raises(UnreadableError):
        reader.glance(path)
    assert str(error.value).isprintable()
    return error.value.reason


# -- a bad record costs that record ---------------------------------------------------------------------------------

BAD = {
    "a buffer without a name": lambda segment: buffer(segment, b""),
    "a negative capacity": lambda segment: buffer(segment, b"bad", CAPACITY=-1),
    "a negative use": lambda segment: buffer(segment, b"bad", USED=LEAST),
    "a negative count": lambda segment: buffer(segment, b"bad", N75=-1),
    "a date before 1970": lambda segment: buffer(segment, b"bad", HIGH_WATER_NS=-1),
    "a negative warning line": lambda segment: buffer(segment, b"bad", WARN_AT=-1),
    "a buffer of that name": lambda segment: buffer(segment, b"sound"),
    "a probe without a name": lambda segment: probe(segment, b""),
    "a probe with negative calls": lambda segment: probe(segment, b"p", calls=-1),
    "a claim without a contract": lambda segment: claim(segment, contract=b""),
    "a claim without a source": lambda segment: claim(segment, source=b""),
    "a negative size": lambda segment: claim(segment, shape=(-2,)),
    "negative checks": lambda segment: claim(segment, checks=-1),
    "inputs that are a list": lambda segment: claim(segment, inputs=b"[1]"),
    "an input that is a list": lambda segment: claim(segment, inputs=b'{"a":[1]}'),
    "an input that is no number": lambda segment: claim(segment, inputs=b'{"a":NaN}'),
    "an input that is infinite": lambda segment: claim(segment, inputs=b'{"a":1e999}'),
    "an input of 65 bits": lambda segment: claim(segment, inputs=b'{"a":18446744073709551616}'),
    "inputs that are no JSON": lambda segment: claim(segment, inputs=b'{"a":'),
    "inputs that are nested": lambda segment: claim(segment, inputs=b"[" * 600),
    "an event before 1970": lambda segment: segment.emit(EventPayload(-1, 1, (0, 0, 0, 0), 1, b"rows", b"")),
    "an event that happened -1 times": lambda segment: segment.emit(EventPayload(1, -1, (0, 0, 0, 0), 1, b"r", b"")),
}


@pytest.mark.fault("a record with values that no hook writes", sees="the others; reason refused")
@pytest.mark.parametrize("what", BAD)
def test_a_record_that_cannot_be_costs_that_record(segment, what):
    BAD[what](segment)

    snapshot = reader.read(segment.path)

    assert [one.name for one in snapshot.buffers] == ["sound"]
    assert (snapshot.probes, snapshot.claims, snapshot.events) == ((), (), ())
    assert (snapshot.refused, snapshot.half_written) == (1, 0)


SOUND = {
    "the largest numbers": lambda segment: buffer(segment, b"b", CAPACITY=MOST, USED=MOST, N50=MOST, WARN_AT=MOST),
    "a worst index below zero": lambda segment: buffer(segment, b"b", WORST_INDEX=LEAST),
    "an entry of the inventory twice": lambda segment: [
        buffer(segment, b"held", layout.FLAG_INVENTORY) for _ in range(2)
    ],
    "a claim made by two contracts of a name": lambda segment: [claim(segment), claim(segment)],
    "a claim without inputs": lambda segment: claim(segment, inputs=b""),
    "every scalar": lambda segment: claim(
        segment, inputs=b'{"a":null,"b":true,"c":-1.5,"d":"x","e":-9223372036854775808}'
    ),
    "counts of a contract": lambda segment: claim(segment, source=b"", flags=layout.FLAG_TALLY),
    "an event about negative numbers": lambda segment: segment.emit(
        EventPayload(1, 1, (-1, LEAST, 0, 0), 1, b"r", b"")
    ),
}


@pytest.mark.parametrize("what", SOUND)
def test_what_a_hook_may_write_passes(segment, what):
    SOUND[what](segment)

    snapshot = reader.read(segment.path)

    assert snapshot.refused == 0
    assert len(snapshot.buffers) + len(snapshot.claims) + len(snapshot.events) > 1


def test_of_two_buffers_of_a_name_the_one_written_later_stays(segment):
    segment.seal(BUFFERS, 0, BufferPayload(0, 1, 1, 1, 0, b"rows", b"", b"again").pack())
    buffer(segment, b"sound", USED=1)
    buffer(segment, b"sound", USED=2)
    segment.seal(BUFFERS, 1, BufferPayload(0, 1, 1, 1, 0, b"rows", b"", b"sound").pack())

    snapshot = reader.read(segment.path)

    assert {one.name: one.used for one in snapshot.buffers} == {"again": 0, "sound": 1}
    assert snapshot.refused == 1


def test_text_is_cleaned_wherever_it_stands(segment):
    odd = "a\n\x1b[31m\u2028\u202eb".encode()
    say(segment, process="vllm0/\ud800core", engine_id="\n", model_name="caf\udce9", tp_rank=1)
    buffer(segment, odd)
    claim(segment, contract=odd, source=odd, inputs=json.dumps({"\n": "\ud800"}).encode())
    probe(segment, odd)
    segment.emit(EventPayload(1, 1, (0, 0, 0, 0), 1, odd, odd))

    snapshot = reader.read(segment.path)

    texts = [*snapshot.identity.values(), snapshot.buffers[1].name, snapshot.claims[0].contract]
    texts += [snapshot.claims[0].source, *snapshot.claims[0].inputs, *snapshot.claims[0].inputs.values()]
    texts += [snapshot.probes[0].name, snapshot.events[0].subject, snapshot.events[0].detail]
    assert all(text.isprintable() for text in texts if isinstance(text, str))
    assert snapshot.refused == 0


# -- a bad identity or process costs the file -----------------------------------------------------------------------


@pytest.mark.fault("an identity that no hook writes", sees="segment_unreadable, reason identity")
@pytest.mark.parametrize(
    "payload",
    [b"[]", b"7", b"{", b'{"process":""}', b'{"process":7}', b'{"process":null}', b"{}", b"[" * 3000,
     json.dumps({"process": "é" * 1700}).encode()[:3568], b'{"process":"a","x":[1]}', b'{"process":"a","x":NaN}',
     b'{"process":"' + b"x" * 201 + b'"}'],
)  # fmt: skip
def test_an_identity_that_cannot_be_used_costs_the_file(segment, payload):
    segment.seal(layout.IDENTITY, 0, payload)

    assert reason(segment.path) == "identity"


def test_an_identity_has_the_types_that_are_asked_for(segment):
    say(segment, process="a", model_name=7, tp_rank="0", plugin_variables=1, own=True, later=2, more="text", less=None)

    assert reader.read(segment.path).identity == {"process": "a", "later": 2, "more": "text"}


def test_a_key_of_an_older_hook_is_read(segment):
    say(segment, process="a", vllm_plugins="lora,ullage")

    assert reader.read(segment.path).identity["vllm_plugins"] == "lora,ullage"


@pytest.mark.fault("a process with dates or counts that cannot be", sees="segment_unreadable, reason value")
@pytest.mark.parametrize("word", [word for word in P if word < P.PROBES_END])
def test_a_negative_date_or_count_of_the_process_costs_the_file(segment, word):
    segment.process[word] = -2

    assert reason(segment.path) == "value"


def test_a_process_may_not_know_how_many_requests_run(segment):
    segment.process[P.RUNNING] = -1

    assert reader.read(segment.path).process.running == -1


# -- a bad header costs the file ------------------------------------------------------------------------------------


def with_regions(segment, change):
    """Rewrite the header's region table, its checksum repaired."""
    regions = [list(region) for region in layout.REGIONS]
    change(regions)
    page = pack_header(bytes.fromhex(segment.incarnation))
    head = page[:40] + struct.pack("<I", len(regions)) + b"".join(struct.pack("<IIQIII4x", *one) for one in regions)
    segment._bytes[: len(head) + 4] = head + struct.pack("<I", zlib.crc32(head))


def _set(position, field, value):
    def change(regions):
        regions[position][field] = value

    return change


GEOMETRY = {
    "an offset of 2^63 + 5": _set(3, 2, 2**63 + 5),
    "an offset inside the header": _set(0, 2, 4088),
    "an odd offset": _set(5, 2, EVENTS.offset - 4),
    "records beyond the end": _set(5, 1, EVENTS.records - 1 + 1024),
    "more records than any version": _set(2, 1, 1025),
    "no records": _set(2, 1, 0),
    "one region over another": _set(4, 2, CLAIMS.offset - 8),
    "no stride": _set(3, 3, 0),
    "a seal outside its record": _set(3, 4, 384),
    "a payload outside its record": _set(3, 5, 2**32 - 1),
    "a region twice": _set(3, 0, 5),
    "no process": _set(0, 0, 77),
}


@pytest.mark.fault("regions that cannot be", sees="segment_unreadable, reason geometry")
@pytest.mark.parametrize("what", GEOMETRY)
def test_regions_that_cannot_be_cost_the_file(segment, what):
    with_regions(segment, GEOMETRY[what])

    assert reason(segment.path) == "geometry"


def test_the_same_header_without_a_change_is_read(segment):
    with_regions(segment, lambda _regions: None)

    assert reader.read(segment.path).buffers[0].name == "sound"


@pytest.mark.fault("a copy of a segment in the same directory", sees="segment_unreadable, reason copy")
def test_a_copy_is_refused_by_its_name(segment, segments):
    copy = segments / "backup.ullage"
    copy.write_bytes(segment.path.read_bytes())

    assert reason(copy) == "copy"
    assert reader.read(segment.path).alive


def test_a_name_that_is_no_text_is_refused_in_clean_words(segments):
    path = segments / b"caf\xe9\n.ullage".decode("utf-8", "surrogateescape")
    path.write_bytes(b"nonsense")

    assert reason(path) == "truncated"
