"""A pod in which everything has happened that the metrics can tell, scraped from the real collector."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry
from snapshots import SECOND, START, World, buffer, claim, snapshot

from ullage.segment.layout import Kind, ProbeStatus, Role
from ullage.segment.snapshot import Probe
from ullage_sidecar.alarms import Alarms, evaluate
from ullage_sidecar.discovery import Unreadable
from ullage_sidecar.health import Ticks
from ullage_sidecar.metrics import Collector, Reload
from ullage_sidecar.rows import Rows

IDENTITY = {
    "engine": "vllm",
    "engine_version": "0.32.0",
    "model_name": "llama",
    "role": "worker",
    "tp_rank": 0,
    "pp_rank": 0,
    "dp_rank": 0,
    "hook_version": "0.1.0",
}


def _process(name, *, probes=(), claims=(), **known):
    found = snapshot(name, name, **known)
    return replace(found, identity=found.identity | IDENTITY, probes=tuple(probes), claims=tuple(claims))


def _segments(now_ns):
    full = {"step_ns": now_ns, "steps": 9, "running": 2}
    core = _process(
        "vllm0/core",
        buffers=[
            buffer(
                "kv_blocks", kind=Kind.MANAGED, unit="blocks", used=100, exhaustions=now_ns // SECOND, histogram=True
            )
        ],
        claims=[claim("core", 64, Role.PROVIDES)],
        **full,
    )
    worker = _process(
        "vllm0/worker-tp0",
        buffers=[
            buffer("draft_rows", used=95, occupancy=(6, 5, 4, 3, 2, 1), limit="max_rows"),
            buffer("arena", unit="bytes", used=3, grows=9, shrinks=9),
            buffer("spilled_rows", used=101, beyond=2),
            buffer("input_ids", inventory=True, nbytes=4096),
        ],
        probes=[Probe(f"Runner.{status.name.lower()}", "", status, 5, 0, 0) for status in ProbeStatus],
        claims=[
            claim("worker", 65, Role.REQUIRES),
            claim("", 0, tally=True, checks=7, violations=2, violation_first_ns=START),
        ],
        hook_errors=3,
        dropped_buffers=1,
        **full,
    )
    return (
        core,
        worker,
        _process("vllm0/stuck", **(full | {"step_ns": START})),
        _process("vllm0/dead", alive=False),
        _process("vllm0/lost", alive=False, steps=now_ns // SECOND),
    )


def everything():
    """Return every family of the metrics, with samples of every reason, state and kind."""
    world, alarms = World(exhaustion_hold=1, clear_hold=10), Alarms()
    unreadable = [Unreadable("x.ullage", "magic", "x.ullage: not a segment")]
    for _ in range(35):
        state = world.look(*_segments(world.now_ns), unreadable=unreadable)
        alarms, _ = evaluate(alarms, state, world.settings)
    rows = Rows()
    rows.each("finding", ["one that cannot be rendered"], int, key=str)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(
        Collector(lambda: (state, alarms, world.settings, Reload(successful=False, at=1.0), Ticks(2.0, 3)), rows)
    )
    return list(registry.collect())


def samples():
    """Return every sample: (name, labels, value)."""
    return [(s.name, s.labels, float(s.value)) for family in everything() for s in family.samples]
