"""Metrics: a collector that makes fresh families from the state of the moment, at every scrape."""

from __future__ import annotations

import platform
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    StateSetMetricFamily,
)

from ullage import __version__
from ullage.segment.layout import EVENTS, OCCUPANCY_STEPS, Kind, Location, ProbeStatus
from ullage_sidecar.alarms import Alarms
from ullage_sidecar.cardinality import capped, has_histogram
from ullage_sidecar.state import CAUSES, CONDITIONS, NS, OUTCOMES
from ullage_sidecar.totals import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ullage.segment.snapshot import Buffer
    from ullage_sidecar.alarms import Key, Warning_
    from ullage_sidecar.diagnosis.joined import Contract
    from ullage_sidecar.health import Ticks
    from ullage_sidecar.rows import Rows
    from ullage_sidecar.settings import Settings
    from ullage_sidecar.state import Life, State

_BUFFER = ("process", "buffer")
_WARNING = ("process", "buffer", "contract", "reason", "severity")
_DROPS = ("buffers", "claims", "probes", "events", "series_cap")
_IDENTITY = (
    "engine",
    "engine_version",
    "model_name",
    "role",
    "tp_rank",
    "pp_rank",
    "dp_rank",
    "hook_version",
)
_NO_TALLY: Counter[Tally] = Counter()
_EDGES = tuple(map(str, OCCUPANCY_STEPS))
_KINDS = {kind: kind.name.lower() for kind in Kind}
_LOCATIONS = {location: location.name.lower() for location in Location}
_PROBE_STATES = tuple(status for status in ProbeStatus if status is not ProbeStatus.UNKNOWN)


class Reload(NamedTuple):
    """How the settings were last read: ``at`` is when that last succeeded, in seconds since the epoch."""

    successful: bool
    at: float


