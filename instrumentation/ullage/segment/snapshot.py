"""What a segment says, as frozen values. The gate makes them: they need no further check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from ullage.segment import agreement
from ullage.segment.layout import Kind, Relation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ullage.segment.layout import EventKind, Location, ProbeStatus, Role

Outcome = Literal["stopped", "crashed", "killed"]
Scalar = str | int | float | bool | None
UNKNOWN = "unknown"
"""Name of a process whose identity was caught half-written."""


class Process(NamedTuple):
    """The plain words of a process, in the order of ``layout.P``. Times in ns since the epoch, 0 for never."""

    pid: int
    started_ns: int
    steps: int
    step_ns: int
    running: int
    stop_ns: int
    failure_ns: int
    exception_ns: int
    hook_errors: int
    dropped_buffers: int
    dropped_claims: int
    dropped_probes: int
    events: int
    disabled_ns: int
    step_begin_ns: int
    phase: int
    batch_tokens: int
    batch_requests: int


@dataclass(frozen=True)
class Probe:
    """One hook point: status, how often it was called, errors of ours in it, and what it cost in ns, estimated."""

    name: str
    detail: str
    status: ProbeStatus
    calls: int
    errors: int
    cost_ns: int


class Buffer(NamedTuple):
    """One buffer. Sizes in ``unit``; ``occupancy`` counts observations per step of ``OCCUPANCY_STEPS``.

    ``high_water_ratio`` is the highest share of the capacity ever, each at the capacity then in force; None
    where the capacity is 0. ``warn_at`` is the use from which a warning is due, if that is later than the usual
    share of the capacity: the stated worst case; 0 for none. ``closed``: the buffer was freed; its record
    stays because of what it counted, and says nothing about the present. ``histogram``: its writer asked for a
    histogram of the occupancy.
    """

    name: str
    unit: str
    kind: Kind
    location: Location
    limit: str
    nbytes: int
    instances: int
    inventory: bool
    capacity: int
    used: int
    high_water: int
    high_water_ns: int
    high_water_ratio: float | None
    warn_at: int
    occupancy: tuple[int, ...]
    beyond: int
    exhaustions: int
    exhausted_first_ns: int
    exhausted_last_ns: int
    deferrals: int
    checks: int
    violations: int
    worst_index: int
    violation_ns: int
    grows: int
    shrinks: int
    closed: bool = False
    histogram: bool = False

    @property
    def observations(self) -> int:
        """How often the buffer was observed."""
        return sum(self.occupancy) + self.beyond

    @property
    def ratio(self) -> float | None:
        """Share of the capacity in use; None where the capacity is 0."""
        return self.used / self.capacity if self.capacity else None

    @property
    def out_of_bounds(self) -> int:
        """Bounds violations; for a buffer whose overflow is damage, observations beyond it are among them."""
        return self.violations + (0 if self.kind is Kind.MANAGED else self.beyond)

    @property
    def bounds_checks(self) -> int:
        """Checks of a bound; for a buffer whose overflow is damage, every observation is one."""
        return self.checks + (0 if self.kind is Kind.MANAGED else self.observations)


@dataclass(frozen=True)
class Claim:
    """What one source says of a size. ``None`` in ``shape`` is not compared; ``inputs`` as recorded.

    ``tally``: it is no claim, but the counts of its contract's checks and violations in this process. ``witness``: it
    does not stand; it is what was ``provided`` or ``required`` when the contract was violated; empty for other claims.
    """

    contract: str
    source: str
    tally: bool
    witness: str
    dims: tuple[str, ...]
    role: Role
    shape: tuple[int | None, ...]
    relations: tuple[Relation, ...]
    dtype: str
    unit: str
    inputs: dict[str, Scalar]
    inputs_truncated: bool
    checks: int
    violations: int
    violation_first_ns: int
    violation_last_ns: int

    @property
    def relation_signs(self) -> tuple[str, ...]:
        """``==`` or ``>=`` for each dimension; an unknown relation counts as the strict one."""
        at_least = Relation.AT_LEAST
        return tuple(agreement.AT_LEAST if one is at_least else agreement.EQUAL for one in self.relations)

    def stated(self, process: str = "") -> agreement.Claim:
        """Return what ``process`` states with it, for a comparison with other claims."""
        role = self.role.name.lower()
        return agreement.Claim(self.source, role, self.shape, self.inputs, self.dtype, process)


@dataclass(frozen=True)
class Event:
    """One dated record. ``count`` is how often this happened to ``subject`` by then."""

    number: int
    time_ns: int
    kind: EventKind
    subject: str
    count: int
    numbers: tuple[int, int, int, int]
    detail: str


@dataclass(frozen=True)
class Snapshot:
    """All that one segment said at one moment.

    ``half_written`` counts records caught in the middle of a write (or left so by a death) and skipped; ``refused``
    those with values that no hook writes, likewise skipped.
    """

    incarnation: str
    version: str
    alive: bool
    identity: dict[str, str | int]
    process: Process
    probes: tuple[Probe, ...]
    buffers: tuple[Buffer, ...]
    claims: tuple[Claim, ...]
    events: tuple[Event, ...]
    half_written: int
    refused: int = 0

    @property
    def name(self) -> str:
        """The process name, unique within the pod up to a second living process of the same name."""
        return str(self.identity["process"])

    @property
    def engine_id(self) -> str:
        """What the processes of one engine share."""
        return str(self.identity.get("engine_id", ""))

    @property
    def last_sign_ns(self) -> int:
        """The latest thing that the process is known to have done, in ns since the epoch."""
        process = self.process
        return max(process.started_ns, process.step_ns, process.exception_ns, process.stop_ns, process.failure_ns)

    def outcome(self, others: Iterable[Snapshot] = ()) -> Outcome:
        """Tell how this process, if it is dead, ended.

        ``stopped``: it, or one of ``others`` of its engine, declared a shutdown that no failure started.
        ``crashed``: an exception of the host is later than its last step, or it noted a failure. Else ``killed``.
        """
        process = self.process
        if process.stop_ns:
            return "stopped"
        if process.failure_ns or process.exception_ns > process.step_ns:
            return "crashed"
        declared = any(
            other.engine_id == self.engine_id and other.process.stop_ns > process.started_ns for other in others
        )
        return "stopped" if declared else "killed"
