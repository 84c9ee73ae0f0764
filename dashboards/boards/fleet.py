"""Fleet: many pods at once; which of them needs somebody now."""

from __future__ import annotations

from boards import promql as q
from boards.frame import Section, board, link_to
from boards.panels import (
    ANY_ALARMS,
    ANY_WARNS,
    BLUE,
    DEEP_BLUE,
    FULLNESS,
    ORANGE,
    PROBES,
    SEVERITIES,
    STATES,
    VERMILLION,
    Column,
    Query,
    bands,
    lines,
    numbers,
    rows,
)

TOP = 20

_PLACE = {
    "process": Column("process", width=140, link=link_to("process", pod="pod", process="process")),
    "pod": Column("pod"),
    "instance": Column("instance", width=145),
}
_NEAREST = {
    "buffer": Column("buffer", link=link_to("buffer", buffer="buffer")),
    "kind": Column("kind", width=85),
    "Value": Column("of capacity", "percentunit", 130, FULLNESS, gauge=True),
    **_PLACE,
}

_DEATHS = q.process("ullage_process_exits_total", 'cause="primary", outcome!="stopped"')
_DISAGREEMENTS = q.of_model(q.process("ullage_contract_disagreements"))
_SHAPES = q.of_model(q.process("ullage_shape_violations_total"))
_BOUNDS = q.of_model(q.buffer("ullage_bounds_violations_total"))
_NOT_RUNNING = q.process("ullage_process_state", 'ullage_process_state!="running"')
_PROBES = q.process("ullage_probe_status", 'ullage_probe_status=~"disabled|changed"')

AT_A_GLANCE = Section(
    "At a glance",
    [
        numbers(
            "Pods",
            "Sidecars that answer. Fewer than the pods you run: a pod has no sidecar, or Prometheus does not reach it.",
            Query(f"count({q.target('ullage_build_info')})"),
            unit="none",
            width=2,
        ),
        numbers(
            "Processes by state",
            "Every process counts once, by how it is or how it ended. Stalled: it has running requests and makes no "
            "step.",
            Query(
                f"sum by (ullage_process_state) ({q.of_model(q.process('ullage_process_state'))})",
                "{{ullage_process_state}}",
            ),
            unit="none",
            width=9,
            colours=STATES,
        ),
        numbers(
            "Active warnings",
            "What the sidecars find wrong now, by severity. The process dashboard lists them.",
            Query(f"count by (severity) ({q.warnings()})", "{{severity}}"),
            unit="none",
            width=4,
            none="none",
            colours=SEVERITIES,
        ),
        numbers(
            "Disagreements",
            "Contracts with claims that do not fit each other, each counted once per pod. Known before any traffic.",
            Query(f"count(max by ({q.TARGET}, contract) ({_DISAGREEMENTS}) > 0)"),
            unit="none",
            width=3,
            steps=ANY_WARNS,
        ),
        numbers(
            "Violations",
            "Indices out of bounds, and tensors that broke a contract, so far. Any of them may have damaged memory.",
            Query(f"sum({_BOUNDS})", "bounds"),
            Query(f"sum({_SHAPES})", "shape"),
            unit="none",
            width=4,
            steps=ANY_ALARMS,
        ),
        numbers(
            "Deaths",
            "Engines that were killed or crashed, as the sidecars have counted; one for each engine, not for each "
            "process.",
            Query(f"sum({q.of_model(_DEATHS)})"),
            unit="none",
            width=2,
            steps=ANY_ALARMS,
        ),
    ],
)

SATURATION = Section(
    "Nearest to full",
    [
        rows(
            f"Nearest to full now: top {TOP}",
            "What the last observation of a living process needed, as a share of the capacity. Full is normal for "
            "kind managed (the engine applies back-pressure), and damage for kind hard.",
            Query(f"topk({TOP}, {q.with_info(q.living(q.of_model(q.usage())), 'kind')})"),
            columns=_NEAREST,
            sort="of capacity",
            height=10,
        ),
        rows(
            f"Nearest to full ever: top {TOP}",
            "The highest share that any observation of this process needed. Above 100 %: it was out of bounds.",
            Query(f"topk({TOP}, {q.with_info(q.of_model(q.buffer('ullage_buffer_high_water_ratio')), 'kind')})"),
            columns=_NEAREST,
            sort="of capacity",
            height=10,
        ),
        bands(
            "Fullest of each buffer, against its warning threshold",
            "For each buffer name the pod that is nearest to full. At 100 % of the threshold its sidecar warns; the "
            "threshold is the sidecar's own setting, usually 90 % of the capacity.",
            Query(
                f"max by (buffer) ({q.living(q.of_model(q.usage()))} / on ({q.BUFFER}) {q.threshold()})", "{{buffer}}"
            ),
            unit="percentunit",
            steps=((None, BLUE), (0.8, ORANGE), (1, VERMILLION)),
        ),
        lines(
            "Exhaustions",
            "Running requests preempted and allocations that failed, per second. A few are back-pressure; if they go "
            "on, the pods have too little room for their load.",
            Query(
                f"sum by (buffer) ({q.of_model(q.rate(q.buffer('ullage_buffer_exhaustions_total')))}) > 0", "{{buffer}}"
            ),
            unit="eps",
            by_initial=True,
        ),
    ],
)

