"""Pins and collection through every door, and by the verbs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cachetier_client import NotFoundError, PinInfo, PinnedError

from tests.integration.serving import Served, client_by, serving
from tests.integration.test_cli import STEP, run


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


@pytest.mark.parametrize("door", ["unix", "http"])
def test_a_client_pins_and_unpins(served: Served, door: str) -> None:
    with client_by(door, served) as client:
        client.put_shard(b"x" * 1000, run="r", step=1, name="x", save_id="s")
        assert client.pins() == []

        pinned = client.pin("r", 1)
        assert (pinned.run, pinned.step, pinned.local_shards, pinned.local_bytes) == (
            *("r", 1, 1, 1000),
        )
        assert client.pins() == [pinned]
        assert isinstance(pinned, PinInfo)
        assert [step.pinned for step in client.steps("r")] == [True]
        assert client.step("r", 1).pinned
        with pytest.raises(PinnedError) as refusal:
            client.delete_step("r", 1)
        assert (refusal.value.run, refusal.value.step) == ("r", 1)
        assert client.status()["pinned"] == {"steps": 1, "size_bytes": 1000}

        assert client.unpin("r", 1) is True
        assert client.unpin("r", 1) is False
        assert client.delete_step("r", 1) == 1
        with pytest.raises(NotFoundError):
            client.pin("r", 1)


@pytest.mark.parametrize("door", ["unix", "http"])
def test_a_client_looks_for_rubbish_before_it_collects_any(served: Served, door: str) -> None:
    with client_by(door, served) as client:
        client.put_shard(b"old", run="r", step=1, name="x", save_id="first")
        client.put_shard(b"new", run="r", step=1, name="x", save_id="second")

        found = client.collect(older_than_seconds=0)
        assert (found["dry_run"], found["found"], found["size_bytes"]) == (True, 1, 3)
        assert found["rubbish"][0]["save_id"] == "first"
        assert client.collect(older_than_seconds=0) == found, "nothing went"
        assert client.collect(dry_run=False)["found"] == 0, "nothing is a day old"

        assert client.collect(dry_run=False, older_than_seconds=0)["found"] == 1
        assert client.collect(older_than_seconds=0)["found"] == 0
        assert bytes(client.get_shard("r", 1, "x")) == b"new"


def test_the_http_door_judges_what_it_is_told(served: Served) -> None:
    assert served.call("PUT", "/v1/runs/r/steps/1/pin").code == "not_found"
    assert served.call("PUT", "/v1/runs/r/steps/01/pin").code == "invalid_name"
    assert served.call.post("/v1/collect", {"older_than_seconds": -1}).code == "invalid_request"
    assert served.call.post("/v1/collect", {"yes": True}).code == "invalid_request"
    run(served, "put", "-", *STEP, "--name", "x", stdin=b"x")
    assert served.call("PUT", "/v1/runs/r/steps/1/pin").json["pin"]["shards"] == 1
    refused = served.call("DELETE", "/v1/runs/r/steps/1")
    assert (refused.status, refused.code) == (409, "pinned")
    assert served.call("GET", "/v1/pins").json["pins"][0]["local_bytes"] == 1
    assert served.call("DELETE", "/v1/runs/r/steps/1/pin").json == {"was_pinned": True}


def test_the_verbs_pin_list_and_unpin(served: Served) -> None:
    assert run(served, "pin", "r", "1").code == 1
    assert run(served, "pin").code == 2
    assert run(served, "pin", "--list", "r").code == 2
    assert run(served, "pin", "--list", "--json").json == {"pins": []}
    run(served, "put", "-", *STEP, "--name", "x", "--seal", stdin=b"x" * 2000)

    assert run(served, "pin", "r", "1").out == "r/1: pinned, 2.0 kB stay on this node\n"
    listed = run(served, "pin", "--list").out
    assert "1/1" in listed
    assert "2.0 kB" in listed
    assert "sealed, pinned" in run(served, "ls", "r").out
    assert "sealed, pinned" in run(served, "ls", "r", "1").out
    assert run(served, "ls", "r", "--json").json["steps"][0]["pinned"] is True
    refused = run(served, "delete", "r", "1", "--yes", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (1, "pinned")
    assert "cachetier unpin" in refused.err

    assert run(served, "unpin", "r", "1").out == "r/1: unpinned\n"
    assert run(served, "unpin", "r", "1", "--json").json == {"was_pinned": False}


def test_gc_shows_first_and_removes_when_it_is_told_to(served: Served) -> None:
    assert run(served, "gc").out == "There is nothing to collect.\n"
    assert run(served, "gc", "--older-than", "soon").code == 2
    for save in ("one", "two"):
        run(served, "put", "-", *STEP, "--name", "x", "--save-id", save, stdin=b"x" * 2000)

    shown = run(served, "gc", "--older-than", "0").out
    assert "r/1, save one" in shown
    assert "Nothing was removed: add --yes." in shown
    assert run(served, "gc", "--older-than", "0", "--json").json["found"] == 1
    assert "Removed 1 thing, 2.0 kB" in run(served, "gc", "--yes", "--older-than", "0s").out
    assert run(served, "gc", "--older-than", "0").out == "There is nothing to collect.\n"
