"""Buffer: one buffer name across all pods; is its capacity right?"""

from __future__ import annotations

from boards import promql as q
from boards.frame import PLACE, Section, board, link_to
from boards.panels import (
    ANY_ALARMS,
    ANY_WARNS,
    BLUE,
    FULLNESS,
    GREY,
    ORANGE,
    VERMILLION,
    Column,
    Query,
    bars,
    lines,
    numbers,
    rows,
)

_WHERE = f"{{{{buffer}}}} {{{{process}}}} {PLACE}"
_RATIO = q.with_info(q.of_model(q.usage()), "kind")
_HIGH_WATER = q.of_model(q.buffer("ullage_buffer_high_water_ratio"))
_VIOLATIONS = q.of_model(q.buffer("ullage_bounds_violations_total"))
_BUCKET = "ullage_buffer_occupancy_ratio_bucket"


def _observations(le: str) -> str:
    return q.rate(q.buffer(_BUCKET, f'le="{le}"'))


_SHARES = {
    "0.5": ("≤ 50 %", BLUE),
    "0.75": ("≤ 75 %", BLUE),
    "0.9": ("≤ 90 %", BLUE),
    "0.95": ("≤ 95 %", ORANGE),
    "0.99": ("≤ 99 %", ORANGE),
    "1.0": ("≤ 100 %", ORANGE),
    "+Inf": ("> 100 %", VERMILLION),
}
_IN_RANGE = f"increase({q.buffer(_BUCKET)}[$__range])"
_BELOW_90 = f"{_observations('0.9')} / ignoring (le) ({_observations('+Inf')} > 0)"


def _across(pick: str, what: str, unit: str) -> str:
    return f"{pick} by (buffer) ({q.of_model(q.buffer(f'ullage_buffer_{what}_{unit}'))})"


AT_A_GLANCE = Section(
    "At a glance",
    [
        numbers(
            "Processes",
            "Processes that have such a buffer.",
            Query(f"count({q.of_model(q.buffer('ullage_buffer_info'))})"),
            unit="none",
            width=4,
        ),
        numbers(
            "Highest use now",
            "The pod that is nearest to full: what its last observation needed, as a share of its capacity.",
            Query(f"max({q.living(_RATIO)})"),
            unit="percentunit",
            width=5,
            steps=FULLNESS,
            none="none",
        ),
        numbers(
            "Highest use ever",
            "The highest share that any observation of these processes needed. Above 100 %: it was out of bounds.",
            Query(f"max({q.with_info(_HIGH_WATER, 'kind')})"),
            unit="percentunit",
            width=5,
            steps=FULLNESS,
            none="none",
        ),
        numbers(
            "At or above the threshold",
            "Buffers that are so full now that their sidecar warns.",
            Query(f"count({q.living(_RATIO)} >= on ({q.BUFFER}) {q.threshold()})"),
            unit="none",
            width=5,
            steps=ANY_WARNS,
        ),
        numbers(
            "Violations",
            "Indices outside the capacity, so far. Any of them may have damaged memory.",
            Query(f"sum({_VIOLATIONS})"),
            unit="none",
            width=5,
            steps=ANY_ALARMS,
        ),
    ],
)

