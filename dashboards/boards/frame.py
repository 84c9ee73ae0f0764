"""What every dashboard has around its panels: variables, links, annotations, and the grid."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from grafana_foundation_sdk.builders.dashboard import (
    AnnotationQuery,
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    GridPos,
    RowPanel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from boards import promql
from boards.panels import DATASOURCE, ORANGE, PURPLE, VERMILLION

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from grafana_foundation_sdk.models.dashboard import Panel

_Variable = TypeVar("_Variable", DatasourceVariable, QueryVariable)

COLUMNS = 24
TAG = "ullage"
PLACE = "{{pod}} {{instance}}"
_LABELS = {
    "cluster": "ullage_build_info",
    "job": "ullage_build_info",
    "namespace": "ullage_build_info",
    "pod": "ullage_build_info",
    "model_name": "ullage_process_info",
    "process": "ullage_process_info",
    "buffer": "ullage_buffer_info",
}


def link_to(name: str, **labels: str) -> str:
    """Return the address of another dashboard, with variables and time kept, and ``labels`` from columns of the row."""
    kept = [label for label in ("datasource", *_LABELS) if label not in labels]
    given = [f"var-{label}=${{__data.fields.{column}}}" for label, column in labels.items()]
    return f"/d/ullage-{name}?" + "&".join(
        [*(f"${{{label}:queryparam}}" for label in kept), *given, "${__url_time_range}"]
    )


class Section(NamedTuple):
    """A row of the dashboard, and the panels below it, which flow from left to right."""

    title: str
    panels: Sequence[Panel]
    collapsed: bool = False


def board(name: str, description: str, sections: Iterable[Section]) -> Dashboard:
    """Put a dashboard together."""
    built = (
        Dashboard(f"ullage / {name}")
        .uid(f"ullage-{name.lower()}")
        .description(description)
        .tags([TAG])
        .editable()
        .time("now-3h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .variables([_datasource(), *_variables()])
        .annotations(list(_annotations()))
        .links([_links()])
    )
    built.build().panels = list(_placed(sections))
    return built


def _datasource() -> DatasourceVariable:
    variable = DatasourceVariable("datasource").label("Data source").type("prometheus")
    return _plain(variable)


def _variables() -> Iterable[QueryVariable]:
    """Yield a variable for each label; each offers only what the ones before it leave."""
    chosen: list[str] = []
    for label, metric in _LABELS.items():
        known = [name for name in chosen if name != "model_name" or metric == "ullage_process_info"]
        matchers = ", ".join(f'{name}=~"${name}"' for name in known)
        query = f"label_values({metric}{{{matchers}}}, {label})" if matchers else f"label_values({metric}, {label})"
        chosen.append(label)
        variable = (
            QueryVariable(label)
            .label(label.replace("_name", "").capitalize())
            .datasource(DATASOURCE)
            .query({"query": query, "refId": f"variable-{label}"})
            .multi(multi=True)
            .include_all(include_all=True)
            .all_value(".*")
            .current(VariableOption(selected=True, text=["All"], value=["$__all"]))
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(VariableSort.ALPHABETICAL_ASC)
        )
        yield _plain(variable)


def _plain(variable: _Variable) -> _Variable:
    """Take away what belongs to variables of another kind: Grafana's schema does not know it here."""
    model = variable.build()
    model.auto = model.auto_min = model.auto_count = None
    return variable


def _annotations() -> Iterable[AnnotationQuery]:
    resizes = _added(promql.buffer("ullage_buffer_resizes_total"))
    yield _annotation("Resizes", resizes, "{{buffer}} resized ({{direction}})", ORANGE)
    bounds = _added(promql.buffer("ullage_bounds_violations_total"))
    shapes = _added(promql.process("ullage_shape_violations_total"))
    yield _annotation("Violations", f"{bounds} or {shapes}", "violation of {{buffer}}{{contract}}", VERMILLION)
    exits = _added(promql.process("ullage_process_exits_total"))
    yield _annotation("Exits", exits, "{{outcome}} ({{cause}})", PURPLE)


def _added(counter: str) -> str:
    return promql.of_model(promql.added(counter))


def _annotation(name: str, expr: str, title: str, colour: str) -> AnnotationQuery:
    query = AnnotationQuery().name(name).datasource(DATASOURCE).enable(enable=True).icon_color(colour)
    return query.expr(expr).title_format(f"{title}, {{{{process}}}} {PLACE}").step("60s")


def _links() -> DashboardLink:
    link = DashboardLink("ullage").type(DashboardLinkType.DASHBOARDS).tags([TAG]).as_dropdown(as_dropdown=False)
    return link.icon("external link").include_vars(include_vars=True).keep_time(keep_time=True)


def _placed(sections: Iterable[Section]) -> Iterable[Panel | RowPanel]:
    """Give each panel its place and its id; a collapsed row holds its panels itself."""
    y, ident = 0, 0
    for section in sections:
        ident += 1
        row = RowPanel(
            title=section.title, collapsed=section.collapsed, id_val=ident, grid_pos=GridPos(h=1, w=COLUMNS, x=0, y=y)
        )
        y += 1
        x, tallest = 0, 0
        for panel in section.panels:
            assert panel.grid_pos is not None
            if x + panel.grid_pos.w > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            ident += 1
            panel.id_val = ident
            panel.grid_pos.x, panel.grid_pos.y = x, y
            x, tallest = x + panel.grid_pos.w, max(tallest, panel.grid_pos.h)
        y += tallest
        if section.collapsed:
            row.panels = list(section.panels)
            yield row
        else:
            yield row
            yield from section.panels
