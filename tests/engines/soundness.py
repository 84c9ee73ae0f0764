"""What holds of every healthy engine, whatever its configuration: no error of ours, and nothing found."""

from __future__ import annotations

from ullage.segment.layout import ProbeStatus
from ullage_sidecar.settings import load
from ullage_sidecar.watch import Watch

NORMAL = {"RESIZE", "EXHAUSTION", "STOP", "PROBE_DISABLED"}


class Sight:
    """What the sidecar sees in a directory of segments, at one moment after another."""

    def __init__(self, directory):
        self._watch = Watch(lambda: load(environment={}, dir=directory))

    def look(self):
        """Judge once more, and return the present moment."""
        self._watch.tick()
        return Moment(self._watch.look(events=True), self._watch.alarms.active.values())


class Moment:
    """What the segments said, and what the sidecar made of it.

    Attributes:
        states: The state of each process that is shown.
        living: The snapshots of living processes by the name that is served.
        engines: Engine ids, by the name of a process.
        problems: One line for each thing that must not be, of any process that is listed.
    """

    def __init__(self, state, warnings):
        self.states = {life.process: life.condition for life in state.shown}
        self.living = {life.process: life.snapshot for life in state.shown if life.ending is None}
        self.engines = {life.process: life.snapshot.engine_id for life in state.shown}
        self.snapshots = [life.snapshot for life in state.lives]
        self.problems = [problem for life in state.lives for problem in _of_process(life)]
        for _, contract in state.contracts:
            for found in contract.disagreements:
                sides = [
                    f"{side.process} {side.source} {list(side.shape)}" for side in (found.provider, found.requirement)
                ]
                self.problems.append(f"{contract.name}: {sides[0]} and {sides[1]} disagree")
        self.problems += [
            f"warning {warning.key.reason}: {warning.key.process} {warning.key.buffer}{warning.key.contract}"
            for warning in warnings
            if not self._is_true(warning)
        ]

    def capacities(self, process):
        """Return the capacity of each buffer of a process; nothing if it does not live."""
        return {buffer.name: buffer.capacity for buffer in self.buffers(process).values()}

    def buffers(self, process):
        """Return the buffers that a process has, without its inventory; none if it does not live."""
        buffers = self.living[process].buffers if process in self.living else ()
        return {buffer.name: buffer for buffer in buffers if not buffer.inventory and not buffer.closed}

    def claims(self, process):
        """Return the shapes that a process claims, by (contract, source); none if it does not live."""
        claims = self.living[process].claims if process in self.living else ()
        return {(one.contract, one.source): one.shape for one in claims if not one.tally and not one.witness}

    def total(self, buffer, fact):
        """Return the sum of a fact about a buffer over all processes, dead ones too."""
        return sum(getattr(one, fact) for seen in self.snapshots for one in seen.buffers if one.name == buffer)

    def _is_true(self, warning):
        key = warning.key
        if key.reason == "near_capacity":
            buffer = self.buffers(key.process).get(key.buffer)
            return warning.severity == "info" and (buffer is None or buffer.high_water_ratio >= 0.9)
        if key.reason == "probe_disabled" and key.process in self.living:
            # On a busy machine a probe may be too slow; one that raised is a hook error as well.
            probes = self.living[key.process].probes
            return not any(probe.errors for probe in probes if probe.status is ProbeStatus.DISABLED)
        return False


def _of_process(life):
    snapshot = life.snapshot
    if snapshot.process.hook_errors:
        yield f"{life.process}: {snapshot.process.hook_errors} hook errors"
    for buffer in snapshot.buffers:
        if buffer.out_of_bounds:
            yield f"{life.process} {buffer.name}: {buffer.out_of_bounds} bounds violations"
        if not buffer.closed and not buffer.inventory and not 0 <= buffer.used <= buffer.capacity:
            yield f"{life.process} {buffer.name}: {buffer.used} of {buffer.capacity} in use"
    for claim in snapshot.claims:
        if claim.violations:
            yield f"{life.process} {claim.contract} {claim.source}: {claim.violations} shape violations"
    for event in snapshot.events:
        if event.kind.name not in NORMAL:
            yield f"{life.process}: {event.kind.name} of {event.subject} {event.detail}"
