"""What the dashboards ask, with Grafana's variables filled in as Grafana does when everything is set to All."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from harness import ROOT

BUILT = ROOT / "dashboards/grafana"
NAMES = ("fleet", "process", "buffer")
TIMES = {"$__rate_interval": "1m", "$__interval": "15s", "$__range": "1h"}
ALL = ".*"  # the allValue of every variable: Grafana puts it in as it stands


class Asked(NamedTuple):
    """An expression of a panel. ``instant``: it is asked once, for now, and not over the time range."""

    dashboard: str
    panel: str
    ref_id: str
    expr: str
    instant: bool


class Offered(NamedTuple):
    """What a variable offers: the values of ``label`` among the series that ``selector`` selects."""

    dashboard: str
    variable: str
    selector: str
    label: str


def load(name):
    """Return a dashboard as it is committed."""
    return json.loads((BUILT / f"{name}.json").read_text())


def panels(dashboard):
    """Yield every panel that draws something, those in collapsed rows too."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield panel
        yield from panel.get("panels") or []


def filled(expr, times=TIMES, **chosen):
    """Fill in Grafana's variables: ``chosen`` by name, the others are set to All."""
    for name in sorted(times, key=len, reverse=True):
        expr = expr.replace(name, times[name])
    return re.sub(r"\$\{?(\w+)\}?", lambda found: chosen.get(found[1], ALL), expr)


def queries(name, times=TIMES, **chosen):
    """Yield what the panels of a dashboard ask."""
    for panel in panels(load(name)):
        for target in panel["targets"]:
            expr = filled(target["expr"], times, **chosen)
            yield Asked(name, panel["title"], target["refId"], expr, bool(target.get("instant")))


def variables(name, **chosen):
    """Yield what the variables of a dashboard offer."""
    for variable in load(name)["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", filled(variable["query"]["query"], **chosen))
            yield Offered(name, variable["name"], found[1], found[2])


def annotations(name, times=TIMES, **chosen):
    """Yield (name, expression) of the annotations of a dashboard; each is asked over the time range."""
    for annotation in load(name)["annotations"]["list"]:
        yield annotation["name"], filled(annotation["expr"], times, **chosen)
