"""Writes docs/metrics.md from what the sidecar's collector yields; ``make docs``."""

from __future__ import annotations

from everything import everything
from harness import ROOT

PAGE = ROOT / "docs/metrics.md"
HEAD = """# Metrics

What `/metrics` of the sidecar exposes. Written from the code by `make docs`, never by hand. Every example is run in the
tests, in Prometheus 2.53 and 3.

A metric of a process has the label `process`, one of its buffers `buffer` also; where they run (`job`, `instance`,
`namespace`, `pod`) Prometheus adds. A value that does not exist is absent, never a special number. A buffer is in the
`_bytes` families if that is its unit, else in the `_slots` families. Ratios are 0 to 1. In a state set, one series for
each state, the label of the state is named like the metric, and one of them is 1. The histogram has buckets only: its
count is the one of `le="+Inf"`.
"""
# Labels with few values, which are therefore listed; and where a list would not be complete.
LISTED = {
    "where",
    "outcome",
    "cause",
    "direction",
    "state",
    "reason",
    "le",
    "ullage_process_state",
    "ullage_probe_status",
}
OPEN = {"ullage_segment_read_errors_total"}
EXAMPLES = {
    "ullage_build_info": "count by (version) (ullage_build_info)",
    "ullage_process_info": "count by (model_name, engine_version, hook_version) (ullage_process_info)",
    "ullage_process_state": 'ullage_process_state{ullage_process_state!="running"} == 1',
    "ullage_process_exits_total": 'ullage_process_exits_total{outcome!="stopped", cause="primary"} > 0',
    "ullage_process_start_time_seconds": "time() - ullage_process_start_time_seconds",
    "ullage_process_last_step_timestamp_seconds": "time() - ullage_process_last_step_timestamp_seconds",
    "ullage_process_steps_total": "rate(ullage_process_steps_total[5m])",
    "ullage_inventory_bytes": "sum by (namespace, pod) (ullage_inventory_bytes)",
    "ullage_buffer_capacity_slots": "ullage_buffer_capacity_slots - ullage_buffer_high_water_slots",
    "ullage_buffer_used_slots": "topk(10, ullage_buffer_used_slots / ullage_buffer_capacity_slots)",
    "ullage_buffer_high_water_slots": "max by (buffer) (ullage_buffer_high_water_slots)",
    "ullage_buffer_capacity_bytes": "sum by (namespace, pod) (ullage_buffer_capacity_bytes)",
    "ullage_buffer_used_bytes": "ullage_buffer_used_bytes / ullage_buffer_capacity_bytes",
    "ullage_buffer_high_water_bytes": "ullage_buffer_capacity_bytes - ullage_buffer_high_water_bytes",
    "ullage_buffer_info": (
        "ullage_buffer_high_water_ratio * on (cluster, job, namespace, pod, instance, process, buffer) "
        'group_left (unit, limit) ullage_buffer_info{kind="hard"}'
    ),
    "ullage_buffer_high_water_ratio": "topk(10, ullage_buffer_high_water_ratio)",
    "ullage_buffer_high_water_timestamp_seconds": "time() - ullage_buffer_high_water_timestamp_seconds",
    "ullage_buffer_occupancy_ratio_bucket": (
        '1 - sum without (le) (rate(ullage_buffer_occupancy_ratio_bucket{le="0.9"}[5m])) '
        '/ sum without (le) (rate(ullage_buffer_occupancy_ratio_bucket{le="+Inf"}[5m]))'
    ),
    "ullage_buffer_deferrals_total": "rate(ullage_buffer_deferrals_total[5m])",
    "ullage_bounds_checks_total": "rate(ullage_bounds_checks_total[5m])",
    "ullage_buffer_resizes_total": "sum without (direction) (rate(ullage_buffer_resizes_total[15m]))",
    "ullage_buffer_exhaustions_total": "rate(ullage_buffer_exhaustions_total[5m])",
    "ullage_bounds_violations_total": "ullage_bounds_violations_total > 0",
    "ullage_shape_checks_total": "rate(ullage_shape_checks_total[5m])",
    "ullage_shape_violations_total": "ullage_shape_violations_total > 0",
    "ullage_contract_disagreements": "ullage_contract_disagreements > 0",
    "ullage_warning_threshold_ratio": (
        "ullage_buffer_high_water_ratio / on (cluster, job, namespace, pod, instance, process, buffer) "
        "ullage_warning_threshold_ratio"
    ),
    "ullage_warning_active": 'ullage_warning_active{severity!="info"}',
    "ullage_warnings_raised_total": "sum by (reason) (ullage_warnings_raised_total)",
    "ullage_probe_status": 'ullage_probe_status{ullage_probe_status!="installed"} == 1',
    "ullage_probe_calls_total": "rate(ullage_probe_calls_total[5m])",
    "ullage_hook_errors_total": "ullage_hook_errors_total > 0",
    "ullage_records_dropped_total": "sum by (reason) (ullage_records_dropped_total)",
    "ullage_segments": 'ullage_segments{state="unreadable"} > 0',
    "ullage_segment_read_errors_total": "sum by (reason) (ullage_segment_read_errors_total)",
    "ullage_config_last_reload_successful": "ullage_config_last_reload_successful == 0",
    "ullage_config_last_reload_success_timestamp_seconds": (
        "time() - ullage_config_last_reload_success_timestamp_seconds"
    ),
    "ullage_last_tick_timestamp_seconds": "time() - ullage_last_tick_timestamp_seconds",
    "ullage_tick_failures_total": "increase(ullage_tick_failures_total[15m]) > 0",
    "ullage_rows_dropped_total": "sum by (where) (increase(ullage_rows_dropped_total[15m])) > 0",
    "ullage_scrape_duration_seconds": "max by (job) (ullage_scrape_duration_seconds)",
}


def exposed():
    """Return the families by the name under which Prometheus has their samples."""
    return {family.samples[0].name: family for family in everything()}


def page():
    """Return the page."""
    return HEAD + "".join(_section(name, family) for name, family in exposed().items())


def _section(name, family):
    kind = {"stateset": "state set", "info": "info: always 1"}.get(family.type, family.type)
    labels = sorted({label for sample in family.samples for label in sample.labels})
    named = ", ".join(f"`{label}`{_values(name, label, family)}" for label in labels)
    about = f"{kind}; {named}" if named else f"{kind}; no labels"
    return f"\n## {name}\n\n{family.documentation}\n\n{about}\n\n```promql\n{EXAMPLES[name]}\n```\n"


def _values(name, label, family):
    if label not in LISTED or name in OPEN:
        return ""
    values = dict.fromkeys(sample.labels[label] for sample in family.samples if sample.labels.get(label))
    return f" ({', '.join(values)})"


if __name__ == "__main__":
    PAGE.write_text(page())
