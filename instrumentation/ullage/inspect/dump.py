"""Prints segments, of living and of dead processes. Standard library only: it must run where nothing else does."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any, TextIO

from ullage.inspect.postmortem import Death, post_mortem
from ullage.segment.layout import SUFFIX, Kind, Phase, ProbeStatus, enum_of
from ullage.segment.reader import UnreadableError, read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ullage.inspect.postmortem import PostMortem
    from ullage.segment.snapshot import Claim, Snapshot

    Findings = Mapping[str, Sequence[str]]
    Explain = Callable[[Sequence[Claim]], Findings]

NS = 1_000_000_000


def dump(path: Path, out: TextIO, *, as_json: bool = False, explain: Explain | None = None) -> int:
    """Write what the segment at ``path``, or all segments in that directory, say.

    Args:
        path: A segment or a directory.
        out: Where to write.
        as_json: Write JSON, not text.
        explain: Explains the claims of a segment that do not fit: a sentence each, by contract.

    Returns:
        0; 1 if there is no segment, or one cannot be read (the others are written all the same).
    """
    paths = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
    snapshots, errors = [], []
    for one in paths:
        try:
            snapshots.append(read(one))
        except FileNotFoundError:
            errors.append(f"{one}: no such file")
        except UnreadableError as error:
            errors.append(str(error))
    if not paths:
        errors.append(f"{path}: no segment (*{SUFFIX}) here; is ULLAGE_DIR of the engine this directory?")
    died = _post_mortems(snapshots)
    if as_json:
        found = [
            {
                "outcome": None if s.alive else s.outcome(snapshots),
                "post_mortem": plain(died.get(s.incarnation)),
                "findings": plain(_findings(s, explain)) if explain is not None else None,
                **plain(s),
            }
            for s in snapshots
        ]
        document = {"segments": found, "errors": errors}
        json.dump(document, out, indent=2)
        out.write("\n")
    else:
        for snapshot in snapshots:
            findings = _findings(snapshot, explain)
            out.writelines(f"{line}\n" for line in _lines(snapshot, snapshots, findings))
            if snapshot.incarnation in died:
                out.writelines(f"{line}\n" for line in _death(died[snapshot.incarnation]))
        out.writelines(f"cannot read {error}\n" for error in errors)
    return 1 if errors else 0


def plain(value: Any) -> Any:
    """Return a snapshot, or a part of one, as JSON knows it: enums by name, tuples as lists."""
    if isinstance(value, Enum):
        return value.name.lower()
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def _findings(snapshot: Snapshot, explain: Explain | None) -> Findings | None:
    """Return the explanations of a segment; None if ``explain`` fails: the numbers are shown anyway."""
    try:
        return explain(snapshot.claims) if explain is not None else {}
    except Exception:
        return None


def _lines(snapshot: Snapshot, everybody: list[Snapshot], findings: Findings | None) -> Iterator[str]:
    process, identity = snapshot.process, snapshot.identity
    condition = "running" if snapshot.alive else snapshot.outcome(everybody)
    yield f"{snapshot.name}  {condition}  incarnation {snapshot.incarnation}"
    yield f"  {_known(identity, 'engine', 'engine_version', 'model_name')}, hook {identity.get('hook_version', '?')}"
    yield (
        f"  pid {process.pid}, started {_date(process.started_ns)}, {process.steps} steps, "
        f"last {_date(process.step_ns)}, {process.hook_errors} hook errors"
    )
    yield from _breadcrumb(snapshot)
    for what, ns in (("stop declared", process.stop_ns), ("failure noted", process.failure_ns)):
        if ns:
            yield f"  {what} {_date(ns)}"
    buffers = [buffer for buffer in snapshot.buffers if not buffer.inventory]
    header = (
        "buffer",
        "unit",
        "kind",
        "used",
        "high water",
        "capacity",
        "high water %",
        "exhausted",
        "violations",
    )
    rows = [
        (
            f"{buffer.name} (closed)" if buffer.closed else buffer.name,
            buffer.unit,
            buffer.kind.name.lower(),
            str(buffer.used),
            str(buffer.high_water),
            str(buffer.capacity),
            "-" if buffer.high_water_ratio is None or buffer.kind is Kind.FIXED else f"{buffer.high_water_ratio:.1%}",
            str(buffer.exhaustions),
            str(buffer.out_of_bounds),
        )
        for buffer in buffers
    ]
    yield from _table([header, *rows] if rows else [])
    held = [buffer for buffer in snapshot.buffers if buffer.inventory]
    if held:
        yield f"  inventory: {sum(buffer.instances for buffer in held)} buffers, {sum(b.nbytes for b in held)} bytes"
    for contract in dict.fromkeys(claim.contract for claim in snapshot.claims):
        yield from (_claim(claim) for claim in snapshot.claims if claim.contract == contract)
        yield from (f"    {sentence}" for sentence in (findings or {}).get(contract, ()))
    if findings is None:
        yield "  no explanation of these claims: it failed"
    for probe in snapshot.probes:
        if probe.status is not ProbeStatus.INSTALLED:
            yield f"  probe {probe.name}: {probe.status.name.lower()}, {probe.detail}"
    for event in snapshot.events:
        numbers = " ".join(map(str, event.numbers)).removesuffix(" 0 0")
        what = f"{event.kind.name.lower()} {event.subject}"
        yield f"  {_date(event.time_ns)}  {what} x{event.count}  {numbers} {event.detail}"
    if snapshot.half_written:
        yield f"  {snapshot.half_written} records half written, left out"


def _claim(claim: Claim) -> str:
    """What a contract has counted, or what one source states."""
    if claim.tally:
        return f"  contract {claim.contract}: {claim.checks} checks, {claim.violations} violations"
    shape = ", ".join("any" if size is None else str(size) for size in claim.shape)
    inputs = " ".join(f"{name}={value}" for name, value in claim.inputs.items())
    more = " ..." if claim.inputs_truncated else ""
    when = "violated: " if claim.witness else ""
    stated = f"{claim.source} {claim.role.name.lower()} ({shape}) {inputs}{more}"
    return f"  {claim.contract}: {when}{stated}".rstrip()


def _post_mortems(snapshots: Sequence[Snapshot]) -> dict[str, PostMortem]:
    """Return what is known of each death, by incarnation. Nobody saw them: the order is that of the last signs."""
    dead = [Death(s.name, s, s.outcome(snapshots)) for s in snapshots if not s.alive]
    found = {}
    for death in dead:
        own = death.snapshot
        engine = [one for one in dead if one.snapshot.engine_id == own.engine_id]
        older = [s for s in snapshots if s.name == own.name and s.process.started_ns < own.process.started_ns]
        before = max(older, key=lambda s: s.process.started_ns, default=None)
        found[own.incarnation] = post_mortem(death, engine, before)
    return found


def _death(found: PostMortem) -> Iterator[str]:
    """What the other lines about a dead process do not say."""
    if len(found.order) > 1:
        yield "  died in this order: " + ", ".join(f"{died.process} ({died.outcome})" for died in found.order)
    for full in found.nearest:
        yield f"  {full.buffer} was at most {full.ratio:.1%} full: {full.high_water} of {full.capacity} {full.unit}"
    for change in found.changed:
        yield f"  {change.what} was {change.before} in the incarnation before, now {change.now}"


def _breadcrumb(snapshot: Snapshot) -> Iterator[str]:
    """Where the process is, or was when it died."""
    process = snapshot.process
    phase = enum_of(Phase, process.phase)
    where = ("inside" if snapshot.alive else "died inside") + (" a step" if process.step_begin_ns else "")
    if phase is not Phase.NONE:
        where += f"{', in' if process.step_begin_ns else ''} {phase.name.lower()}"
    if process.step_begin_ns:
        batch = f"{process.batch_requests} requests, {process.batch_tokens} tokens"
        yield f"  {where}: {batch}, begun {_date(process.step_begin_ns)}"
    elif phase is not Phase.NONE:
        yield f"  {where}"


def _table(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _known(identity: dict[str, Any], *names: str) -> str:
    return " ".join(str(identity[name]) for name in names if identity.get(name)) or "unknown"


def _date(ns: int) -> str:
    return datetime.fromtimestamp(ns / NS, timezone.utc).isoformat(timespec="milliseconds") if ns else "never"
