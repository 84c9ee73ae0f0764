"""The rules as Prometheus reads them, and as somebody who is woken by them does."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml
from everything import samples
from promql import TARGET_LABELS, functions, grouping, selectors

from rules import FILES, TESTS, alerts, rules

CRITICAL = {"UllageBoundsViolation", "UllageShapeViolation"}
WARNING = {
    "UllageShapeDisagreement",
    "UllageBufferNearCapacity",
    "UllageBufferExhausted",
    "UllageResizeStorm",
    "UllageProcessDied",
    "UllageEngineStalled",
    "UllageProbeDisabled",
    "UllageHookErrors",
    "UllageNoHook",
    "UllageSegmentUnreadable",
    "UllageSidecarDown",
    "UllageConfigReloadFailed",
}


def run(*command):
    """Return a program's exit status, and all that it said."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def exposed():
    """Every series that a sidecar exposes and Prometheus adds or records: (name, labels)."""
    found = [(name, labels) for name, labels, _ in samples()]
    return [*found, ("up", {}), *((rule.record, rule.labels) for rule in rules() if rule.record)]


def test_promtool_finds_nothing_to_complain_about(release):
    status, said = run(release.promtool, "check", "rules", "--lint=all", "--lint-fatal", *FILES)

    assert status == 0, said


@pytest.mark.parametrize("file", sorted(TESTS.glob("*.yaml")), ids=lambda file: file.stem)
def test_rules_do_what_their_unit_test_says(release, file):
    status, said = run(release.promtool, "test", "rules", file)

    assert status == 0, said


def test_the_alerts_are_these():
    severities = {name: rule.labels for name, rule in alerts().items()}

    assert severities == {
        **{name: {"severity": "critical"} for name in CRITICAL},
        **{name: {"severity": "warning"} for name in WARNING},
    }


@pytest.mark.parametrize("alert", sorted(alerts()))
def test_an_alert_has_cases_in_which_it_fires_and_in_which_it_is_silent(alert):
    cases = yaml.safe_load((TESTS / f"{alert}.yaml").read_text())["tests"]

    expected = {"fires": [], "silent": []}
    for case in cases:
        about = [one["exp_alerts"] for one in case["alert_rule_test"] if one["alertname"] == alert]
        assert about, case["name"]
        expected[case["name"].partition(":")[0]].append(any(about))
    assert all(expected["fires"])
    assert expected["fires"]
    assert not any(expected["silent"])
    assert expected["silent"]


@pytest.mark.parametrize("alert", sorted(alerts()))
def test_an_alert_says_what_is_wrong_where_and_what_to_read(alert):
    annotations = alerts()[alert].annotations

    assert set(annotations) == {"summary", "description", "runbook_url"}
    assert annotations["summary"].endswith(".")
    assert "{{" not in annotations["summary"]
    assert "{{ or $labels.pod $labels.instance }}" in annotations["description"]
    assert re.search(r"\$value|\d", annotations["description"])
    assert annotations["runbook_url"] == (f"https://github.com/ullage/ullage/blob/main/dashboards/runbooks/{alert}.md")


@pytest.mark.parametrize("rule", list(rules()), ids=lambda rule: rule.alert or rule.record)
def test_what_a_rule_asks_for_exists(rule, exposed):
    for selector in selectors(rule.expr):
        assert any(selector.selects(*series) for series in exposed), selector
    known = {label for _, labels in exposed for label in labels} | TARGET_LABELS
    assert grouping(rule.expr) <= known


@pytest.mark.parametrize("alert", sorted(alerts()))
def test_no_alert_is_blind_to_a_counter_that_is_born_above_zero(alert):
    assert not functions(alerts()[alert].expr) & {"increase", "rate", "irate", "delta", "changes", "resets"}
