"""Process: one process in depth; what it holds, how it runs, and what the instrument itself says."""

from __future__ import annotations

from boards import promql as q
from boards.frame import PLACE, Section, board, link_to
from boards.panels import (
    ANY_ALARMS,
    ANY_WARNS,
    FULLNESS,
    GREY,
    ORANGE,
    PROBES,
    SEVERITIES,
    STATES,
    Column,
    Query,
    bands,
    lines,
    numbers,
    rows,
)

_WHERE = f"{{{{process}}}} {PLACE}"
_STATE = "ullage_process_state"
_OF_STATE = [q.process(_STATE, f'{_STATE}="{name}"') for name in STATES]
_CONDITIONS = " or ".join(f"{value} * {series}" for value, series in enumerate(_OF_STATE))
_AGE = f"time() - {q.process('ullage_process_last_step_timestamp_seconds')}"
_DISAGREEMENTS = f"sum by ({q.CONTRACT}) ({q.of_model(q.process('ullage_contract_disagreements'))})"
_CHECKS = f"sum by ({q.CONTRACT}) ({q.of_model(q.process('ullage_shape_checks_total'))})"
_VIOLATIONS = f"sum by ({q.CONTRACT}) ({q.of_model(q.process('ullage_shape_violations_total'))})"
_BUFFER_LINK = link_to("buffer", buffer="buffer")

STATE = Section(
    "State",
    [
        numbers(
            "Started",
            "When it started. Of several processes, the one that started last.",
            Query(f"max({q.of_model(q.process('ullage_process_start_time_seconds'))}) * 1000"),
            unit="dateTimeFromNow",
            width=6,
            none="never",
        ),
        numbers(
            "Last step",
            "How long ago it ended an engine step; an idle engine makes none. Of several processes, the longest.",
            Query(f"max({q.of_model(_AGE)})"),
            unit="s",
            width=6,
            none="none yet",
        ),
        numbers(
            "Inventory",
            "Bytes of the buffers that are known by their size only: nothing watches how full they are.",
            Query(f"sum({q.of_model(q.process('ullage_inventory_bytes'))})"),
            unit="bytes",
            width=6,
            none="none",
        ),
        numbers(
            "Hook errors",
            "Errors inside the hook. None reached the engine; a probe that goes on failing is switched off.",
            Query(f"sum({q.of_model(q.process('ullage_hook_errors_total'))})"),
            unit="none",
            width=6,
            steps=ANY_WARNS,
        ),
        bands(
            "State",
            "How a process is, or how it ended. Stalled: it has running requests and makes no step. The purple marks "
            "are exits; after one, the last values stay until a process of the same name follows.",
            Query(q.of_model(f"sum without ({_STATE}) ({_CONDITIONS})"), _WHERE),
            unit="none",
            names=STATES,
            height=6,
        ),
        rows(
            "Identity",
            "What the process said of itself when it started.",
            Query(q.INFO),
            columns={
                "process": Column("process"),
                "role": Column("role", width=90),
                "engine": Column("engine", width=80),
                "engine_version": Column("version", width=80),
                "model_name": Column("model"),
                "hook_version": Column("hook", width=70),
                "pod": Column("pod"),
                "instance": Column("instance"),
            },
            sort="process",
            height=6,
        ),
    ],
)

BUFFERS = Section(
    "Buffers",
    [
        lines(
            "Use of each buffer",
            "What the last observation needed, as a share of the capacity. The colour tells how near it is at the "
            "end; the dashed line is the threshold of the sidecar, the lowest if buffers have their own.",
            Query(q.with_info(q.of_model(q.usage()), "kind"), "{{buffer}} " + _WHERE),
            Query(f"min({q.of_model(q.threshold())})", "threshold"),
            unit="percentunit",
            height=10,
            by_initial=True,
            dashed=["threshold"],
            colours={"threshold": GREY},
            most=1,
        ),
        rows(
            "High water",
            "The most that any observation needed since the process started, and when. Near 100 % once is near for "
            "ever: a batch like that one comes again.",
            Query(q.with_info(q.of_model(q.buffer("ullage_buffer_high_water_ratio")), "kind, unit")),
            Query(q.with_info(q.of_model(q.sized("capacity")), "kind, unit", "")),
            Query(
                q.with_info(
                    q.of_model(f"1000 * {q.buffer('ullage_buffer_high_water_timestamp_seconds')}"), "kind, unit", ""
                )
            ),
            columns={
                "buffer": Column("buffer", link=_BUFFER_LINK),
                "Value #A": Column("of capacity", "percentunit", 150, FULLNESS, gauge=True),
                "Value #C": Column("when", "dateTimeFromNow", 130),
                "Value #B": Column("capacity", "short", 80),
                "unit": Column("unit", width=80),
                "kind": Column("kind", width=80),
                "process": Column("process"),
            },
            sort="of capacity",
            height=10,
        ),
    ],
)

