"""Grafana's own schema of dashboards knows every field of the committed ones.

Grafana itself is not run here: what stands in for it is the library that it makes from its schemas.
A field that the library does not know, or knows under another type, is lost when it reads a file
and writes it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.operate.rules import dashboards

DASHBOARDS = dashboards()
# Fields of the Prometheus data source, for which the schema of a dashboard leaves room unnamed.
OF_THE_DATASOURCE = {"definition", "step", "textFormat", "titleFormat"}

register_default_plugins()


def lost(written: Any, read: Any, path: str = "") -> Iterator[str]:
    """Yield where ``read`` does not say what ``written`` does."""
    if isinstance(written, dict) and isinstance(read, dict):
        for name, value in written.items():
            if value is not None and name not in OF_THE_DATASOURCE:
                yield from lost(value, read.get(name), f"{path}/{name}")
    elif isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        for number, (one, other) in enumerate(zip(written, read, strict=True)):
            yield from lost(one, other, f"{path}/{number}")
    elif written != read:
        yield f"{path}: {written!r} was read as {read!r}"


def as_grafana_reads(dashboard: Any) -> Any:
    return json.loads(JSONEncoder().encode(Dashboard.from_json(json.loads(json.dumps(dashboard)))))


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafana_reads_every_field_of_a_dashboard(name: str) -> None:
    assert list(lost(DASHBOARDS[name], as_grafana_reads(DASHBOARDS[name]))) == []


def test_a_field_that_no_panel_of_its_kind_has_would_be_found() -> None:
    dashboard = json.loads(json.dumps(DASHBOARDS["node.json"]))
    panel = next(each for each in dashboard["panels"] if each["type"] == "gauge")
    panel["options"]["textMode"] = "auto"

    found = list(lost(dashboard, as_grafana_reads(dashboard)))

    assert [each.rpartition("/")[2] for each in found] == ["textMode: 'auto' was read as None"]
