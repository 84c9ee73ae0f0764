"""Panels in the manner of this project. Where they stand, and their ids, is the frame's business."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from grafana_foundation_sdk.builders import bargauge, common, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders.dashboard import FieldColor, ThresholdsConfig
from grafana_foundation_sdk.models import common as look
from grafana_foundation_sdk.models.dashboard import (
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.table import Options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grafana_foundation_sdk.models.dashboard import Panel

DATASOURCE = look.DataSourceRef(type_val="prometheus", uid="${datasource}")

# Okabe and Ito's colours, which stay apart for colour-blind eyes; the blues are those that show on dark and light.
BLUE, DEEP_BLUE, ORANGE, VERMILLION, PURPLE, GREY = "#56B4E9", "#0072B2", "#E69F00", "#D55E00", "#CC79A7", "#999999"
GREEN, YELLOW = "#009E73", "#F0E442"

Steps = tuple[tuple[float | None, str], ...]
CALM: Steps = ((None, BLUE),)
FULLNESS: Steps = ((None, BLUE), (0.75, ORANGE), (0.9, VERMILLION))
ANY_WARNS: Steps = ((None, BLUE), (1, ORANGE))
ANY_ALARMS: Steps = ((None, BLUE), (1, VERMILLION))

# By initial: a buffer has its colour everywhere, and most of those of one process are apart. Grafana has such a palette
# of its own, but too new a one: an older Grafana refuses a panel that names it.
INITIALS = {
    "[a-c].*": GREEN,
    "[d-j].*": PURPLE,
    "k.*": BLUE,
    "[l-q].*": YELLOW,
    "r[a-t].*": ORANGE,
    "r[u-z].*": VERMILLION,
    "s[a-s].*": DEEP_BLUE,
    "(s[t-z]|[t-z]).*": GREY,
}

STATES = {"running": BLUE, "stalled": ORANGE, "stopped": GREY, "killed": VERMILLION, "crashed": PURPLE}
SEVERITIES = {"critical": VERMILLION, "warning": ORANGE, "info": BLUE}
PROBES = {"installed": BLUE, "absent": GREY, "changed": ORANGE, "disabled": VERMILLION}


class Query(NamedTuple):
    """An expression, and how its series are named."""

    expr: str
    legend: str = ""


class Column(NamedTuple):
    """How a column of a table is shown. ``unit`` is one of Grafana's; ``colours`` are by value, or by threshold."""

    title: str
    unit: str = "none"
    width: int | None = None
    steps: Steps | None = None
    gauge: bool = False
    colours: Mapping[str, str] | None = None
    link: str = ""


