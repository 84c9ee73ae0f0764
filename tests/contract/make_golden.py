"""Writes the golden file of the present format. By hand, once for each minor version; never for an old one."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

from ullage.inspect.dump import plain
from ullage.segment import layout, reader
from ullage.segment.layout import B, BufferPayload, C, ClaimPayload, EventPayload, P, ProbePayload, Q
from ullage.segment.writer import Segment

HERE = Path(__file__).parent
START = 1_795_000_000_000_000_000


def fill(segment):
    """Give every field of every record a value of its own."""
    for word in P:
        segment.process[word] = START + word if word.name.endswith("_NS") else 100 + word
    identity = {"process": "vllm0/worker-tp1", "engine_id": "0123456789abcdef", "model_name": "Größe", "tp_rank": 1}
    segment.seal(layout.IDENTITY, 0, json.dumps(identity, sort_keys=True).encode())
    for index, status in enumerate(layout.ProbeStatus):
        segment.allocate(layout.PROBES)
        for word in Q:
            segment.words(layout.PROBES, index)[word] = 200 + word
        segment.words(layout.PROBES, index)[Q.STATUS] = status
        payload = ProbePayload(f"Scheduler.probe_{index}".encode(), b"no parameter x" if index else b"")
        segment.seal(layout.PROBES, index, payload.pack())
    kinds = [(kind, location) for kind in layout.Kind for location in layout.Location]
    for index, (kind, location) in enumerate(kinds):
        segment.allocate(layout.BUFFERS)
        words = segment.words(layout.BUFFERS, index)
        for word in B:
            words[word] = 300 + word + index
        words[B.EPOCH] = words[B.EPOCH_CHECK] = 2 * index
        payload = BufferPayload(4096 + index, 1 + index, kind, location, index % 8, b"blocks", b"max_model_len", b"kv")
        segment.seal(layout.BUFFERS, index, payload._replace(name=f"buffer {index}".encode()).pack())
    for index, role in enumerate(layout.Role):
        segment.allocate(layout.CLAIMS)
        for word in C:
            segment.words(layout.CLAIMS, index)[word] = 400 + word
        payload = ClaimPayload(
            (3126, layout.NO_SIZE, *range(index)),
            role,
            index % 2,
            bytes([1, 2, *[1] * index]),
            b"int32",
            b"columns",
            b"rows,columns",
            b"block_table.width",
            f"source {index}".encode(),
            b'{"block_size":64,"dcp":1}',
        )
        segment.seal(layout.CLAIMS, index, payload.pack())
    for kind in layout.EventKind:
        segment.emit(EventPayload(START + kind, 2**kind, (kind, 2, -3, 2**40), kind, b"kv_blocks", b"RuntimeError"))


def main():
    with tempfile.TemporaryDirectory() as directory:
        segment = Segment.create(Path(directory))
        fill(segment)
        segment.close()
        content = segment.path.read_bytes()
        expected = plain(reader.read(segment.path))
    name = f"golden-{layout.MAJOR}.{layout.MINOR}"
    (HERE / f"{name}.ullage.gz").write_bytes(gzip.compress(content, mtime=0))
    (HERE / f"{name}.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
