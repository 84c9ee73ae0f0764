"""Structured mutation of segments: what a hostile, a broken or a much newer writer could leave, checksums included.

Each kind changes one part of a segment; seeded, so that an input can be made again from its number.
"""

from __future__ import annotations

import json
import random
from typing import NamedTuple

from ullage.segment import layout
from ullage.segment.layout import B, BufferPayload, ClaimPayload, EventPayload, P, ProbePayload, Relation, Role

INTEGERS = (0, -1, 1, 2, 7, 100, 2**31, 2**32 - 1, 2**62, 2**63 - 1, -(2**63), -(2**31))
NUMBERS = (*INTEGERS, 10**30, -(10**30), 10**300, 0.5, -0.0, 1e308)
TEXTS = (
    b"",
    b"x",
    b" ",
    b"vllm0/core",
    b"a" * 4000,
    "é".encode() * 1700,
    b"line\nCRITICAL ullage: forged\n",
    b"\x1b[31mred\x1b]0;title\x07",
    b"\r\t\x00\x7f",
    b"\xc2\x85\xe2\x80\xa8\xe2\x80\xae\xe2\x80\x8b",  # next line, line separator, right-to-left override, zero width
    b"\xed\xa0\x80",  # a lone surrogate
    b"/models/caf\xe9",
    b"\xff\xfe\xfd",
    b'say "no" \\ {} # {x="y"} 1 # EOF',
    b"../../etc/passwd",
    b"<script>alert(1)</script>",
    b"%s {0} ${HOME}",
)
DOCUMENTS = (
    "",
    "{}",
    "[]",
    "null",
    "7",
    '"text"',
    '{"process":""}',
    '{"process":" "}',
    '{"process":null}',
    '{"process":7}',
    '{"process":["a"]}',
    '{"process":"a\\nb"}',
    '{"process":"\\ud800"}',
    '{"process":"a","process":"b"}',
    '{"process":"a","engine_id":{"b":[1,2,{"c":null}]}}',
    '{"process":"a","tp_rank":' + "9" * 400 + "}",
    '{"process":"a","":"b"}',
    '{"process":"' + "é" * 1700 + '"}',
    "[" * 3000,
    '{"a":' * 500 + "1" + "}" * 500,
    "{",
    "\x00",
    '{"process":"a"} trailing',
)
SCALARS = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-0",
    "true",
    "false",
    "null",
    "[]",
    "{}",
    "[1,[2]]",
    '{"a":1}',
    '"auto"',
)


INPUTS = (
    *(
        "max_model_len",
        "block_size",
        "max_num_seqs",
        "max_num_batched_tokens",
        "fields_per_seq",
        "index_limit",
        "seq_len",
    ),
    *("num_speculative_tokens", "dcp_world_size", "max_cudagraph_capture_size", "engine_version", "kv_role", "locked"),
)
SIZES = (0, 1, 4, 8, 9, 64, 3125, 3126, 4096, 2**31, 2**62, 2**63 - 1)
VALUES = (*SIZES, -1, 0.5, 1e308, True, False, None, "auto", "", "9", "0.32.0")


class Mutation(NamedTuple):
    """One mutated input: where it comes from, and what was changed in it."""

    number: int
    base: str
    kinds: tuple[str, ...]


def mutate(file, number, seed, base):
    """Change ``file`` in one to three places; the kinds take turns. Return what was done; ``file.undo()`` undoes it."""
    chance = random.Random(f"{seed}/{number}")
    kinds = [list(KINDS)[number % len(KINDS)]]
    kinds += chance.choices(list(KINDS), k=chance.choice((0, 0, 1, 2)))
    # The header last: the others look for records where its regions say that they are.
    for kind in sorted(kinds, key=lambda one: one in ("header", "regions")):
        KINDS[kind](file, chance)
    return Mutation(number, base, tuple(kinds))


def _header(file, chance):
    field = chance.choice(("file_bytes", "minor", "count", "incarnation", "magic", "major", "size"))
    if field == "size":
        file.resize(chance.choice((1 << 20, (1 << 20) + 1, 1 << 24, 1 << 32)))
    elif field == "incarnation":
        file.head(incarnation=chance.choice((bytes(16), b"\xff" * 16, chance.randbytes(16))))
    elif field == "magic":
        file.head(magic=chance.choice((b"ULLAGE\n\n", bytes(8), chance.randbytes(8))))
    elif field == "count":
        file.head(count=chance.choice((0, 1, 5, 64)), regions=list(file.regions.values()) * 11)
    elif field == "file_bytes":
        file.head(file_bytes=chance.choice((0, 1, 4096, file.bytes - 1, 1 << 20, 2**32, 2**63, 2**64 - 1)))
    else:
        file.head(**{field: chance.choice((0, 1, 2, 2**31, 2**32 - 1))})