CORRECTNESS = Section(
    "Correctness",
    [
        rows(
            "Contracts",
            "Pods: where claims on this size do not fit each other. Violations: tensors that broke it. A disagreement "
            "without violations is a bug that no batch has met yet.",
            Query(
                f"sum by (contract) (max by ({q.TARGET}, contract) ({_DISAGREEMENTS}) > bool 0)",
            ),
            Query(f"sum by (contract) ({_SHAPES}) or sum by (contract) ({_DISAGREEMENTS}) * 0"),
            columns={
                "contract": Column("contract"),
                "Value #A": Column("pods that disagree", width=160, steps=ANY_WARNS),
                "Value #B": Column("violations", width=110, steps=ANY_ALARMS),
            },
            sort="pods that disagree",
            height=7,
            none="no contracts",
        ),
        lines(
            "Violations",
            "Counted so far, over all pods: a step up is a violation, a step down a pod that is gone. One that "
            "happened before the first scrape starts above zero.",
            Query(f"sum by (buffer) ({_BOUNDS}) > 0", "bounds {{buffer}}"),
            Query(f"sum by (contract) ({_SHAPES}) > 0", "shape {{contract}}"),
            unit="none",
            height=7,
            steps=ANY_ALARMS,
        ),
    ],
)

EXITS = Section(
    "Exits",
    [
        lines(
            "Exits",
            "Processes that ended, by outcome. Killed: by a signal that nobody handles, as for want of memory. "
            "Crashed: it said so itself. Consequential: another process of its engine was first.",
            Query(
                f"sum by (outcome, cause) ({q.of_model(q.added(q.process('ullage_process_exits_total')))})",
                "{{outcome}}, {{cause}}",
            ),
            unit="none",
            bars=True,
            colours={f"{state}, primary": STATES[state] for state in ("stopped", "killed", "crashed")}
            | {".*, consequential": DEEP_BLUE},
        ),
        rows(
            "Not running",
            "How these processes ended, or that they stall; each stays here until one of its name follows, or for a "
            "day.",
            Query(
                f"topk({TOP}, {q.of_model(q.process('ullage_process_start_time_seconds'))} * 1000 "
                f"* on ({q.PROCESS}) group_left (ullage_process_state) "
                f"({_NOT_RUNNING} == 1))"
            ),
            columns={
                "ullage_process_state": Column("state", width=90, colours=STATES),
                "Value": Column("started", "dateTimeFromNow", 140),
                **_PLACE,
            },
            sort="started",
            none="all run",
        ),
    ],
)

VERSIONS = Section(
    "Versions",
    [
        rows(
            "Engines and hooks",
            "Which engine and which hook the processes run. More than one line each: a rollout is under way, or stuck.",
            Query(f"count by (engine, engine_version, hook_version, model_name) ({q.INFO})"),
            columns={
                "engine": Column("engine"),
                "engine_version": Column("version"),
                "hook_version": Column("hook"),
                "model_name": Column("model"),
                "Value": Column("processes", width=110),
            },
            sort="processes",
            height=6,
        ),
        rows(
            "Sidecars",
            "Which version of the sidecar the pods run.",
            Query(f"count by (version, python) ({q.target('ullage_build_info')})"),
            columns={
                "version": Column("version"),
                "python": Column("python"),
                "Value": Column("pods", width=110),
            },
            sort="pods",
            height=6,
        ),
    ],
)

SIDECARS = Section(
    "Sidecar health",
    [
        lines(
            "Slowest scrape",
            "How long the slowest sidecar took to collect its metrics. Above a second: it is starved of CPU.",
            Query(f"max({q.target('ullage_scrape_duration_seconds')})", "slowest"),
            unit="s",
            width=8,
        ),
        lines(
            "Segments",
            "Files that the sidecars found. Unreadable: written by a version they do not know, or damaged.",
            Query(f"sum by (state) ({q.target('ullage_segments')})", "{{state}}"),
            unit="none",
            width=8,
            colours={"unreadable": VERMILLION},
        ),
        lines(
            "Read errors",
            "Files and records that could not be read, per second, by reason. Half written: the process died writing "
            "it.",
            Query(f"sum by (reason) ({q.rate(q.target('ullage_segment_read_errors_total'))})", "{{reason}}"),
            unit="eps",
            width=8,
        ),
        lines(
            "Probes that are off",
            "Hook points that are not watched: disabled after errors, or changed by another version of the engine.",
            Query(
                f"sum by (probe, ullage_probe_status) ({q.of_model(_PROBES)}) > 0", "{{probe}} {{ullage_probe_status}}"
            ),
            unit="none",
            width=8,
            colours={f".* {name}": PROBES[name] for name in ("changed", "disabled")},
        ),
        lines(
            "Hook errors and dropped records",
            "Counted so far. An error in the hook never reaches the engine, but its numbers may be missing; a dropped "
            "record did not fit into a segment.",
            Query(f"sum({q.of_model(q.process('ullage_hook_errors_total'))})", "hook errors"),
            Query(
                f"sum by (reason) ({q.of_model(q.process('ullage_records_dropped_total'))}) > 0", "dropped {{reason}}"
            ),
            unit="none",
            width=8,
            colours={"hook errors": ORANGE},
        ),
        lines(
            "Settings that were refused",
            "Sidecars whose settings, as last read, were wrong. They go on with what was right before.",
            Query(f"count({q.target('ullage_config_last_reload_successful')} == 0) or vector(0)", "sidecars"),
            unit="none",
            width=8,
            steps=ANY_WARNS,
        ),
    ],
    collapsed=True,
)

BOARD = board(
    "Fleet",
    "Every pod with a sidecar: what is nearest to full, what does not agree, what ended, and which versions run.",
    [AT_A_GLANCE, SATURATION, CORRECTNESS, EXITS, VERSIONS, SIDECARS],
)