class Collector:
    """prometheus_client's collector protocol: ``collect()`` is called once per scrape."""

    def __init__(self, look: Callable[[], tuple[State, Alarms, Settings, Reload, Ticks]], rows: Rows) -> None:
        self._look = look
        self._rows = rows
        self._left_out: dict[str, int] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield every family. The state is read now; warnings are as of the last tick."""
        start = time.perf_counter()
        state, alarms, settings, reload, ticks = self._look()
        yield from _build()
        try:
            yield from list(self._families(state, alarms, settings))
        except Exception:
            yield from self._families(*self._renderable(state, alarms, settings), settings)
        yield from _segments(state)
        yield from _settings(reload)
        yield from _ticks(ticks)
        yield _dropped_rows(self._rows)
        duration = GaugeMetricFamily("ullage_scrape_duration_seconds", "How long this scrape took to collect.")
        duration.add_metric([], time.perf_counter() - start)
        yield duration

    def _families(self, full: State, alarms: Alarms, settings: Settings) -> Iterator[Metric]:
        """Yield the families that are about processes."""
        state, left_out = capped(full, settings.series_cap)
        for process, count in left_out.items():
            self._left_out[process] = max(count, self._left_out.get(process, 0))
        for process in self._left_out.keys() - full.names:
            del self._left_out[process]
        yield from _processes(state)
        for unit_is_bytes in (False, True):
            yield from _sizes(state, unit_is_bytes=unit_is_bytes)
        yield from _buffers(state)
        yield from _contracts(state)
        yield from _warnings(state, alarms, settings)
        yield from _hook(state, self._left_out)

    def _renderable(self, state: State, alarms: Alarms, settings: Settings) -> tuple[State, Alarms]:
        """Return what can be rendered: each process, contract and warning is tried alone."""
        nothing = replace(state, shown=(), totals={}, exits=Counter(), contracts=())

        def tried(part: State, warnings: Alarms) -> None:
            for _ in self._families(part, warnings, settings):
                pass

        def process(life: Life) -> Life:
            tried(replace(nothing, shown=(life,)), Alarms())
            return life

        def total(entry: tuple[str, Counter[Tally]]) -> tuple[str, Counter[Tally]]:
            tried(replace(nothing, totals=dict([entry])), Alarms())
            return entry

        def contract(entry: tuple[str, Contract]) -> tuple[str, Contract]:
            tried(replace(nothing, contracts=(entry,)), Alarms())
            return entry

        def warning(entry: tuple[Key, Warning_]) -> tuple[Key, Warning_]:
            tried(nothing, Alarms(active=dict([entry])))
            return entry

        each = self._rows.each
        kept = replace(
            state,
            shown=tuple(each("metrics", state.shown, process, lambda life: life.process)),
            totals=dict(each("metrics", state.totals.items(), total, lambda entry: ("total", entry[0]))),
            contracts=tuple(each("metrics", state.contracts, contract, lambda entry: (entry[0], entry[1].name))),
        )
        active = dict(each("metrics", alarms.active.items(), warning, lambda entry: entry[0]))
        return kept, replace(alarms, active=active)

    def describe(self) -> Iterable[Metric]:
        """Promise nothing: names are fixed, and registering must not read segments."""
        return ()


def _build() -> Iterator[Metric]:
    build = InfoMetricFamily("ullage_build", "Version of the sidecar.")
    build.add_metric([], {"version": __version__, "python": platform.python_version()})
    yield build


def _processes(state: State) -> Iterator[Metric]:
    info = InfoMetricFamily("ullage_process", "What a process is.", labels=["process"])
    condition = StateSetMetricFamily("ullage_process_state", "How a process is, or how it ended.", labels=["process"])
    exits = CounterMetricFamily(
        "ullage_process_exits",
        "Ends of processes of this name; the first death of an engine is primary.",
        labels=["process", "outcome", "cause"],
    )
    start = GaugeMetricFamily("ullage_process_start_time_seconds", "When a process started.", labels=["process"])
    last_step = GaugeMetricFamily(
        "ullage_process_last_step_timestamp_seconds", "When a process last ended a step.", labels=["process"]
    )
    steps = CounterMetricFamily("ullage_process_steps", "Engine iterations of a process.", labels=["process"])
    inventory = GaugeMetricFamily(
        "ullage_inventory_bytes", "Bytes of buffers known by their size only.", labels=["process"]
    )
    for life in state.shown:
        process, words = life.process, life.snapshot.process
        identity = life.snapshot.identity
        info.add_metric([process], {key: str(identity[key]) for key in _IDENTITY if key in identity})
        condition.add_metric([process], {name: name == life.condition for name in CONDITIONS})
        start.add_metric([process], words.started_ns / NS)
        steps.add_metric([process], words.steps)
        if words.step_ns:
            last_step.add_metric([process], words.step_ns / NS)
        held = [buffer.nbytes for buffer in life.snapshot.buffers if buffer.inventory]
        if held:
            inventory.add_metric([process], sum(held))
    for process in sorted({life.process for life in state.shown} | {key[0] for key in state.exits}):
        for outcome in OUTCOMES:
            for cause in CAUSES:
                exits.add_metric([process, outcome, cause], state.exits[process, outcome, cause])
    yield from (info, condition, exits, start, last_step, steps, inventory)


def _sizes(state: State, *, unit_is_bytes: bool) -> Iterator[Metric]:
    unit = "bytes" if unit_is_bytes else "slots"
    what = "in bytes" if unit_is_bytes else "in the buffer's own unit"
    capacity = GaugeMetricFamily(f"ullage_buffer_capacity_{unit}", f"What a buffer holds, {what}.", labels=_BUFFER)
    used = GaugeMetricFamily(f"ullage_buffer_used_{unit}", f"What the last observation needed, {what}.", labels=_BUFFER)
    high_water = GaugeMetricFamily(
        f"ullage_buffer_high_water_{unit}", f"The most that any observation needed, {what}.", labels=_BUFFER
    )
    for life, buffer in _watched(state):
        if (buffer.unit == "bytes") == unit_is_bytes:
            labels = [life.process, buffer.name]
            capacity.add_metric(labels, buffer.capacity)
            used.add_metric(labels, buffer.used)
            high_water.add_metric(labels, buffer.high_water)
    yield from (capacity, used, high_water)


def _buffers(state: State) -> Iterator[Metric]:
    info = InfoMetricFamily("ullage_buffer", "What a buffer is.", labels=_BUFFER)
    ratio = GaugeMetricFamily(
        "ullage_buffer_high_water_ratio",
        "The highest share of its capacity that a buffer ever needed, each at the capacity then in force.",
        labels=_BUFFER,
    )
    when = GaugeMetricFamily(
        "ullage_buffer_high_water_timestamp_seconds",
        "When a buffer's high-water mark was set.",
        labels=_BUFFER,
    )
    occupancy = HistogramMetricFamily(
        "ullage_buffer_occupancy_ratio", "Observations by share of the capacity in use.", labels=_BUFFER
    )
    deferrals = CounterMetricFamily(
        "ullage_buffer_deferrals", "Waiting requests not admitted: queueing, normal.", labels=_BUFFER
    )
    checks = CounterMetricFamily("ullage_bounds_checks", "Checks of an index against a capacity.", labels=_BUFFER)
    for life, buffer in _watched(state):
        labels = [life.process, buffer.name]
        info.add_metric(
            labels,
            {
                "unit": buffer.unit,
                "kind": _KINDS[buffer.kind],
                "location": _LOCATIONS[buffer.location],
                "limit": buffer.limit,
            },
        )
        if buffer.high_water_ratio is not None:
            ratio.add_metric(labels, buffer.high_water_ratio)
        if buffer.high_water_ns:
            when.add_metric(labels, buffer.high_water_ns / NS)
        if has_histogram(buffer):
            occupancy.add_metric(labels, _buckets(buffer), sum_value=None)
        deferrals.add_metric(labels, buffer.deferrals)
        checks.add_metric(labels, buffer.bounds_checks)
    yield from (info, ratio, when, occupancy, deferrals, checks)
    yield from _totals(state)


def _totals(state: State) -> Iterator[Metric]:
    """Counters that add up over the incarnations of a process, so that a restart hides nothing."""
    resizes = CounterMetricFamily(
        "ullage_buffer_resizes", "Changes of a buffer's capacity.", labels=[*_BUFFER, "direction"]
    )
    exhaustions = CounterMetricFamily(
        "ullage_buffer_exhaustions",
        "Running requests denied or preempted, and allocations that failed.",
        labels=_BUFFER,
    )
    violations = CounterMetricFamily("ullage_bounds_violations", "Indices outside a buffer's capacity.", labels=_BUFFER)
    shown = {(life.process, buffer.name) for life, buffer in _watched(state)}
    past = {
        (process, tally.name)
        for process, totals in state.totals.items()
        for tally in totals
        if totals[tally] and not tally.what.startswith("shape")
    }
    for process, name in sorted(shown | past):
        total, labels = state.totals.get(process, _NO_TALLY), [process, name]
        resizes.add_metric([*labels, "grow"], total.get(Tally(name, "grows"), 0))
        resizes.add_metric([*labels, "shrink"], total.get(Tally(name, "shrinks"), 0))
        exhaustions.add_metric(labels, total.get(Tally(name, "exhaustions"), 0))
        violations.add_metric(labels, total.get(Tally(name, "violations"), 0))
    yield from (resizes, exhaustions, violations)


def _contracts(state: State) -> Iterator[Metric]:
    labels = ["process", "contract"]
    checks = CounterMetricFamily("ullage_shape_checks", "Tensors held against the claims on a size.", labels=labels)
    violations = CounterMetricFamily(
        "ullage_shape_violations", "Tensors, or sizes of a moment, that did not satisfy a contract.", labels=labels
    )
    disagree = GaugeMetricFamily(
        "ullage_contract_disagreements",
        "Pairs of claimed sizes that do not satisfy the contract.",
        labels=labels,
    )
    counted = {
        (process, tally.name)
        for process, totals in state.totals.items()
        for tally in totals
        if tally.what == "shape_checks"
    }
    for process, name in sorted(counted):
        total = state.totals[process]
        checks.add_metric([process, name], total[Tally(name, "shape_checks")])
        violations.add_metric([process, name], total[Tally(name, "shape_violations")])
    for _, contract in state.contracts:
        for process in contract.processes:
            disagree.add_metric([process, contract.name], len(contract.disagreements_of(process)))
    yield from (checks, violations, disagree)


def _warnings(state: State, alarms: Alarms, settings: Settings) -> Iterator[Metric]:
    threshold = GaugeMetricFamily(
        "ullage_warning_threshold_ratio",
        "Share of a capacity from which a warning is raised.",
        labels=_BUFFER,
    )
    for life, buffer in _watched(state):
        if buffer.kind is not Kind.FIXED:
            threshold.add_metric([life.process, buffer.name], settings.ratio_of(buffer))
    active = GaugeMetricFamily("ullage_warning_active", "1 for each warning that is active.", labels=_WARNING)
    for key, warning in sorted(alarms.active.items()):
        active.add_metric([*key, warning.severity], 1)
    raised = CounterMetricFamily("ullage_warnings_raised", "Warnings raised so far.", labels=_WARNING)
    for (key, severity), count in sorted(alarms.raised.items()):
        raised.add_metric([*key, severity], count)
    yield from (threshold, active, raised)


def _hook(state: State, left_out: dict[str, int]) -> Iterator[Metric]:
    status = StateSetMetricFamily(
        "ullage_probe_status", "Whether a hook point is watched.", labels=["process", "probe"]
    )
    calls = CounterMetricFamily("ullage_probe_calls", "Calls that a probe looked at.", labels=["process", "probe"])
    errors = CounterMetricFamily("ullage_hook_errors", "Errors in the hook; none reached its host.", labels=["process"])
    dropped = CounterMetricFamily(
        "ullage_records_dropped", "Records that did not fit into a segment.", labels=["process", "reason"]
    )
    for life in state.shown:
        words = life.snapshot.process
        for probe in life.snapshot.probes:
            labels = [life.process, probe.name]
            status.add_metric(labels, {name.name.lower(): name is probe.status for name in _PROBE_STATES})
            calls.add_metric(labels, probe.calls)
        errors.add_metric([life.process], words.hook_errors)
        lapped = max(0, words.events - EVENTS.records)
        over = left_out.get(life.process, 0)
        counts = (words.dropped_buffers, words.dropped_claims, words.dropped_probes, lapped, over)
        for reason, count in zip(_DROPS, counts, strict=True):
            dropped.add_metric([life.process, reason], count)
    yield from (status, calls, errors, dropped)


def _segments(state: State) -> Iterator[Metric]:
    segments = GaugeMetricFamily("ullage_segments", "Files found in the segment directory.", labels=["state"])
    segments.add_metric(["readable"], len(state.lives))
    segments.add_metric(["unreadable"], len(state.unreadable))
    errors = CounterMetricFamily(
        "ullage_segment_read_errors", "Files and records that could not be read.", labels=["reason"]
    )
    for reason, count in sorted({"half_written": 0, "refused": 0, **state.read_errors}.items()):
        errors.add_metric([reason], count)
    yield from (segments, errors)


def _settings(reload: Reload) -> Iterator[Metric]:
    successful = GaugeMetricFamily(
        "ullage_config_last_reload_successful", "Whether the settings, as last read, were right."
    )
    successful.add_metric([], reload.successful)
    when = GaugeMetricFamily(
        "ullage_config_last_reload_success_timestamp_seconds", "When right settings were last read."
    )
    when.add_metric([], reload.at)
    yield from (successful, when)


def _ticks(ticks: Ticks) -> Iterator[Metric]:
    last = GaugeMetricFamily("ullage_last_tick_timestamp_seconds", "When the sidecar last judged the warnings.")
    if ticks.succeeded_at is not None:
        last.add_metric([], ticks.succeeded_at)
    failures = CounterMetricFamily("ullage_tick_failures", "Ticks of the sidecar that failed with an exception.")
    failures.add_metric([], ticks.failures)
    yield from (last, failures)


def _dropped_rows(rows: Rows) -> Metric:
    dropped = CounterMetricFamily(
        "ullage_rows_dropped",
        "Processes, contracts, findings and other rows that could not be judged or rendered.",
        labels=["where"],
    )
    for where, count in sorted(rows.counts.items()):
        dropped.add_metric([where], count)
    return dropped


def _watched(state: State) -> Iterator[tuple[Life, Buffer]]:
    """Yield the buffers that have a present: one that was freed has totals only."""
    for life in state.shown:
        for buffer in life.snapshot.buffers:
            if not (buffer.inventory or buffer.closed):
                yield life, buffer


def _buckets(buffer: Buffer) -> list[tuple[str, float]]:
    total = 0
    buckets = []
    for edge, count in zip(_EDGES, buffer.occupancy, strict=True):
        total += count
        buckets.append((edge, total))
    return [*buckets, ("+Inf", total + buffer.beyond)]
