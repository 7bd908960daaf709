"""A client hears of what went wrong with the runs it uses, once, and of nothing else."""

from __future__ import annotations

import pytest

from cachetier.local.catalog import notes
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.steps import incidents as incidents_module
from cachetier.steps.incidents import Incidents
from tests.stateful.node import Node

START = 100.0


@pytest.fixture
def incidents(node: Node) -> Incidents:
    heard = Incidents(node.store)
    heard.listen("client", START)
    heard.used("client", "run")
    return heard


def record(node: Node, incidents: Incidents, run: str = "run", at: float = START + 1) -> None:
    node.store.write(
        notes.insert_incident, IncidentRecord("integrity", "damaged", "hint", run, 1, "a"), at
    )
    incidents.refresh()


def test_an_incident_waits_until_it_is_taken(node: Node, incidents: Incidents) -> None:
    assert incidents.pending("client") == 0
    record(node, incidents)

    assert incidents.pending("client") == 1
    assert [i.code for i in incidents.take("client", clear=False)] == ["integrity"]
    assert [i.code for i in incidents.take("client")] == ["integrity"]
    assert incidents.pending("client") == 0
    assert incidents.take("client") == []


def test_other_runs_are_not_its_business(node: Node, incidents: Incidents) -> None:
    record(node, incidents, run="other")

    assert incidents.pending("client") == 0
    assert incidents.take("client") == []


def test_what_happened_before_it_was_created_is_not_told(node: Node, incidents: Incidents) -> None:
    record(node, incidents, at=START - 1)

    assert incidents.pending("client") == 0


def test_it_hears_of_what_happened_while_the_service_was_away(
    node: Node, incidents: Incidents
) -> None:
    record(node, incidents)
    after_restart = Incidents(node.store)
    after_restart.listen("client", START)
    after_restart.used("client", "run")

    assert after_restart.pending("client") == 1


def test_a_client_that_greets_again_keeps_its_place(node: Node, incidents: Incidents) -> None:
    record(node, incidents)
    incidents.take("client")

    incidents.listen("client", 0.0)

    assert incidents.pending("client") == 0


def test_strangers_are_told_nothing(node: Node, incidents: Incidents) -> None:
    record(node, incidents)

    assert incidents.pending("stranger") == 0
    assert incidents.take("stranger") == []
    incidents.used("stranger", "run")
    assert incidents.pending("stranger") == 0


def test_many_incidents_of_others_hide_none_of_ours(node: Node, incidents: Incidents) -> None:
    for _ in range(150):
        record(node, incidents, run="other")
    record(node, incidents)

    found = [i for _ in range(3) for i in incidents.take("client")]

    assert [i.run for i in found] == ["run"]


def test_clients_are_bounded_and_the_longest_silent_goes_first(
    node: Node, incidents: Incidents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incidents_module, "CLIENT_LIMIT", 3)
    for name in ("other/x", "p/b", "p/c", "p/client", "p/d"):
        incidents.listen(name, START)

    found = ("other/x", "p/b", "p/c", "p/client", "p/d")
    assert [name for name in found if incidents._listener(name)] == [
        *("other/x", "p/c", "p/client", "p/d")
    ]
