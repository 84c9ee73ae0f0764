"""The rules as they are shipped, one by one."""

from __future__ import annotations

from typing import NamedTuple

import yaml
from harness import ROOT

RULES = ROOT / "dashboards/rules"
FILES = (RULES / "ullage-recording.yaml", RULES / "ullage-alerts.yaml")
TESTS = RULES / "tests"
RUNBOOKS = ROOT / "dashboards/runbooks"


class Rule(NamedTuple):
    """A rule: ``record`` or ``alert`` is its name, the other one is empty. ``hold`` is its ``for``."""

    group: str
    record: str
    alert: str
    expr: str
    hold: str
    labels: dict[str, str]
    annotations: dict[str, str]


def rules():
    """Yield every rule of every file."""
    for file in FILES:
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                yield Rule(
                    group["name"],
                    rule.get("record", ""),
                    rule.get("alert", ""),
                    rule["expr"],
                    rule.get("for", "0s"),
                    rule.get("labels", {}),
                    rule.get("annotations", {}),
                )


def alerts():
    """Return the alerts by name."""
    return {rule.alert: rule for rule in rules() if rule.alert}
