"""The case suite as a whole: what was reached stays reached, and no rule knows a report."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import suite
from harness import ROOT

from ullage_sidecar.diagnosis.contextual_rules import CONTEXTUAL_RULES
from ullage_sidecar.diagnosis.priors import COUNTS
from ullage_sidecar.diagnosis.reports import REPORTS
from ullage_sidecar.diagnosis.transformations import TRANSFORMATIONS
from ullage_sidecar.formulas import quantity

REACHED = {"cases": 80, "reported": 79, "true cause first": 66, "among three": 76}
NUMERIC = {
    "stale input": "stale input",
    "peers differ": "connector fields",
    "known formulas": "two formulas",
    "two eras": "version skew",
    "other formula": "two formulas",
}
DIAGNOSIS = ROOT / "service/ullage_sidecar/diagnosis"


def class_of(rule):
    """Return the class of causes that a rule belongs to."""
    known = {one.id: one.cause for one in (*TRANSFORMATIONS, *CONTEXTUAL_RULES)} | NUMERIC
    return "two formulas" if rule.startswith("derived twice: ") else known[rule]


@pytest.fixture(scope="module")
def played():
    """All cases, played in a process of their own."""
    command = [sys.executable, ROOT / "tests/cases/suite.py", "--json"]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout)
    return {kind: [suite.Outcome(**(one | {"rivals": tuple(one["rivals"])})) for one in said[kind]] for kind in said}


def test_what_was_reached_is_reached(played):
    reached = suite.totals(played["reports"])

    assert {what: reached[what] for what in REACHED} == REACHED


def test_the_readme_says_what_was_reached(played):
    readme = (ROOT / "README.md").read_text()

    for line in suite.summary(played["reports"]):
        assert line in readme


def test_nothing_is_reported_of_a_healthy_configuration(played):
    assert len(played["healthy"]) >= 21
    assert [one for one in played["healthy"] if one.when] == []


def test_each_case_is_judged_by_the_class_of_its_report():
    cases = suite.reports()
    assert len({case["id"] for case in cases}) == len(cases)
    for case in cases:
        classes = {case["class"], *case.get("also", [])}
        assert classes <= COUNTS.keys(), case["id"]
        assert {class_of(rule) for rule in case["truth"]} <= classes, case["id"]


def test_no_rule_names_a_report():
    known = {case["id"] for case in suite.reports()}
    assert known

    for module in DIAGNOSIS.glob("*.py"):
        if module.name != "reports.py":
            text = module.read_text()
            assert [report for report in known if report in text] == []


def test_reports_are_looked_up_by_what_explained_them():
    cases = {case["id"]: case for case in suite.reports()}

    for (about, rule), reports in REPORTS.items():
        for report in reports:
            assert quantity(cases[report]["contract"]["name"]) == about
            assert rule in cases[report]["truth"]
