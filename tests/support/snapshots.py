"""Snapshots as a reader would return them, for what judges them."""

from __future__ import annotations

from collections import Counter

from ullage.segment.layout import MAJOR, MINOR, Kind, Location, Relation, Role
from ullage.segment.snapshot import Buffer, Claim, Process, Snapshot
from ullage_sidecar.discovery import Found
from ullage_sidecar.settings import Settings
from ullage_sidecar.state import History, observe

SECOND = 1_000_000_000
START = 1_000 * SECOND


def buffer(name="rows", *, kind=Kind.HARD, capacity=100, used=0, high_water=None, **fields):
    high_water = used if high_water is None else high_water
    defaults = {
        "unit": "rows",
        "location": Location.HOST,
        "limit": "",
        "nbytes": 0,
        "instances": 1,
        "inventory": False,
        "high_water_ns": START,
        "warn_at": 0,
        "high_water_ratio": high_water / capacity if capacity else None,
        "occupancy": (0,) * 6,
        "beyond": 0,
        "exhaustions": 0,
        "exhausted_first_ns": 0,
        "exhausted_last_ns": 0,
        "deferrals": 0,
        "checks": 0,
        "violations": 0,
        "worst_index": 0,
        "violation_ns": 0,
        "grows": 0,
        "shrinks": 0,
    }
    return Buffer(name=name, kind=kind, capacity=capacity, used=used, high_water=high_water, **(defaults | fields))


def claim(source, columns, role=Role.IS, **fields):
    defaults = {
        "contract": "block_table.width",
        "tally": False,
        "witness": "",
        "dims": ("columns",),
        "relations": (Relation.EQUAL,),
        "dtype": "",
        "unit": "columns",
        "inputs": {},
        "inputs_truncated": False,
        "checks": 0,
        "violations": 0,
        "violation_first_ns": 0,
        "violation_last_ns": 0,
    }
    return Claim(source=source, shape=(columns,), role=role, **(defaults | fields))


def snapshot(
    incarnation="a",
    name="vllm0/core",
    *,
    alive=True,
    engine="e1",
    probes=(),
    buffers=(),
    claims=(),
    events=(),
    half_written=0,
    refused=0,
    **words,
):
    process = Process(**(dict.fromkeys(Process._fields, 0) | {"started_ns": START, "running": -1} | words))
    return Snapshot(
        incarnation=incarnation,
        version=f"{MAJOR}.{MINOR}",
        alive=alive,
        identity={"process": name, "engine_id": engine},
        process=process,
        probes=tuple(probes),
        buffers=tuple(buffers),
        claims=tuple(claims),
        events=tuple(events),
        half_written=half_written,
        refused=refused,
    )


class World:
    """A directory of segments over time, as the sidecar looks at it."""

    def __init__(self, **settings):
        self.settings = Settings(**settings)
        self.history = History()
        self.now_ns = START

    def look(self, *snapshots, unreadable=(), after=1.0):
        """Let ``after`` seconds pass, then look."""
        self.now_ns += int(after * SECOND)
        found = Found(tuple(snapshots), tuple(unreadable))
        state, self.history = observe(found, self.history, self.settings, self.now_ns)
        return state


def shown(state):
    """The condition of each process that is shown."""
    return {life.process: life.condition for life in state.shown}


def exits(state):
    """The exits that were counted."""
    return Counter({key: count for key, count in state.exits.items() if count})
