"""What a scrape costs: 16 processes of 200 buffers, against prometheus_client's multiprocess collector.

Both render the same number of samples as text. The processes are dead segments here: reading one is the same.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

PROCESSES, BUFFERS, ROUNDS = 16, 200, 11


def segments(directory):
    """Write the segments."""
    import json

    from ullage.segment import layout
    from ullage.segment.layout import B, BufferPayload
    from ullage.segment.writer import Segment

    chance = random.Random(1)
    for process in range(PROCESSES):
        segment = Segment.create(directory)
        identity = {"process": f"vllm0/worker-tp{process}", "engine_id": "e", "role": "worker", "tp_rank": process}
        segment.seal(layout.IDENTITY, 0, json.dumps(identity).encode())
        for number in range(BUFFERS):
            index = segment.allocate(layout.BUFFERS)
            words = segment.words(layout.BUFFERS, index)
            words[B.CAPACITY] = 8192
            words[B.USED] = words[B.HIGH_WATER] = chance.randrange(8192)
            words[B.HIGH_WATER_NS] = time.time_ns()
            for step in range(B.N50, B.N100 + 1):
                words[step] = chance.randrange(10**6)
            name = f"model.layers.{number}.buffer".encode()
            payload = BufferPayload(1 << 20, 1, 2 if number % 2 else 1, 3, 0, b"tokens", b"max_num_seqs", name)
            segment.seal(layout.BUFFERS, index, payload.pack())
        segment.close()


def peer(directory, samples):
    """Write prometheus_client's files: as many samples, from as many processes."""
    from prometheus_client.mmap_dict import MmapedDict, mmap_key

    families = samples // (PROCESSES * BUFFERS)
    for process in range(PROCESSES):
        for kind in ("counter", "gauge_mostrecent"):
            store = MmapedDict(str(directory / f"{kind}_{process}.db"))
            for family in range(families // 2 if kind == "counter" else families - families // 2):
                name = f"{kind}_{family}"
                for number in range(BUFFERS):
                    labels = {"process": f"vllm0/worker-tp{process}", "buffer": f"model.layers.{number}.buffer"}
                    sample = f"{name}_total" if kind == "counter" else name
                    store.write_value(mmap_key(name, sample, list(labels), list(labels.values()), "Help."), 7.0, 1.0)
            store.close()


def main():
    ours, theirs = (Path(tempfile.mkdtemp(prefix="ullage-bench-", dir="/dev/shm")) for _ in range(2))
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(theirs)
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector

    from ullage_sidecar.metrics import Collector
    from ullage_sidecar.settings import load
    from ullage_sidecar.watch import Watch

    segments(ours)
    watch = Watch(lambda: load(environment={}, dir=ours, series_cap=10**6))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(watch.scrape, watch.rows))
    samples = sum(not line.startswith(b"#") for line in generate_latest(registry).splitlines())
    peer(theirs, samples)
    multiprocess = CollectorRegistry()
    MultiProcessCollector(multiprocess, path=str(theirs))
    peers = sum(not line.startswith(b"#") for line in generate_latest(multiprocess).splitlines())
    cases = {"ullage": registry, "prometheus_client, multiprocess": multiprocess}
    rounds = []
    for _ in range(ROUNDS):
        taken = {}
        for name, one in random.sample(list(cases.items()), len(cases)):
            start = time.perf_counter()
            generate_latest(one)
            taken[name] = time.perf_counter() - start
        rounds.append(taken)
    print(f"{PROCESSES} processes of {BUFFERS} buffers: {samples} samples, the peer {peers}; {ROUNDS} rounds")
    for name in cases:
        print(f"{name:34} {statistics.median(taken[name] for taken in rounds) * 1000:8.1f} ms")
    ratios = sorted(taken["ullage"] / taken["prometheus_client, multiprocess"] for taken in rounds)
    print(f"ullage / multiprocess: {statistics.median(ratios):.2f} ({ratios[1]:.2f} to {ratios[-2]:.2f})")
    for directory in (ours, theirs):
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
