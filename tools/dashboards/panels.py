"""What a panel says, and how Grafana writes it down.

A dashboard is a list of rows of panels; where a panel lies follows from its width, and its
identity from its place. Nothing here knows a metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

COLUMNS = 24
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"
Json = dict[str, Any]
Steps = Sequence[tuple[float | None, str]]  # from this value on, this colour; the first has None


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression; ``legend`` may name labels as ``{{label}}``."""

    expr: str
    legend: str = ""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One question, and the queries that answer it.

    ``kind`` is Grafana's type; ``words`` shows numbers as words, ``by_name`` the legend in place of
    the number; ``runbook`` is a page's name.
    """

    title: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    steps: Steps = ((None, GREEN),)
    words: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    runbook: str = ""
    at_most: float | None = None
    when_empty: str = "-"
    by_name: bool = False
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # series: title, unit

    def written(self, number: int, left: int, top: int) -> Json:
        """Return the panel as Grafana reads it."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": left, "y": top},
            "targets": [self._target(index, query) for index, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": self._defaults(), "overrides": self._overrides()},
            "options": self._options(),
            **({"transformations": self._joined()} if self.kind == "table" else {}),
            **({"links": [self._link()]} if self.runbook else {}),
        }

    @property
    def _over_time(self) -> bool:
        return self.kind in ("timeseries", "state-timeline")

    def _target(self, index: int, query: Query) -> Json:
        return {
            "refId": chr(ord("A") + index),
            "expr": query.expr,
            "legendFormat": query.legend or "__auto",
            "datasource": DATASOURCE,
            "editorMode": "code",
            "range": self._over_time,
            "instant": not self._over_time,
            "format": "table" if self.kind == "table" else "time_series",
        }

    def _defaults(self) -> Json:
        defaults: Json = {
            "unit": self.unit,
            "min": 0,
            "noValue": self.when_empty,
            "color": {"mode": "thresholds" if self._coloured else "palette-classic"},
            "thresholds": {
                "mode": "absolute",
                "steps": [{"value": value, "color": color} for value, color in self.steps],
            },
            "mappings": [self._mapping()] if self.words else [],
        }
        if self.at_most is not None:
            defaults["max"] = self.at_most
        if self.kind == "timeseries":
            defaults["custom"] = {
                "drawStyle": "line",
                "lineWidth": 1,
                "fillOpacity": 10,
                "showPoints": "never",
                "spanNulls": False,
                "thresholdsStyle": {"mode": "line" if len(self.steps) > 1 else "off"},
            }
        return defaults

    @property
    def _coloured(self) -> bool:
        return self.kind != "timeseries"

    def _mapping(self) -> Json:
        options = {
            str(value): {"text": text, "color": color, "index": index}
            for index, (value, (text, color)) in enumerate(self.words.items())
        }
        return {"type": "value", "options": options}

    def _overrides(self) -> list[Json]:
        dashed = [
            _override(query.legend, {"custom.lineStyle": {"fill": "dash", "dash": [8, 8]}})
            for query in self.queries
            if query.dashed
        ]
        units = [
            _override(name, {"displayName": title, "unit": unit})
            for name, (title, unit) in self.names.items()
        ]
        return dashed + units

    def _options(self) -> Json:
        if self.kind == "timeseries":
            return {
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }
        if self.kind == "state-timeline":
            return {"mergeValues": True, "showValue": "auto", "rowHeight": 0.8}
        if self.kind == "table":
            return {"showHeader": True, "cellHeight": "sm"}
        newest = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
        if self.kind == "gauge":
            return {**newest, "showThresholdLabels": False, "showThresholdMarkers": True}
        return {
            **newest,
            "colorMode": "background",
            "graphMode": "none",
            "textMode": "name" if self.by_name else "auto",
        }

    def _joined(self) -> list[Json]:
        """Return how the results of a table's queries become one table without the instants."""
        hidden = {"Time": True, "__name__": True, "job": True}
        return [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": hidden}},
        ]

    def _link(self) -> Json:
        return {
            "title": f"Runbook: {self.runbook}",
            "url": f"${{runbooks}}/{self.runbook}.md",
            "targetBlank": True,
        }


def _override(name: str, properties: Mapping[str, Any]) -> Json:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }


def headline(title: str, description: str, queries: Sequence[Query], **more: Any) -> Panel:
    """Return a panel that shows one number; six of them are a line."""
    return Panel(title, description, queries, kind="stat", width=4, height=5, **more)


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading, from left to right, and on as many lines as they need."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A whole page; ``variables`` are those beside the data source and the runbooks' address."""

    uid: str
    title: str
    description: str
    rows: Sequence[Row]
    variables: Sequence[Json]

    def written(self) -> Json:
        """Return the document that is provisioned."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": ["cachetier"],
            "schemaVersion": 39,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "10s",
            "time": {"from": "now-3h", "to": "now"},
            "timezone": "browser",
            "templating": {"list": [_datasource(), *self.variables, _runbooks()]},
            "annotations": {"list": [_alerts()]},
            "links": [_other_dashboards()],
            "panels": list(self._placed()),
        }

    def _placed(self) -> Iterator[Json]:
        number, top = 0, 0
        for row in self.rows:
            number += 1
            yield _heading(row.title, number, top)
            top, left, height = top + 1, 0, 0
            for panel in row.panels:
                number += 1
                if left + panel.width > COLUMNS:
                    top, left, height = top + height, 0, 0
                yield panel.written(number, left, top)
                left, height = left + panel.width, max(height, panel.height)
            top += height


def _heading(title: str, number: int, top: int) -> Json:
    place = {"h": 1, "w": COLUMNS, "x": 0, "y": top}
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": place,
        "panels": [],
    }


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "refresh": 1,
        "regex": "",
    }


def _runbooks() -> Json:
    address = "/public/runbooks"
    return {
        "name": "runbooks",
        "label": "Runbooks at",
        "type": "textbox",
        "query": address,
        "current": {"text": address, "value": address},
        "hide": 0,
    }


def variable(name: str, label: str, query: str, *, many: bool) -> Json:
    """Return a variable whose values Prometheus knows; ``many``: any number, at first all."""
    everything = {"text": ["All"], "value": ["$__all"]}
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": many,
        "includeAll": many,
        "allValue": ".*" if many else None,
        "current": everything if many else {},
        "hide": 0,
        "regex": "",
    }


def _alerts() -> Json:
    """Return the marks on every graph where an alert fired."""
    return {
        "name": "Alerts",
        "datasource": DATASOURCE,
        "enable": True,
        "expr": 'ALERTS{alertname=~"Cachetier.*", alertstate="firing"}',
        "iconColor": RED,
        "step": "60s",
        "titleFormat": "{{alertname}}",
        "textFormat": "{{instance}} {{run}}",
    }


def _other_dashboards() -> Json:
    return {
        "title": "cachetier",
        "type": "dashboards",
        "tags": ["cachetier"],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
    }