CAPACITY = Section(
    "Capacity",
    [
        lines(
            "Use",
            "What the last observation needed, as a share of the capacity, in each process. The colour tells how near "
            "it is at the end; the dashed line is the sidecar's threshold.",
            Query(_RATIO, _WHERE),
            Query(f"min by (buffer) ({q.of_model(q.threshold())})", "threshold {{buffer}}"),
            unit="percentunit",
            height=9,
            steps=FULLNESS,
            dashed=["threshold.*"],
            colours={"threshold.*": GREY},
            most=1,
        ),
        lines(
            "Used and capacity",
            "In the buffer's own unit, or in bytes: the highest use of any process against the smallest capacity of "
            "any. A capacity that steps up is a growth.",
            Query(_across("max", "used", "slots"), "highest use {{buffer}}"),
            Query(_across("min", "capacity", "slots"), "smallest capacity {{buffer}}"),
            Query(_across("max", "used", "bytes"), "highest use {{buffer}} "),
            Query(_across("min", "capacity", "bytes"), "smallest capacity {{buffer}} "),
            unit="short",
            height=9,
            bytes_by=["C", "D"],
            dashed=["smallest capacity.*"],
            colours={"highest use.*": BLUE, "smallest capacity.*": GREY},
        ),
        rows(
            "High water",
            "The most that any observation of the process needed, and when. Choose a capacity from the highest of "
            "all, with a margin: for a hard buffer the worst case, not the average.",
            Query(q.with_info(_HIGH_WATER, "kind, unit, limit")),
            Query(
                q.with_info(
                    q.of_model(f"1000 * {q.buffer('ullage_buffer_high_water_timestamp_seconds')}"),
                    "kind, unit, limit",
                    "",
                )
            ),
            Query(q.with_info(q.of_model(q.sized("high_water")), "kind, unit, limit", "")),
            Query(q.with_info(q.of_model(q.sized("capacity")), "kind, unit, limit", "")),
            columns={
                "buffer": Column("buffer"),
                "Value #A": Column("of capacity", "percentunit", 150, FULLNESS, gauge=True),
                "Value #B": Column("when", "dateTimeFromNow", 130),
                "Value #C": Column("high water", "short", 100),
                "Value #D": Column("capacity", "short", 90),
                "unit": Column("unit", width=80),
                "kind": Column("kind", width=80),
                "limit": Column("set by"),
                "process": Column("process", link=link_to("process", pod="pod", process="process")),
                "pod": Column("pod"),
                "instance": Column("instance"),
            },
            sort="of capacity",
            width=24,
            height=7,
        ),
    ],
)

OCCUPANCY = Section(
    "Occupancy",
    [
        lines(
            "Observations above 90 %",
            "The share of all observations, not of the scrapes, that needed more than 90 % of the capacity. It sees "
            "bursts that fall between two scrapes.",
            Query(f"1 - {q.of_model(_BELOW_90)}", _WHERE),
            unit="percentunit",
            steps=((None, BLUE), (0.05, ORANGE), (0.5, VERMILLION)),
        ),
        bars(
            "Distribution",
            "Observations in the time range by the share of the capacity that they needed; each bar ends at its "
            "label, the last is beyond the capacity.",
            Query(f"sum by (le) ({q.of_model(_IN_RANGE)})", "{{le}}"),
            unit="short",
            buckets=True,
            names=_SHARES,
        ),
    ],
)

EVENTS = Section(
    "Events",
    [
        lines(
            "Exhaustions and deferrals",
            "Per second, over all pods. Exhausted: a running request was preempted, or an allocation failed. "
            "Deferred: a waiting request was not admitted yet, which is queueing, and normal.",
            Query(
                f"sum by (buffer) ({q.of_model(q.rate(q.buffer('ullage_buffer_exhaustions_total')))}) > 0",
                "exhausted {{buffer}}",
            ),
            Query(
                f"sum by (buffer) ({q.of_model(q.rate(q.buffer('ullage_buffer_deferrals_total')))}) > 0",
                "deferred {{buffer}}",
            ),
            unit="eps",
            width=8,
            colours={"exhausted.*": ORANGE, "deferred.*": BLUE},
        ),
        lines(
            "Resizes",
            "Changes of the capacity, over all pods. A buffer that grows again and again was made too small.",
            Query(
                f"sum by (buffer, direction) ({q.of_model(q.added(q.buffer('ullage_buffer_resizes_total')))})",
                "{{buffer}} {{direction}}",
            ),
            unit="none",
            width=8,
            bars=True,
            colours={".* grow": BLUE, ".* shrink": ORANGE},
        ),
        lines(
            "Checks and violations",
            "Checks of an index against the capacity, per second, and how many were outside so far. No checks: nobody "
            "would notice an overflow.",
            Query(
                f"sum by (buffer) ({q.of_model(q.rate(q.buffer('ullage_bounds_checks_total')))})", "checks/s {{buffer}}"
            ),
            Query(f"sum by (buffer) ({_VIOLATIONS})", "violations {{buffer}}"),
            unit="short",
            width=8,
            colours={"checks/s.*": BLUE, "violations.*": VERMILLION},
        ),
    ],
)

BOARD = board(
    "Buffer",
    "One buffer across all pods that have it: how full, how full ever, how often nearly full, and what happened to it.",
    [AT_A_GLANCE, CAPACITY, OCCUPANCY, EVENTS],
)