def numbers(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    width: int,
    steps: Steps = CALM,
    none: str = "0",
    colours: Mapping[str, str] | None = None,
    sparkline: bool = False,
) -> Panel:
    """One or a few large numbers, as of now; ``none`` where there are no series."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(width)
        .height(4)
        .unit(unit)
        .no_value(none)
        .thresholds(_thresholds(steps))
        .color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .color_mode(look.BigValueColorMode.VALUE)
        .graph_mode(look.BigValueGraphMode.AREA if sparkline else look.BigValueGraphMode.NONE)
        .text_mode(look.BigValueTextMode.VALUE_AND_NAME if _named(queries) else look.BigValueTextMode.VALUE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .targets([_target(index, query, instant=not sparkline) for index, query in enumerate(queries)])
    )
    for name, colour in (colours or {}).items():
        panel.override_by_name(name, [_fixed(colour)])
    return panel.build()


def lines(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    width: int = 12,
    height: int = 8,
    colours: Mapping[str, str] | None = None,
    steps: Steps | None = None,
    dashed: Sequence[str] = (),
    by_initial: bool = False,
    bars: bool = False,
    most: float | None = None,
    bytes_by: Sequence[str] = (),
    none: str = "none",
) -> Panel:
    """Draw series over time.

    ``dashed`` names series that are limits; ``steps`` colours each series by its last value, ``by_initial`` by its
    name; those named in ``colours`` (a regular expression) have that one; queries in ``bytes_by`` are in bytes.
    """
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(width)
        .height(height)
        .unit(unit)
        .no_value(none)
        .min(0)
        .line_width(1 if bars else 2)
        .fill_opacity(70 if bars else 0)
        .draw_style(look.GraphDrawStyle.BARS if bars else look.GraphDrawStyle.LINE)
        .show_points(look.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(look.LegendDisplayMode.TABLE)
            .placement(look.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
            .calcs(["sum"] if bars else ["lastNotNull", "max"])
        )
        .tooltip(common.VizTooltipOptions().mode(look.TooltipDisplayMode.MULTI).sort(look.SortOrder.DESCENDING))
        .targets([_target(index, query) for index, query in enumerate(queries)])
    )
    if most is not None:
        panel.axis_soft_max(most)
    if bars:
        panel.stacking(common.StackingConfig().mode(look.StackingMode.NORMAL))
    if steps is None:
        panel.color_scheme(FieldColor().mode(FieldColorModeId.SHADES).fixed_color(BLUE))
    else:
        panel.thresholds(_thresholds(steps)).color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS))
    for ref_id in bytes_by:
        panel.override_by_query(ref_id, [DynamicConfigValue(id_val="unit", value="bytes")])
    for name, colour in ((INITIALS if by_initial else {}) | dict(colours or {})).items():
        panel.override_by_regexp(f"^({name})$", [_fixed(colour)])
    for name in dashed:
        style = DynamicConfigValue(id_val="custom.lineStyle", value={"fill": "dash", "dash": [8, 6]})
        panel.override_by_regexp(f"^({name})$", [style])
    return panel.build()


def rows(
    title: str,
    description: str,
    *queries: Query,
    columns: Mapping[str, Column],
    width: int = 12,
    height: int = 8,
    sort: str = "",
    none: str = "none",
) -> Panel:
    """Return a table of what the queries say now, joined on the labels they share.

    ``columns`` are by label, or ``Value #A`` for query A (``Value`` if there is one query only), in their order; other
    labels are left out.
    """
    order = {name: index for index, name in enumerate(columns)}
    names = {name: column.title for name, column in columns.items()}
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(width)
        .height(height)
        .unit("none")
        .no_value(none)
        .thresholds(_thresholds(CALM))
        .cell_height(look.TableCellHeight.SM)
        .targets([_target(index, query, instant=True, tabular=True) for index, query in enumerate(queries)])
        .transformations(
            [
                *([DataTransformerConfig(id_val="merge", options={})] if len(queries) > 1 else []),
                DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"names": list(columns)}}),
                DataTransformerConfig(
                    id_val="organize", options={"indexByName": order, "renameByName": names, "excludeByName": {}}
                ),
            ]
        )
    )
    if sort:
        panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(desc=True)])
    for column in columns.values():
        panel.override_by_name(column.title, _column(column))
    built = panel.build()
    assert isinstance(built.options, Options)
    built.options.footer = None  # Grafana 13 has none
    return built


def bars(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str,
    width: int = 12,
    height: int = 8,
    buckets: bool = False,
    names: Mapping[str, tuple[str, str]],
) -> Panel:
    """Draw a bar for each series, as of now; ``names`` gives each a title and a colour.

    ``buckets`` turns a histogram's cumulative counts into plain ones.
    """
    panel = (
        bargauge.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(width)
        .height(height)
        .unit(unit)
        .no_value("none")
        .min(0)
        .decimals(0)
        .thresholds(_thresholds(CALM))
        .color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .orientation(look.VizOrientation.HORIZONTAL)
        .display_mode(look.BarGaugeDisplayMode.BASIC)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .targets([_target(0, query, instant=True, buckets=buckets)])
    )
    for name, (shown, colour) in names.items():
        panel.override_by_name(name, [DynamicConfigValue(id_val="displayName", value=shown), _fixed(colour)])
    return panel.build()


def bands(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str,
    width: int = 12,
    height: int = 8,
    steps: Steps = CALM,
    names: Mapping[str, str] | None = None,
) -> Panel:
    """Draw a band for each series, coloured by ``steps``, or its values are positions in ``names``."""
    panel = (
        statetimeline.Panel()
        .title(title)
        .description(description)
        .datasource(DATASOURCE)
        .span(width)
        .height(height)
        .unit(unit)
        .no_value("none")
        .thresholds(_thresholds(steps))
        .color_scheme(FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .max_data_points(100)  # a band needs no more, and over a large fleet each costs
        .merge_values(merge_values=True)
        .show_value(look.VisibilityMode.NEVER)
        .row_height(0.8)
        .fill_opacity(90)
        .legend(
            common.VizLegendOptions()
            .display_mode(look.LegendDisplayMode.LIST)
            .placement(look.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
        )
        .targets([_target(0, query)])
    )
    if names:
        mapping = {
            str(index): ValueMappingResult(text=name, color=colour, index=index)
            for index, (name, colour) in enumerate(names.items())
        }
        panel.mappings([ValueMap(options=mapping)])
    return panel.build()


def _named(queries: Sequence[Query]) -> bool:
    return any(query.legend for query in queries)


def _target(
    index: int, query: Query, *, instant: bool = False, tabular: bool = False, buckets: bool = False
) -> prometheus.Dataquery:
    shape = PromQueryFormat.TABLE if tabular else PromQueryFormat.HEATMAP if buckets else PromQueryFormat.TIME_SERIES
    target = (
        prometheus.Dataquery()
        .datasource(DATASOURCE)
        .expr(query.expr)
        .legend_format(query.legend or "__auto")
        .format(shape)
        .ref_id(chr(ord("A") + index))
    )
    return target.instant() if instant else target.range()


def _thresholds(steps: Steps) -> ThresholdsConfig:
    made = [Threshold(value=value, color=colour) for value, colour in steps]
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(made)


def _fixed(colour: str) -> DynamicConfigValue:
    return DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour})


def _column(column: Column) -> list[DynamicConfigValue]:
    found = [DynamicConfigValue(id_val="unit", value=column.unit), DynamicConfigValue(id_val="noValue", value="-")]
    if column.width:
        found.append(DynamicConfigValue(id_val="custom.width", value=column.width))
    if column.steps:
        steps = [{"value": value, "color": colour} for value, colour in column.steps]
        found.append(DynamicConfigValue(id_val="thresholds", value={"mode": "absolute", "steps": steps}))
        found.append(DynamicConfigValue(id_val="color", value={"mode": "thresholds"}))
        cell: dict[str, str] = {"type": "gauge", "mode": "basic"} if column.gauge else {"type": "color-text"}
        found.append(DynamicConfigValue(id_val="custom.cellOptions", value=cell))
    if column.gauge:
        found += [DynamicConfigValue(id_val="min", value=0), DynamicConfigValue(id_val="max", value=1)]
    if column.colours:
        options = {name: {"color": colour, "index": i} for i, (name, colour) in enumerate(column.colours.items())}
        found.append(DynamicConfigValue(id_val="mappings", value=[{"type": "value", "options": options}]))
        found.append(DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}))
    if column.link:
        link = {"title": "Open", "url": column.link, "targetBlank": False}
        found.append(DynamicConfigValue(id_val="links", value=[link]))
    return found
