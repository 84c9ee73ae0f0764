"""The dashboards as they are committed: what Grafana needs to import them, and what a reader needs to trust them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import promql_parser
import pytest
from everything import samples
from harness import ROOT, missing

import dashboards

COLUMNS = 24
VARIABLES = ["datasource", "cluster", "job", "namespace", "pod", "model_name", "process", "buffer"]
TARGET_LABELS = {"cluster", "job", "namespace", "pod", "instance"}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Of the ids in @grafana/data, valueFormats/categories.ts. Grafana shows one that it does not know as a suffix.
UNITS = {"none", "short", "percentunit", "bytes", "s", "eps", "ops", "dateTimeFromNow"}
RED_OR_GREEN = re.compile(r"\b(red|green)\b")


@pytest.fixture(params=dashboards.NAMES)
def name(request):
    return request.param


@pytest.fixture
def board(name):
    return dashboards.load(name)


@pytest.fixture(scope="module")
def exposed():
    """Every series of the real collector over a pod in which everything has happened: {name: labels}."""
    series = {}
    for name, labels, _ in samples():
        series.setdefault(name, set()).update(labels)
    return series


def test_the_committed_files_are_what_the_generator_writes(tmp_path):
    subprocess.run([sys.executable, ROOT / "dashboards/build.py", tmp_path], check=True, timeout=60)

    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text() for path in dashboards.BUILT.iterdir()}
    assert written == committed, "run: make dashboards"
    assert set(written) == {f"{name}.json" for name in dashboards.NAMES}


def test_grafana_can_tell_them_apart_and_find_them(name, board):
    assert board["uid"] == f"ullage-{name}"
    assert board["title"] == f"ullage / {name.capitalize()}"
    assert board["tags"] == ["ullage"]
    assert board["description"]
    assert "id" not in board, "an id is of one Grafana; another one refuses it"


def test_it_can_be_imported_in_every_way(name, board):
    text = (dashboards.BUILT / f"{name}.json").read_text()
    assert len(text.encode()) < 200 * 1024  # of the 1 MiB of a ConfigMap that several share
    assert "${DS_" not in text, "such an input exists in the import dialogue only"
    assert "__inputs" not in board
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {"${datasource}", board["uid"]}


def test_the_variables_come_in_their_order_and_each_is_left_by_those_before_it(board):
    source, *others = board["templating"]["list"]

    assert [variable["name"] for variable in (source, *others)] == VARIABLES
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    assert "current" not in source or not source["current"], "the user's default, not ours"
    for index, variable in enumerate(others):
        assert variable["type"] == "query"
        assert variable["datasource"] == DATASOURCE
        assert (variable["multi"], variable["includeAll"], variable["allValue"]) == (True, True, ".*")
        assert variable["refresh"] == 2, "on time range change: a pod that is new must be offered"
        before = {other["name"] for other in others[:index]} - {"model_name"}
        assert before <= set(re.findall(r"\$(\w+)", variable["query"]["query"]))


def test_panels_neither_overlap_nor_leave_the_grid(board):
    open_ = [panel["gridPos"] for panel in board["panels"]]
    rows = [panel for panel in board["panels"] if panel["type"] == "row"]
    for places in [open_, *([panel["gridPos"] for panel in row["panels"]] for row in rows if row["collapsed"])]:
        taken = set()
        for place in places:
            assert place["x"] >= 0
            assert place["x"] + place["w"] <= COLUMNS
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken
            taken |= cells
    assert not any(row["panels"] for row in rows if not row["collapsed"]), "Grafana drops them"


def test_ids_are_unique(board):
    rows = [panel for panel in board["panels"] if panel["type"] == "row"]
    ids = [panel["id"] for panel in [*rows, *dashboards.panels(board)]]
    assert len(set(ids)) == len(ids)
    assert all(number > 0 for number in ids)
    for panel in dashboards.panels(board):
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        assert all(re.fullmatch("[A-Z]", ref) for ref in refs)


def test_every_panel_says_what_it_is_and_how_to_read_it(board):
    for panel in dashboards.panels(board):
        assert panel["title"]
        assert panel["description"].endswith(".")
        assert len(panel["description"]) > 30
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["fieldConfig"]["defaults"]["noValue"], "an empty panel must say what that means"
        if panel["type"] in ("timeseries", "state-timeline"):
            assert panel["options"]["legend"]["showLegend"]
            assert all(target["legendFormat"] != "__auto" for target in panel["targets"])
        if panel["type"] == "stat" and len(panel["targets"]) > 1:
            assert all(target["legendFormat"] != "__auto" for target in panel["targets"])


def test_units_are_grafanas(board):
    for panel in dashboards.panels(board):
        overrides = [p for o in panel["fieldConfig"]["overrides"] for p in o["properties"] if p["id"] == "unit"]
        assert {panel["fieldConfig"]["defaults"]["unit"], *(prop["value"] for prop in overrides)} <= UNITS


def test_colours_can_be_told_apart_by_colour_blind_eyes(board):
    text = json.dumps([panel["fieldConfig"] for panel in dashboards.panels(board)])
    assert not RED_OR_GREEN.search(text)
    assert "palette-classic" not in text, "it begins with green, and has red"


def test_everything_asks_the_chosen_datasource(board):
    for panel in dashboards.panels(board):
        assert panel["datasource"] == DATASOURCE
        assert all(target["datasource"] == DATASOURCE for target in panel["targets"])
    assert all(annotation["datasource"] == DATASOURCE for annotation in board["annotations"]["list"])


def test_it_asks_little(name, board):
    annotations = list(dashboards.annotations(name))
    assert {annotation for annotation, _ in annotations} == {"Resizes", "Violations", "Exits"}
    assert len(list(dashboards.queries(name))) + len(annotations) <= 30


def test_rates_are_over_the_interval_that_grafana_finds_fit(board):
    for panel in dashboards.panels(board):
        for target in panel["targets"]:
            for function, window in re.findall(r"(\w+)\([^()]*\[(.*?)\]", target["expr"]):
                over_time_range = function == "increase" and target["instant"]
                gap = function == "last_over_time"  # of a sidecar that restarts, bridged
                assert window == ("$__range" if over_time_range else "5m" if gap else "$__rate_interval")
                assert function in ("rate", "increase", "last_over_time")


def test_every_series_is_of_the_chosen_pods_and_no_job_is_fixed(name):
    chosen = {label: f"chosen {label}" for label in VARIABLES}
    exprs = [query.expr for query in dashboards.queries(name, **chosen)]
    exprs += [expr for _, expr in dashboards.annotations(name, **chosen)]
    for expr in exprs:
        for metric, matchers in _selected(expr):
            assert {"cluster", "job", "namespace", "pod"} <= set(matchers), metric
            fixed = {label for label, value in matchers.items() if value != chosen.get(label)}
            assert not fixed & {"cluster", "job", "namespace", "pod", "instance"}


def test_every_expression_is_promql_on_series_and_labels_that_the_sidecar_exposes(name, exposed):
    asked = [(query.panel, query.expr) for query in dashboards.queries(name)]
    asked += dashboards.annotations(name)
    asked += [(offered.variable, offered.selector) for offered in dashboards.variables(name)]
    for where, expr in asked:
        selected = _selected(expr)
        assert selected, where
        for metric, matchers in selected:
            assert metric in exposed, f"{where}: the sidecar has no {metric}"
            assert set(matchers) <= exposed[metric] | TARGET_LABELS, f"{where}: {metric} has no such labels"
        assert _joined(expr) <= set().union(*exposed.values()) | TARGET_LABELS, where


def test_legends_and_columns_are_labels_that_exist(board, exposed):
    labels = set().union(*exposed.values()) | TARGET_LABELS
    for panel in dashboards.panels(board):
        for target in panel["targets"]:
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels
        for step in panel.get("transformations", []):
            if step["id"] == "filterFieldsByName":
                values = {f"Value #{target['refId']}" for target in panel["targets"]} | {"Value"}
                assert set(step["options"]["include"]["names"]) <= labels | values


def test_the_threshold_line_is_the_sidecars_own():
    for name in ("fleet", "process", "buffer"):
        lines = [query for query in dashboards.queries(name) if "ullage_warning_threshold_ratio" in query.expr]
        assert any(not query.instant for query in lines), name


@pytest.mark.parametrize("planted", ["ullage_buffer_used_slotz", "ullage_proces_info"])
def test_a_typo_would_be_seen(planted, exposed):
    ((metric, _),) = _selected(f'{planted}{{pod=~".*"}}')
    assert metric not in exposed


def _visited(expr):
    seen = []
    promql_parser.walk(promql_parser.parse(expr), pre_visit=seen.append)
    return seen


def _selected(expr):
    """Return (metric, {label: what it must match}) of every selector."""
    nodes = [getattr(node, "vector_selector", node) for node in _visited(expr)]
    found = {id(node): node for node in nodes if isinstance(node, promql_parser.VectorSelector)}
    return [(node.name, {m.name: m.value for m in node.matchers.matchers}) for node in found.values()]


def _joined(expr):
    """Return the labels that are grouped by or matched on."""
    labels = set()
    for node in _visited(expr):
        modifier = getattr(node, "modifier", None)
        for part in (modifier, getattr(modifier, "matching", None)):
            labels |= set(getattr(part, "labels", None) or ())
        labels |= set(getattr(modifier, "group_labels", None) or ())
    return labels


def test_the_links_keep_variables_and_time(board):
    (link,) = board["links"]
    assert (link["type"], link["tags"], link["includeVars"], link["keepTime"]) == ("dashboards", ["ullage"], True, True)
    for panel in dashboards.panels(board):
        for override in panel["fieldConfig"]["overrides"]:
            for url in (one["url"] for p in override["properties"] if p["id"] == "links" for one in p["value"]):
                assert re.match(r"/d/ullage-(fleet|process|buffer)\?", url)
                given = set(re.findall(r"var-(\w+)=|\$\{(\w+):queryparam\}", url))
                assert {one or other for one, other in given} == set(VARIABLES)
                assert url.endswith("${__url_time_range}")


CONFIGS = {
    "timeseries": "TimeSeries",
    "stat": "Stat",
    "table": "Table",
    "bargauge": "BarGauge",
    "state-timeline": "StateTimeline",
}
TSC = ROOT / ".tools/grafana-schema/node_modules/.bin/tsc"


@pytest.fixture(scope="module")
def typed():
    """Hold text against Grafana's own types; return what tsc says."""
    if not TSC.exists() or shutil.which("node") is None:
        missing(f"{TSC} and node are needed: see .tools/grafana-schema.log")

    def check(boards, directory):
        for name, board in boards.items():
            (directory / f"{name}.ts").write_text(_as_typescript(board))
        (directory / "node_modules").symlink_to(TSC.parent.parent)
        command = [TSC, "--noEmit", "--strict", "--skipLibCheck", "--module", "preserve"]
        done = subprocess.run(
            [*command, *directory.glob("*.ts")],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.stdout + done.stderr

    return check


LOOSE = """
type Loose<T> = T extends string ? `${T}` : T extends number ? number : T extends (infer U)[] ? Loose<U>[]
  : T extends object ? { [K in keyof T]: Loose<T[K]> } : T;"""


def _as_typescript(board):
    """A dashboard, and the options and fields of each panel, as constants of Grafana's types.

    ``Loose``, as JSON has the values of an enum, not its members. What Prometheus adds to an annotation is not held
    against them: Grafana's general type does not have it.
    """
    board = json.loads(json.dumps(board))
    for annotation in board["annotations"]["list"]:
        assert annotation.keys() >= {"expr", "step", "titleFormat"}
        for key in ("expr", "step", "titleFormat"):
            del annotation[key]
    lines = ["import type * as schema from '@grafana/schema';"]
    for kind, title in CONFIGS.items():
        path = f"@grafana/schema/dist/esm/raw/composable/{kind.replace('-', '')}/panelcfg/x/{title}PanelCfg_types.gen"
        lines.append(f"import type * as {title} from '{path}';")
    lines += [LOOSE, f"export const board: Loose<schema.Dashboard> = {json.dumps(board)};"]
    for panel in dashboards.panels(board):
        config, number = CONFIGS[panel["type"]], panel["id"]
        options = json.dumps(panel.get("options", {}))
        lines.append(f"export const options{number}: Loose<Partial<{config}.Options>> = {options};")
        if config not in ("Stat", "BarGauge"):
            custom = json.dumps(panel["fieldConfig"]["defaults"].get("custom", {}))
            lines.append(f"export const field{number}: Loose<Partial<{config}.FieldConfig>> = {custom};")
    return "\n".join(lines)


def test_grafanas_types_know_every_key(typed, tmp_path):
    assert typed({name: dashboards.load(name) for name in dashboards.NAMES}, tmp_path) == ""


def test_a_key_that_grafana_does_not_know_would_be_seen(typed, tmp_path):
    board = dashboards.load("fleet")
    board["panels"][1]["fieldConfg"] = {}
    board["panels"][2]["options"]["orientatoin"] = "auto"

    said = typed({"fleet": board}, tmp_path)

    assert "'\"fieldConfg\"' does not exist" in said
    assert "'\"orientatoin\"' does not exist" in said
