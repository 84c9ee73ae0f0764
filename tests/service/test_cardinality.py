"""How many series a process has, and that the cap holds."""

from __future__ import annotations

from collections import Counter

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from snapshots import SECOND, World, buffer, snapshot

from ullage.segment import reader
from ullage.segment.layout import BUFFERS, FLAG_HISTOGRAM, B, BufferPayload, Kind
from ullage.segment.writer import Segment
from ullage_sidecar.alarms import Alarms
from ullage_sidecar.health import Ticks
from ullage_sidecar.metrics import Collector, Reload
from ullage_sidecar.rows import Rows
from ullage_sidecar.state import MAX_GONE


def scrape(world, *snapshots):
    """Return the samples of one scrape."""
    registry = CollectorRegistry(auto_describe=False)
    look = lambda: (world.look(*snapshots), Alarms(), world.settings, Reload(successful=True, at=0), Ticks(0, 0))  # noqa: E731
    registry.register(Collector(look, Rows()))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return [sample for family in families for sample in family.samples]


def per_process(samples):
    return Counter(sample.labels["process"] for sample in samples if "process" in sample.labels)


def write_buffer(segment, name, kind, flags=0):
    """Write a buffer of capacity 100 that was observed three times, at most half full."""
    index = segment.allocate(BUFFERS)
    words = segment.words(BUFFERS, index)
    words[B.CAPACITY], words[B.N50] = 100, 3
    segment.seal(BUFFERS, index, BufferPayload(0, 1, kind, 1, flags, b"blocks", b"", name.encode()).pack())


def test_a_buffer_has_a_histogram_if_it_can_overflow_or_asks_for_one(segments):
    segment = Segment.create(segments, b'{"process": "app0/main"}')
    write_buffer(segment, "hard", Kind.HARD)
    write_buffer(segment, "managed", Kind.MANAGED)
    write_buffer(segment, "managed, asks", Kind.MANAGED, FLAG_HISTOGRAM)
    write_buffer(segment, "fixed, asks", Kind.FIXED, FLAG_HISTOGRAM)
    write_buffer(segment, "kv_blocks", Kind.MANAGED)  # a name asks for nothing

    samples = scrape(World(), reader.read(segment.path))

    buckets = [sample for sample in samples if sample.name == "ullage_buffer_occupancy_ratio_bucket"]
    assert Counter(sample.labels["buffer"] for sample in buckets) == {"hard": 7, "managed, asks": 7, "fixed, asks": 7}
    assert {sample.value for sample in buckets} == {3}
    segment.close()


def test_the_cap_counts_the_histograms_that_were_asked_for():
    many = [buffer(f"buffer {n}", kind=Kind.MANAGED, histogram=True) for n in range(512)]

    samples = scrape(World(series_cap=5000), snapshot("a", "app0/main", buffers=many))

    assert 4900 < per_process(samples)["app0/main"] <= 5000


def test_the_cap_holds_for_a_full_segment_and_what_is_left_out_is_counted():
    many = [buffer(f"buffer {n}") for n in range(512)]
    samples = scrape(World(series_cap=5000), snapshot("a", "app0/main", buffers=many), snapshot("b", "app0/other"))

    assert 4900 < per_process(samples)["app0/main"] <= 5000
    kept = {sample.labels["buffer"] for sample in samples if sample.name == "ullage_buffer_used_slots"}
    (left_out,) = [
        s.value
        for s in samples
        if s.name == "ullage_records_dropped_total" and s.labels == {"process": "app0/main", "reason": "series_cap"}
    ]
    assert left_out == 512 - len(kept) > 0


def test_violations_go_last():
    many = [buffer(f"buffer {n}", beyond=int(n > 500), kind=Kind.FIXED) for n in range(512)]

    samples = scrape(World(series_cap=500), snapshot("a", "app0/main", buffers=many))

    kept = {sample.labels["buffer"] for sample in samples if sample.name == "ullage_buffer_used_slots"}
    assert {f"buffer {n}" for n in range(501, 512)} <= kept
    assert per_process(samples)["app0/main"] <= 500 + 4 * 11  # totals of violations are never left out


def test_a_cap_that_is_lifted_leaves_nothing_out():
    many = [buffer(f"buffer {n}") for n in range(512)]

    samples = scrape(World(series_cap=100_000), snapshot("a", "app0/main", buffers=many))

    assert sum(sample.name == "ullage_buffer_used_slots" for sample in samples) == 512


def _lines(samples):
    return sorted((sample.name, *sorted(sample.labels.items())) for sample in samples)


def test_the_page_is_back_to_its_size_once_processes_of_other_names_are_gone():
    """Six hundred names, one file at a time: counts are kept for the retention, and of 256 names at most."""
    world, names = World(retention=3600), 600
    empty = _lines(scrape(world))
    last = [snapshot("a", "app0/a", alive=False, buffers=[buffer(beyond=1)])]
    of_one = len(_lines(scrape(world, *last))) - len(empty)
    for number in range(names):
        last = [snapshot(f"{number}", f"app0/{number}", alive=False, engine=f"{number}", buffers=[buffer(beyond=1)])]
        world.look(*last)

    within = _lines(scrape(world, *last))
    world.look()
    world.now_ns += 3601 * SECOND
    after = _lines(scrape(world))

    assert len(within) < len(empty) + of_one * (MAX_GONE + 1)
    assert after == empty


def test_a_buffer_that_was_freed_has_totals_only():
    freed = buffer("freed", closed=True, used=5, beyond=3, exhaustions=2, grows=1)

    samples = scrape(World(), snapshot("a", "app0/main", buffers=[freed, buffer("held", used=5)]))

    found = {sample.name: sample.value for sample in samples if sample.labels.get("buffer") == "freed"}
    assert found == {
        "ullage_bounds_violations_total": 3,
        "ullage_buffer_exhaustions_total": 2,
        "ullage_buffer_resizes_total": 0,  # those of direction shrink
    }
