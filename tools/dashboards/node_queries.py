"""What the panels of one node ask Prometheus."""

from __future__ import annotations

from dataclasses import replace

from cachetier.telemetry.metric_table import SERIES, MetricKind, Series
from tools.dashboards.panels import Query, Row

NODE = 'instance="$instance"'
RUNS = f'{NODE}, run=~"$run"'
WINDOW = "$__rate_interval"


def rate(metric: str, labels: str = NODE) -> str:
    return f"rate(cachetier_{metric}_total{{{labels}}}[{WINDOW}])"


def quantile(share: str, metric: str, by: str = "") -> str:
    per = f"sum by (le{by}) (rate(cachetier_{metric}_bucket{{{NODE}}}[{WINDOW}]))"
    return f"histogram_quantile({share}, {per})"


def state_of(labels: str = NODE) -> str:
    """Return the state of each remote as the number that ``STATES`` puts in words."""
    states = ("ok", "throttled", "unreachable", "refused", "unasked")
    return " or ".join(
        f"max by (instance, remote) "
        f'(cachetier_remote_state{{{labels}, state="{state}"}} == 1) * {number}'
        for number, state in enumerate(states)
    )


def with_declared(row: Row) -> Row:
    """Return ``row`` with the series that the table of metrics puts in its panels."""
    panels = [
        replace(
            panel,
            queries=[
                *panel.queries,
                *(_query(series) for series in SERIES.values() if series.panel == panel.title),
            ],
        )
        for panel in row.panels
    ]
    return replace(row, panels=panels)


def _query(series: Series) -> Query:
    is_counter = series.kind is MetricKind.COUNTER
    return Query(
        rate(series.name) if is_counter else f"{series.full_name}{{{NODE}}}", series.legend
    )