LOAD = Section(
    "Load",
    [
        lines(
            "Steps",
            "Engine iterations per second. Zero with requests running is a stall; zero without is idleness.",
            Query(q.of_model(q.rate(q.process("ullage_process_steps_total"))), _WHERE),
            unit="ops",
            height=8,
        ),
        lines(
            "Exhaustions and deferrals",
            "Per second. Exhausted: a running request was preempted, or an allocation failed. Deferred: a waiting "
            "request was not admitted yet, which is queueing, and normal.",
            Query(q.of_model(q.rate(q.buffer("ullage_buffer_exhaustions_total"))) + " > 0", "exhausted {{buffer}}"),
            Query(q.of_model(q.rate(q.buffer("ullage_buffer_deferrals_total"))) + " > 0", "deferred {{buffer}}"),
            unit="eps",
            colours={"exhausted.*": ORANGE},
        ),
    ],
)

WARNINGS = Section(
    "Warnings",
    [
        rows(
            "Active",
            "What the sidecar finds wrong now. Each reason has a runbook; the sidecar's /v1/warnings has the numbers.",
            Query(q.warnings()),
            columns={
                "severity": Column("severity", width=90, colours=SEVERITIES),
                "reason": Column("reason", width=160),
                "buffer": Column("buffer", link=_BUFFER_LINK),
                "contract": Column("contract"),
                "process": Column("process"),
                "pod": Column("pod"),
            },
            sort="severity",
            height=7,
        ),
        rows(
            "Contracts",
            "Groups of claims that do not fit each other, and how many tensors were checked and broke the contract. "
            "Checked zero times: nobody has compared it with a tensor yet.",
            Query(_DISAGREEMENTS),
            Query(f"{_CHECKS} or {_DISAGREEMENTS} * 0"),
            Query(f"{_VIOLATIONS} or {_DISAGREEMENTS} * 0"),
            columns={
                "contract": Column("contract"),
                "Value #A": Column("disagreements", width=130, steps=ANY_WARNS),
                "Value #C": Column("violations", width=100, steps=ANY_ALARMS),
                "Value #B": Column("checks", "short", 80),
                "process": Column("process"),
            },
            sort="violations",
            height=7,
            none="no contracts",
        ),
        lines(
            "Raised",
            "Warnings that were raised, by reason. A burst that is over by the next scrape is here too.",
            Query(
                f"sum by (reason) ({q.of_model(q.added(q.buffer('ullage_warnings_raised_total')))})",
                "{{reason}}",
            ),
            unit="none",
            bars=True,
            by_initial=True,
            width=24,
            height=6,
        ),
    ],
)

INSTRUMENT = Section(
    "Instrument",
    [
        rows(
            "Probes",
            "Whether each hook point is watched. Absent: this engine has no such place. Changed: it is not what this "
            "hook knows, and is left alone. Disabled: after errors, or on request.",
            Query(q.of_model(q.process("ullage_probe_status")) + " == 1"),
            columns={
                "probe": Column("probe"),
                "ullage_probe_status": Column("status", width=100, colours=PROBES),
                "process": Column("process"),
                "pod": Column("pod"),
            },
            sort="status",
        ),
        lines(
            "Calls of the probes",
            "How often each hook point ran, per second. One that is installed and never called watches nothing.",
            Query(q.of_model(q.rate(q.process("ullage_probe_calls_total"))), "{{probe}} {{process}}"),
            unit="ops",
        ),
        lines(
            "Dropped records",
            "Records that did not fit into the segment, counted so far, by reason. Events are a ring: the oldest go "
            "first.",
            Query(q.of_model(q.process("ullage_records_dropped_total")) + " > 0", "{{reason}} {{process}}"),
            unit="none",
            width=24,
            height=6,
        ),
    ],
    collapsed=True,
)

BOARD = board(
    "Process",
    "One process in depth. Choose a pod and a process; with All, everything is shown together.",
    [STATE, BUFFERS, LOAD, WARNINGS, INSTRUMENT],
)
