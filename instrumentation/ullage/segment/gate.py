"""The gate: makes typed values of what a segment holds, and refuses what no hook writes.

What comes out needs no further check: text is printable and bounded, names are not empty, numbers fit 64 bits;
counters, sizes and dates are not negative; inputs are finite JSON scalars. Any process can write a file into the
directory, so nothing in it is believed before it has passed here.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, TypeVar

from ullage.segment import layout
from ullage.segment.layout import (
    BufferPayload,
    ClaimPayload,
    EventKind,
    EventPayload,
    Kind,
    Location,
    P,
    ProbePayload,
    ProbeStatus,
    Relation,
    Role,
    enum_of,
)
from ullage.segment.snapshot import Buffer, Claim, Event, Probe, Process, Scalar
from ullage.segment.text import clean, decode

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    Words = Sequence[int]
    Record = tuple[int, Words, bytes]  # sequence number, plain words, payload

IDENTITY_TEXT_MAX = 200
"""Characters of a value of the identity."""
MAX_INTEGER = 2**63 - 1
_TEXT = frozenset(
    [
        "process",
        "role",
        "engine",
        "engine_version",
        "engine_name",
        "engine_id",
        "model_name",
        "hook_version",
        "python",
        "directory",
        "hook_path",
        "pythonpath",
        "plugin_variables",
    ]
)
_INTEGERS = frozenset(f"{axis}_{what}" for axis in ("tp", "pp", "dp") for what in ("rank", "size"))
_RUNNING = int(P.RUNNING)
_Row = TypeVar("_Row")


class RefusedError(ValueError):
    """A record or a file with values that no hook writes. ``reason`` is a bounded word, fit for a label."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def admitted(
    records: Iterable[Record], make: Callable[[Record], _Row], key: Callable[[_Row], Hashable]
) -> tuple[tuple[_Row, ...], int]:
    """Return a row for each valid record, and how many records were refused.

    Of two rows with one ``key`` the later written one stays: a reader can catch a record that has just moved. A ``key``
    of None is not compared.
    """
    rows: dict[Hashable, tuple[int, _Row]] = {}
    refused = 0
    for position, record in enumerate(records):
        try:
            row = make(record)
        except (RefusedError, ValueError):
            refused += 1
            continue
        name = key(row)
        if name is None:
            rows[position] = (record[0], row)
            continue
        known = rows.get((name,))
        if known is not None:
            refused += 1
        if known is None or known[0] < record[0]:
            rows[name,] = (record[0], row)
    return tuple(row for _, row in rows.values()), refused


def process(words: Words) -> Process:
    """Return the plain words of a process.

    Raises:
        RefusedError: A date or a count is negative.
    """
    found = Process(*words[: len(Process._fields)])
    if found.running < -1 or min(found[:_RUNNING]) < 0 or min(found[_RUNNING + 1 :]) < 0:
        raise RefusedError("value", "a date or a count of the process is negative")
    return found


def identity(payload: bytes) -> dict[str, str | int]:
    """Return the identity, by name: text, or integers such as ranks. What is of another type is left out.

    Raises:
        RefusedError: It is no JSON object of scalars, or has no process name of 1 to ``IDENTITY_TEXT_MAX`` characters.
    """
    try:
        said = _object(payload)
    except ValueError as error:
        raise RefusedError("identity", f"the identity cannot be used: {error}") from error
    name = said.get("process")
    if not isinstance(name, str) or not 0 < len(name) <= IDENTITY_TEXT_MAX:
        raise RefusedError("identity", f"the process name must have 1 to {IDENTITY_TEXT_MAX} characters")
    typed: dict[str, str | int] = {}
    for key, value in said.items():
        if isinstance(value, str) and key not in _INTEGERS:
            typed[key] = value[:IDENTITY_TEXT_MAX]
        elif isinstance(value, int) and not isinstance(value, bool) and key not in _TEXT:
            typed[key] = value
    return typed


def scalars(value: object) -> dict[str, Scalar]:
    """Return a JSON object of scalars with its text cleaned.

    Raises:
        ValueError: It is something else, a name is empty, or a number is not finite or does not fit 64 bits.
    """
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004  it is what a file says, not what a caller gave
    if "" in value:
        raise ValueError("a value without a name")
    return {clean(name): scalar(item) for name, item in value.items()}


