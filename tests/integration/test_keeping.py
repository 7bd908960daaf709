"""Pins and collection through every door, and by the verbs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cachetier_client import NotFoundError, PinInfo, PinnedError, UnflushedStepsError
from cachetier_client.bucket_format.documents import UnflushedNote, UnflushedSave, encode
from cachetier_client.clock import SystemClock
from cachetier_client.io.digests import digest_of

from cachetier.errors import TransientError
from cachetier.local.catalog import copies
from cachetier.model.lifecycle import SaveState
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
    assert "cachetier pin --remove" in refused.err

    assert run(served, "pin", "--remove", "r", "1").out == "r/1: pinned no more\n"
    assert run(served, "pin", "--remove", "r", "1", "--json").json == {"was_pinned": False}


def test_gc_shows_first_and_removes_when_it_is_told_to(served: Served) -> None:
    assert run(served, "prune").out == "There is nothing to collect.\n"
    assert run(served, "prune", "--older-than", "soon").code == 2
    for save in ("one", "two"):
        run(served, "put", "-", *STEP, "--name", "x", "--save-id", save, stdin=b"x" * 2000)

    shown = run(served, "prune", "--older-than", "0s").out
    assert "r/1, save one" in shown
    assert "Nothing was removed: add --yes." in shown
    assert run(served, "prune", "--older-than", "0s", "--json").json["found"] == 1
    assert "Removed 1 thing, 2.0 kB" in run(served, "prune", "--yes", "--older-than", "0s").out
    assert run(served, "prune", "--older-than", "0s").out == "There is nothing to collect.\n"


def half_sent(served: Served) -> None:
    """Rank 0 of two is sealed and sent; a newer step of the run is published since."""
    save = ("--world-size", "2", "--save-id", "s", "--seal")
    run(served, "put", "-", *STEP, *save, "--name", "x", stdin=b"x" * 2000)
    served.drained("x", b"x" * 2000)
    store = served.service.store
    store.write(copies.record_part, 1, 0, uploaded=True)
    part = "p/r/1/.cachetier/rank-0.json"
    served.objects.put(part, b"{}", digest=digest_of(b"{}"))
    run(served, "put", "-", "r", "2", "--name", "x", "--seal", stdin=b"x")
    store.write(
        copies.record_outcome, store.policy, 2, SaveState.PUBLISHED, None, SystemClock().now()
    )


def test_gc_says_what_it_leaves_and_what_deletes_it(served: Served) -> None:
    half_sent(served)
    assert run(served, "prune").out == "There is nothing to collect.\n", "it is young"

    shown = run(served, "prune", "--yes", "--older-than", "0s")
    assert shown.code == 0
    assert shown.out.splitlines() == [
        "There is nothing to collect.",
        "Left: r/1, save s: whole here; rank 1 of 2 is to come from other nodes.",
        "      If nobody will complete it: cachetier delete r 1",
    ]
    found = run(served, "prune", "--older-than", "0s", "--json").json
    assert found["left"] == [
        {
            "what": "r/1, save s",
            "why": "whole here; rank 1 of 2 is to come from other nodes",
            "run": "r",
            "step": 1,
            "save_id": "s",
            "command": "cachetier delete r 1",
        }
    ]
    assert served.call.post("/v1/collect", {"older_than_seconds": 0}).json["collected"] == found

    assert run(served, "delete", "r", "1", "--yes").code == 0
    assert run(served, "prune", "--older-than", "0s").out == "There is nothing to collect.\n"


def test_gc_fails_where_a_remote_did_not_answer(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    half_sent(served)

    def away(*_arguments: object) -> None:
        raise TransientError("no answer")

    monkeypatch.setattr(served.objects, "head", away)
    for arguments in (("--older-than", "0s"), ("--older-than", "0s", "--yes")):
        shown = run(served, "prune", *arguments)
        assert shown.code == 1
        assert shown.out == "Not everything could be asked.\n"
        assert shown.err == "Not asked: durable: no answer. Nothing was removed there.\n"
    told = run(served, "prune", "--older-than", "0s", "--json")
    assert (told.code, told.json["unanswered"]) == (1, ["durable: no answer"])

    for save in ("one", "two"):
        step = ("q", "1", "--save-id", save)
        run(served, "put", "-", *step, "--name", "x", stdin=b"x" * 2000)
    shown = run(served, "prune", "--older-than", "0s", "--yes")
    assert shown.code == 1
    assert "Removed 1 thing, 2.0 kB on this node." in shown.out
    assert "Not asked: durable: no answer" in shown.err


def noted_elsewhere(served: Served) -> None:
    save = UnflushedSave(step=5, save_id="s", world_size=1, ranks=(0,))
    note = encode(UnflushedNote(run="r", store="0f", host="node-a", saves=(save,)))
    key = served.service._bucket.layout.unflushed_key("r", "0f")
    served.objects.put(key, note, digest=digest_of(note))


@pytest.mark.parametrize("door", ["unix", "http"])
def test_a_client_learns_what_other_nodes_hold_and_gives_it_up(served: Served, door: str) -> None:
    noted_elsewhere(served)
    with client_by(door, served) as client:
        (held,) = client.unflushed("r")
        assert (held.run, held.step, held.nodes, held.stores) == ("r", 5, ("node-a",), ("0f",))
        assert client.latest("r") is None
        with pytest.raises(UnflushedStepsError):
            client.latest("r", strict=True)
        assert client.latest("r", "local", strict=True) is None
        with pytest.raises(NotFoundError):
            client.forget("node-b")
        with pytest.raises(NotFoundError):
            client.forget(served.service.store.store_id)
        assert client.forget("node-a", "r") == [held]
        assert client.unflushed("r") == []


def test_the_verb_says_which_steps_are_given_up(served: Served) -> None:
    noted_elsewhere(served)
    latest = run(served, "ls", "r", "--latest", "--json")
    assert (latest.code, latest.json["step"]) == (1, None)
    given_up = run(served, "forget", "node-a")
    assert (given_up.code, given_up.out) == (0, "r/5: given up, with save s\n")
    assert run(served, "forget", "node-a").code == 1
    noted_elsewhere(served)
    forgotten = run(served, "forget", "0f", "r", "--json").json["forgotten"]
    assert [(step["run"], step["step"]) for step in forgotten] == [("r", 5)]
