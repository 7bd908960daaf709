"""The committed dashboards are those of the code, and Grafana can lay them out."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from cachetier.telemetry.metric_table import SERIES
from tests.operate.rules import RUNBOOKS, dashboards, panels
from tools.dashboards.files import FOLDER, documents
from tools.dashboards.panels import COLUMNS

DASHBOARDS = dashboards()
each_dashboard = pytest.mark.parametrize("name", DASHBOARDS)


def test_the_committed_files_are_what_the_code_writes() -> None:
    committed = {file: file.read_text(encoding="utf-8") for file in FOLDER.iterdir()}

    assert committed == documents(), "run `make docs`"


@each_dashboard
def test_no_panel_covers_another_or_leaves_the_page(name: str) -> None:
    def cells(panel: Any) -> set[tuple[int, int]]:
        place = panel["gridPos"]
        across = range(place["x"], place["x"] + place["w"])
        down = range(place["y"], place["y"] + place["h"])
        return set(itertools.product(across, down))

    placed = [cells(panel) for panel in DASHBOARDS[name]["panels"]]

    assert sum(map(len, placed)) == len(set().union(*placed))
    assert all(column < COLUMNS for column, _ in set().union(*placed))


@each_dashboard
def test_every_panel_says_what_it_shows_in_which_unit(name: str) -> None:
    shown = list(panels(DASHBOARDS[name]))
    numbers = [panel["id"] for panel in DASHBOARDS[name]["panels"]]

    assert len(set(numbers)) == len(numbers)
    for panel in shown:
        assert panel["description"].endswith((".", "`.")), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]


def test_every_panel_that_the_table_of_metrics_names_is_one_of_the_node() -> None:
    named = {series.panel for series in SERIES.values()} - {""}

    assert named <= {panel["title"] for panel in panels(DASHBOARDS["node.json"])}


@each_dashboard
def test_every_query_is_about_the_chosen_nodes_and_known_variables(name: str) -> None:
    dashboard = DASHBOARDS[name]
    known = {each["name"] for each in dashboard["templating"]["list"]} | {"__rate_interval"}
    queries = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]

    assert {"datasource", "instance", "run"} <= known
    assert {found for query in queries for found in re.findall(r"\$(\w+)", query)} <= known
    of_nodes = [query for query in queries if "cachetier_" in query]
    assert all("$instance" in query for query in of_nodes)


@each_dashboard
def test_every_linked_runbook_is_there(name: str) -> None:
    links = [link["url"] for panel in panels(DASHBOARDS[name]) for link in panel.get("links", ())]

    assert len(links) > 5
    pages = [link.removeprefix("${runbooks}/") for link in links]
    assert [page for page in pages if not (RUNBOOKS / page).is_file()] == []