def scalar(value: object) -> Scalar:
    """Return a JSON scalar with its text cleaned.

    Raises:
        ValueError: It is something else, not finite, or does not fit 64 bits.
    """
    if isinstance(value, str):
        return clean(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ValueError(f"a {type(value).__name__} that is not a finite JSON scalar of at most 64 bits")


def probe(record: Record) -> Probe:
    """Return a probe. Raises RefusedError: it has no name, or a count is negative."""
    _, plain, payload = record
    sealed = ProbePayload.unpack(payload)
    status, calls, errors, cost_ns = plain[:4]
    _counts("probe", calls, errors, cost_ns)
    return Probe(
        _name("probe", sealed.name),
        decode(sealed.detail),
        enum_of(ProbeStatus, status),
        calls,
        errors,
        cost_ns,
    )


def buffer(record: Record) -> Buffer:
    """Return a buffer. Raises RefusedError: it has no name, or a size, count or date is negative."""
    _, plain, payload = record
    sealed = BufferPayload.unpack(payload)
    # In the order of ``layout.B``: to look its names up for each buffer takes as long as all the rest.
    _, capacity, beyond, high_water_ns, exhaustions, exhausted_first_ns, exhausted_last_ns, deferrals = plain[:8]
    checks, violations, worst_index, violation_ns, grows, shrinks, prior_high_water, prior_ratio_ppm = plain[8:16]
    used, high_water, *occupancy, warn_at, _ = plain[16:26]
    if min(plain[1:10]) < 0 or min(plain[11:25]) < 0 or sealed.nbytes < 0:
        raise RefusedError("buffer", "a size, a count or a date of a buffer is negative")
    high_water = max(high_water, used)  # the peak is stored after the value that made it: a reader may see that first
    ratios = [prior_ratio_ppm / 1e6, *([high_water / capacity] if capacity else [])]
    return Buffer(
        name=_name("buffer", sealed.name),
        unit=decode(sealed.unit),
        kind=enum_of(Kind, sealed.kind),
        location=enum_of(Location, sealed.location),
        limit=decode(sealed.limit),
        nbytes=sealed.nbytes,
        instances=sealed.instances,
        inventory=bool(sealed.flags & layout.FLAG_INVENTORY),
        capacity=capacity,
        used=used,
        high_water=max(high_water, prior_high_water),
        high_water_ns=high_water_ns,
        high_water_ratio=max(ratios) if capacity or ratios[0] else None,
        warn_at=warn_at,
        occupancy=tuple(occupancy),
        beyond=beyond,
        exhaustions=exhaustions,
        exhausted_first_ns=exhausted_first_ns,
        exhausted_last_ns=exhausted_last_ns,
        deferrals=deferrals,
        checks=checks,
        violations=violations,
        worst_index=worst_index,
        violation_ns=violation_ns,
        grows=grows,
        shrinks=shrinks,
        closed=bool(sealed.flags & layout.FLAG_CLOSED),
        histogram=bool(sealed.flags & layout.FLAG_HISTOGRAM),
    )


_WITNESSES = {layout.FLAG_PROVIDED: "provided", layout.FLAG_REQUIRED: "required"}


def claim(record: Record) -> Claim:
    """Return a claim.

    Raises:
        RefusedError, ValueError: A name is missing, a size or a count is negative, or an input is no finite scalar.
    """
    _, plain, payload = record
    sealed = ClaimPayload.unpack(payload)
    checks, violations, first_ns, last_ns = plain[:4]
    _counts("claim", *plain[:4])
    if min(sealed.shape, default=0) < layout.NO_SIZE:
        raise RefusedError("claim", "a size of a claim is negative")
    tally = bool(sealed.flags & layout.FLAG_TALLY)
    witness = next((side for flag, side in _WITNESSES.items() if sealed.flags & flag), "")
    return Claim(
        contract=_name("contract", sealed.contract),
        source=decode(sealed.source) if tally or witness else _name("source", sealed.source),
        tally=tally,
        witness=witness,
        dims=tuple(filter(None, decode(sealed.dims).split(","))),
        role=enum_of(Role, sealed.role),
        shape=tuple(None if size == layout.NO_SIZE else size for size in sealed.shape),
        relations=tuple(enum_of(Relation, code) for code in sealed.relations.rstrip(b"\0")),
        dtype=decode(sealed.dtype),
        unit=decode(sealed.unit),
        inputs=_object(sealed.inputs) if sealed.inputs.rstrip(b"\0") else {},
        inputs_truncated=bool(sealed.flags & layout.FLAG_INPUTS_TRUNCATED),
        checks=checks,
        violations=violations,
        violation_first_ns=first_ns,
        violation_last_ns=last_ns,
    )


def event(record: Record) -> Event:
    """Return an event. Raises RefusedError: its date or count is negative."""
    number, _, payload = record
    sealed = EventPayload.unpack(payload)
    _counts("event", number, sealed.time_ns, sealed.total)
    return Event(
        number=number,
        time_ns=sealed.time_ns,
        kind=enum_of(EventKind, sealed.kind),
        subject=decode(sealed.subject),
        count=sealed.total,
        numbers=sealed.numbers,
        detail=decode(sealed.detail),
    )


def _name(what: str, field: bytes) -> str:
    name = decode(field)
    if not name:
        raise RefusedError("name", f"a {what} without a name")
    return name


def _counts(what: str, *numbers: int) -> None:
    if min(numbers) < 0:
        raise RefusedError(what, f"a count or a date of a {what} is negative")


def _object(field: bytes) -> dict[str, Scalar]:
    """Read a JSON object of scalars. Raises ValueError: it is something else."""
    try:
        return scalars(json.loads(field.rstrip(b"\0")))
    except RecursionError as error:
        raise ValueError("nested too deep") from error
