"""What the reader promises of a snapshot that it returns: everything behind it relies on this, and checks nothing."""

from __future__ import annotations

import math

from ullage.segment.layout import Kind, Location, ProbeStatus, Relation, Role
from ullage.segment.snapshot import Buffer, Event

IDENTITY_MAX = 200
TOP = 2**63
NEGATIVE_TOO = {"running", "worst_index"}  # -1 running: not known; an index below 0 is out of bounds, too
COUNTS = {
    kind: [field for field, of in kind.__annotations__.items() if getattr(of, "__forward_arg__", of) == "int"]
    for kind in (Buffer, Event)
}


def broken(snapshot):
    """Yield the promises that ``snapshot`` breaks; nothing for one that everything may rely on."""
    yield from _process(snapshot)
    yield from _probes(snapshot.probes)
    yield from _buffers(snapshot.buffers)
    yield from _claims(snapshot.claims)
    yield from _events(snapshot.events)


def _process(snapshot):
    if not snapshot.identity.get("process"):
        yield f"no process name: {snapshot.identity}"
    for key, value in snapshot.identity.items():
        yield from _named("key of the identity", key)
        if type(value) is str:
            yield from _text("identity", value, IDENTITY_MAX)
        elif not _fits(value, -TOP):
            yield f"identity: {key}={value!r}"
    yield from _counts("process", snapshot.process._asdict())
    yield from _counts("snapshot", {"half_written": snapshot.half_written, "refused": snapshot.refused})


def _probes(probes):
    for probe in probes:
        yield from _named("probe", probe.name)
        yield from _text("detail of a probe", probe.detail)
        if not isinstance(probe.status, ProbeStatus):
            yield f"status of a probe: {probe.status!r}"
        yield from _counts("probe", {field: getattr(probe, field) for field in ("calls", "errors", "cost_ns")})
    yield from _unique("probe", [probe.name for probe in probes])


def _buffers(buffers):
    for buffer in buffers:
        yield from _named("buffer", buffer.name)
        yield from _text("unit", buffer.unit)
        yield from _text("limit", buffer.limit)
        if not (isinstance(buffer.kind, Kind) and isinstance(buffer.location, Location)):
            yield f"kind or location: {buffer}"
        yield from _counts("buffer", {field: getattr(buffer, field) for field in COUNTS[Buffer]})
        if not all(map(_fits, buffer.occupancy)):
            yield f"occupancy: {buffer.occupancy}"
        ratio = buffer.high_water_ratio
        if not (ratio is None or (type(ratio) is float and 0 <= ratio < math.inf)):
            yield f"high_water_ratio: {ratio!r}"
    yield from _unique("buffer", [buffer.name for buffer in buffers if not buffer.inventory])


def _claims(claims):
    for claim in claims:
        yield from _named("contract", claim.contract)
        for dim in claim.dims:
            yield from _named("dimension", dim)
        for field in ("source", "dtype", "unit", "witness"):
            yield from _text(field, getattr(claim, field))
        if not (isinstance(claim.role, Role) and all(isinstance(one, Relation) for one in claim.relations)):
            yield f"role or relations: {claim}"
        if not all(size is None or _fits(size) for size in claim.shape):
            yield f"shape: {claim.shape}"
        counts = ("checks", "violations", "violation_first_ns", "violation_last_ns")
        yield from _counts("claim", {field: getattr(claim, field) for field in counts})
        for key, value in claim.inputs.items():
            yield from _named("key of the inputs", key)
            yield from _text("inputs", value) if type(value) is str else _scalar("inputs", value)


def _events(events):
    for event in events:
        yield from _text("subject", event.subject)
        yield from _text("detail of an event", event.detail)
        yield from _counts("event", {field: getattr(event, field) for field in COUNTS[Event]})
        if not all(_fits(number, -TOP) for number in event.numbers):
            yield f"numbers of an event: {event.numbers}"


def _fits(value, lowest=0):
    return type(value) is int and lowest <= value < TOP


def _counts(what, fields):
    for field, value in fields.items():
        if not _fits(value, -TOP if field in NEGATIVE_TOO else 0):
            yield f"{what}: {field}={value!r}"


def _scalar(what, value):
    """Check a scalar of JSON that is no text."""
    if value is None or type(value) is bool or _fits(value, -TOP):
        return
    if not (type(value) is float and math.isfinite(value)):
        yield f"{what}: {value!r}"


def _named(what, value):
    if value:
        yield from _text(what, value)
    else:
        yield f"{what} without a name: {value!r}"


def _text(what, value, most=TOP):
    if not (type(value) is str and value.isprintable() and len(value) <= most):
        yield f"{what}: {value!r}"


def _unique(what, names):
    if len(set(names)) < len(names):
        yield f"{what} twice: {sorted(name for name in names if names.count(name) > 1)}"