def _regions(file, chance):
    regions = list(file.regions.values())
    for _ in range(chance.choice((1, 1, 2, 4))):
        index = chance.randrange(len(regions))
        field = chance.choice(layout.Region._fields)
        now = getattr(regions[index], field)
        near = (now - 1, now + 1, now + 7, now + 8, now * 2, now // 2, now + layout.PAGE)
        value = abs(chance.choice((*near, *INTEGERS, 2**63 + 5, 6 << 20, *(region.id for region in regions))))
        regions[index] = regions[index]._replace(**{field: value})
    what = chance.random()
    if what < 0.1:
        regions.pop(chance.randrange(len(regions)))
    elif what < 0.2:
        regions.append(chance.choice(regions))
    if any(region.records * region.stride > file.bytes for region in regions) and chance.random() < 0.3:
        file.resize(chance.choice((1 << 24, 1 << 32)))  # sparse: the region lies within it
    file.head(regions)


def _process(file, chance):
    for _ in range(chance.choice((1, 2, 5, len(P)))):
        file.store(layout.PROCESS, 0, chance.choice(list(P)), _integer(chance))


def _identity(file, chance):
    file.seal(layout.IDENTITY, 0, _document(file.payload(layout.IDENTITY, 0), chance))


def _probe(file, chance):
    for index in _some(file, layout.PROBES, chance):
        _scatter(file, layout.PROBES, index, chance, range(4))
        payload = ProbePayload.unpack(file.payload(layout.PROBES, index))
        file.seal(layout.PROBES, index, _replaced(payload, chance, name=80, detail=64).pack())


def _buffer(file, chance):
    for index in _some(file, layout.BUFFERS, chance):
        _scatter(file, layout.BUFFERS, index, chance, range(B.EPOCH_CHECK))
        file.store(layout.BUFFERS, index, B.EPOCH_CHECK, file.words(layout.BUFFERS, index)[B.EPOCH])
        payload = BufferPayload.unpack(file.payload(layout.BUFFERS, index))
        payload = _replaced(payload, chance, unit=16, limit=40, name=88)
        if chance.random() < 0.5:
            field, bits = chance.choice(
                (("nbytes", 64), ("instances", 32), ("kind", 8), ("location", 8), ("flags", 16))
            )
            payload = payload._replace(**{field: _fitting(_integer(chance), bits, signed=field == "nbytes")})
        file.seal(layout.BUFFERS, index, payload.pack())


def _claim(file, chance):
    for index in _some(file, layout.CLAIMS, chance):
        _scatter(file, layout.CLAIMS, index, chance, range(4))
        payload = ClaimPayload.unpack(file.payload(layout.CLAIMS, index))
        payload = _replaced(payload, chance, dtype=16, unit=16, dims=48, contract=96, source=64)
        if chance.random() < 0.5:
            shape = tuple(_integer(chance) for _ in range(chance.randrange(layout.MAX_DIMS + 1)))
            payload = payload._replace(shape=chance.choice((shape, payload.shape[::-1])))
        if chance.random() < 0.3:
            payload = payload._replace(role=chance.randrange(256), flags=chance.randrange(256))
        if chance.random() < 0.3:
            payload = payload._replace(relations=chance.randbytes(8))
        packed = bytearray(payload.pack())
        if chance.random() < 0.1:
            packed[8 * layout.MAX_DIMS : 8 * layout.MAX_DIMS + 4] = chance.randbytes(4)  # how many dimensions
        file.seal(layout.CLAIMS, index, bytes(packed))


def _inputs(file, chance):
    for index in _some(file, layout.CLAIMS, chance):
        payload = ClaimPayload.unpack(file.payload(layout.CLAIMS, index))
        document = _document(payload.inputs, chance)[: layout.INPUTS_BYTES]
        file.seal(layout.CLAIMS, index, payload._replace(inputs=document).pack())


def _disagreement(file, chance):
    """Have two claims disagree, with inputs that the diagnosis computes with: of any type, and of any size."""
    for index in (0, 1):
        inputs = {key: chance.choice(VALUES) for key in chance.sample(INPUTS, chance.choice((1, 2, 4, 8)))}
        claim = ClaimPayload(
            shape=(chance.choice(SIZES),),
            role=Role.IS,
            flags=0,
            relations=bytes([chance.choice((Relation.EQUAL, Relation.AT_LEAST))]),
            dtype=b"int32",
            unit=b"columns",
            dims=b"columns",
            contract=chance.choice((b"block_table.width", b"step.tokens", b"any")),
            source=f"source {index}".encode(),
            inputs=json.dumps(inputs).encode()[: layout.INPUTS_BYTES],
        )
        file.seal(layout.CLAIMS, index, claim.pack())
    file.store(layout.PROCESS, 0, P.CLAIMS_END, max(2, len(file.used(layout.CLAIMS))))


def _event(file, chance):
    for index in _some(file, layout.EVENTS, chance):
        payload = EventPayload.unpack(file.payload(layout.EVENTS, index))
        payload = _replaced(payload, chance, subject=96, detail=348)
        field = chance.choice(("time_ns", "total", "kind", "numbers"))
        value = tuple(_integer(chance) for _ in range(4)) if field == "numbers" else _integer(chance)
        payload = payload._replace(**{field: value % 2**32 if field == "kind" else value})
        sequence = chance.choice((file.sequence(layout.EVENTS, index), _integer(chance) or 1))
        file.seal(layout.EVENTS, index, payload.pack(), sequence)


def _seals(file, chance):
    """Any sequence number, mostly with its checksum; a fragment of another record's payload."""
    regions = (layout.IDENTITY, layout.PROBES, layout.BUFFERS, layout.CLAIMS, layout.EVENTS)
    region = chance.choice([one for one in regions if file.used(one)])
    for index in _some(file, region, chance):
        payload = chance.choice((file.payload(region, index), chance.randbytes(region.sealed_bytes)))
        crc = chance.choice((None, None, None, None, _integer(chance)))
        file.seal(region, index, payload, _integer(chance) or 5, crc)


KINDS = {
    "header": _header,
    "regions": _regions,
    "process": _process,
    "identity": _identity,
    "probe": _probe,
    "buffer": _buffer,
    "claim": _claim,
    "event": _event,
    "seals": _seals,
    "inputs": _inputs,
    "disagreement": _disagreement,
}


def _some(file, region, chance):
    """Choose records that are used, and now and then add one: a copy of another under the same name."""
    used = file.used(region)
    if not used:
        file.seal(region, 0, bytes(region.sealed_bytes))
        used = [0]
    if chance.random() < 0.2 and used[-1] + 1 < region.records:
        file.seal(region, used[-1] + 1, file.payload(region, chance.choice(used)))
        used.append(used[-1] + 1)
        if region.id in layout.ENDS:
            file.store(layout.PROCESS, 0, layout.ENDS[region.id], used[-1] + 1)
    return chance.sample(used, min(len(used), chance.choice((1, 1, 2, 5))))


def _scatter(file, region, index, chance, words):
    """Store boundary values into some plain words of a record."""
    for word in chance.sample(words, chance.choice((0, 1, 2, 4))):
        file.store(region, index, word, _integer(chance))


def _integer(chance):
    return chance.choice((*INTEGERS, chance.getrandbits(64) - 2**63))


def _fitting(value, bits, *, signed):
    return value if signed else value & (2**bits - 1)


def _replaced(payload, chance, **fields):
    """Replace some text fields, each of a given size in bytes."""
    for field, size in fields.items():
        if chance.random() < 0.4:
            payload = payload._replace(**{field: _text(chance)[:size]})
    return payload


def _text(chance):
    return chance.choice((*TEXTS, chance.randbytes(chance.randrange(1, 40))))


def _document(payload, chance):
    """Change an object in JSON: another document, other values of some keys, or other keys."""
    if chance.random() < 0.3:
        return chance.choice(DOCUMENTS).encode()
    parts = {json.dumps(key): json.dumps(value) for key, value in _object(payload).items()}
    for _ in range(chance.choice((1, 1, 2, 6))):
        key = chance.choice((*parts, _quoted(chance), '"process"', '"engine_id"', '"max_model_len"', '"block_size"'))
        parts[key] = chance.choice((_quoted(chance), json.dumps(chance.choice(NUMBERS)), chance.choice(SCALARS)))
    body = ",".join(f"{key}:{value}" for key, value in parts.items())
    return f"{{{body}}}".encode("utf-8", "surrogatepass")


def _object(payload):
    try:
        document = json.loads(payload.rstrip(b"\0"))
    except (ValueError, RecursionError):  # an earlier mutation was here
        return {}
    return document if isinstance(document, dict) else {}


def _quoted(chance):
    """Return any text as JSON: escaped, or the characters themselves."""
    text = _text(chance).decode("utf-8", "surrogateescape")
    return json.dumps(text, ensure_ascii=chance.random() < 0.5)
