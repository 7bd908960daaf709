"""A rank's part of a save: sealed at the end, or taken back; and questions about steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cachetier_client import (
    Client,
    IntegrityError,
    InvalidRequestError,
    NotDurableError,
    SealedError,
    ShardInfo,
    StepInfo,
)

from tests.client.fake_service import FakeService, Refusal
from tests.client.fakes import FakeClock

STEP = {
    "run": "a-run",
    "step": 7,
    "save_id": "one",
    "state": "sealed",
    "levels": ["local"],
    "ranks": [0, 1],
    "world_size": 2,
    "shards": 3,
    "size_bytes": 30,
    "dirty_bytes": 10,
    "started_at": 1.0,
    "sealed_at": 2.0,
    "published_at": None,
}


def test_a_checkpoint_left_normally_is_sealed(
    service: FakeService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    with client.checkpoint("a-run", 7, save_id="one") as checkpoint:
        checkpoint.put(b"weights", "model")
        with checkpoint.open("optimizer") as stream:
            stream.write(b"moments")

    (sealed,) = service.sealed
    assert sealed["ranks_on_node"] == 2
    assert {sealed[key] for key in ("rank", "world_size", "save_id")} == {1, 4, "one"}
    assert set(checkpoint.receipts) == {"model", "optimizer"}
    assert checkpoint.sealed_ranks == (1,)
    assert not service.aborted


def test_a_checkpoint_left_by_an_exception_is_taken_back(
    service: FakeService, client: Client
) -> None:
    with pytest.raises(ZeroDivisionError):
        with client.checkpoint("a-run", 7) as checkpoint:
            checkpoint.put(b"weights", "model")
            raise ZeroDivisionError

    assert len(service.aborted) == 1
    assert not service.sealed


def test_an_abort_that_fails_does_not_hide_what_happened(
    service: FakeService, client: Client
) -> None:
    service.refusals["abort_rank"] = [Refusal("internal")]

    with pytest.raises(ZeroDivisionError) as caught:
        with client.checkpoint("a-run", 7):
            raise ZeroDivisionError

    assert "aborting the checkpoint failed too" in caught.value.__notes__[0]


def test_a_put_that_fails_inside_takes_the_part_back(service: FakeService, client: Client) -> None:
    service.refusals["put"] = [Refusal("sealed")]

    with pytest.raises(SealedError, match="put_shard run=a-run step=7 rank=0 shard=model"):
        with client.checkpoint("a-run", 7) as checkpoint:
            checkpoint.put(b"weights", "model")

    assert len(service.aborted) == 1


def test_a_seal_that_fails_takes_the_part_back(service: FakeService, client: Client) -> None:
    service.refusals["seal"] = [Refusal("incomplete")]

    with pytest.raises(Exception, match="seal run=a-run step=7 rank=0"):
        with client.checkpoint("a-run", 7):
            pass

    assert len(service.aborted) == 1


def test_a_stream_left_open_is_no_checkpoint(service: FakeService, client: Client) -> None:
    with pytest.raises(InvalidRequestError, match="1 shard of the checkpoint is still"):
        with client.checkpoint("a-run", 7) as checkpoint:
            checkpoint.open("model").write(b"weights")

    assert not service.sealed
    assert len(service.aborted) == 1


def test_an_ended_checkpoint_takes_no_more(client: Client) -> None:
    with client.checkpoint("a-run", 7) as checkpoint:
        pass

    with pytest.raises(InvalidRequestError, match="ended"):
        checkpoint.put(b"x", "late")


def test_ack_durable_waits_for_this_ranks_shards_after_the_seal(
    service: FakeService, client: Client
) -> None:
    service.answers["wait"] = {"level": "durable", "age_seconds": 0.1}

    with client.checkpoint("a-run", 7, ack="durable") as checkpoint:
        checkpoint.put(b"x", "a")
        checkpoint.put(b"y", "b")

    assert [waited["name"] for waited in service.ids("wait")] == ["a", "b"]
    assert service.ops.index("seal") < service.ops.index("wait")


def test_ack_durable_not_in_time_leaves_the_part_sealed(
    service: FakeService, client: Client
) -> None:
    service.refusals["wait"] = [Refusal("not_durable")]

    with pytest.raises(NotDurableError):
        with client.checkpoint("a-run", 7, ack="durable") as checkpoint:
            checkpoint.put(b"x", "a")

    assert service.sealed
    assert not service.aborted


def test_overwriting_is_a_new_save_each_time_it_ends(service: FakeService, client: Client) -> None:
    client.put_shard(b"x", step=7, name="s")
    client.put_shard(b"y", step=7, name="s", overwrite=True)
    client.put_shard(b"z", step=7, name="t", overwrite=True)
    client.seal("a-run", 7, overwrite=True)
    with client.checkpoint("a-run", 7, overwrite=True) as third:
        pass

    first, second, also_second = (header["save_id"] for header in service.ids("put"))
    assert second == also_second == f"{first}-o1"
    assert third.save_id == f"{first}-o2"
    assert all(header["overwrite"] for header in service.sealed)


@pytest.mark.parametrize(
    ("ask", "op", "fields"),
    [
        (lambda client: client.steps(), "steps", {"run": "a-run", "level": None}),
        (lambda client: client.steps(level="durable"), "steps", {"level": "durable"}),
    ],
)
def test_steps_are_listed(
    service: FakeService,
    client: Client,
    ask: Callable[[Client], list[StepInfo]],
    op: str,
    fields: dict[str, Any],
) -> None:
    service.answers["steps"] = {"steps": [STEP]}

    (found,) = ask(client)

    assert (found.step, found.levels, found.ranks) == (7, ("local",), (0, 1))
    assert (found.shard_count, found.shards, found.published_at) == (3, (), None)
    assert fields.items() <= service.ids(op)[0].items()


def test_a_name_that_comes_first_is_no_data(service: FakeService, client: Client) -> None:
    with pytest.raises(TypeError, match=r"put\(data, name\) takes the data first, and got 'model'"):
        with client.checkpoint("a-run", 7) as checkpoint:
            checkpoint.put("model", b"weights")  # type: ignore[arg-type]

    assert not service.sealed
    assert checkpoint.receipts == {}


def test_the_latest_step_is_told_or_none(service: FakeService, client: Client) -> None:
    service.answers["latest"] = {"step": STEP}
    latest = client.latest(level="local")
    assert latest is not None
    assert latest.step == 7

    service.answers["latest"] = {"step": None}
    assert client.latest("other") is None
    assert [header["level"] for header in service.ids("latest")] == ["local", "durable"]


def test_a_newer_step_of_this_node_is_named_and_logged(
    service: FakeService, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    service.answers["latest"] = {"step": STEP, "newer_local": 9}
    with caplog.at_level("INFO", logger="cachetier_client"):
        latest = client.latest()
        assert latest is not None
        assert (latest.step, latest.newer_local) == (7, 9)
        service.answers["latest"] = {"step": None, "newer_local": 9}
        assert client.latest("other") is None

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", f"the newest step of run {run} at level durable is {step}; {here}")
        for here in ["this node can restore 9, which is newer"]
        for run, step in [("a-run", 7), ("other", None)]
    ]


def test_a_step_is_told_with_its_shards(service: FakeService, client: Client) -> None:
    shard = {"name": "model", "rank": 1, "size_bytes": 9, "digest": "0" * 16, "state": "dirty"}
    service.answers["step"] = {"step": {**STEP, "shards": [shard]}}

    found = client.step("a-run", 7)

    assert found.shards == (ShardInfo("model", 1, 9, "0" * 16, "dirty"),)
    assert found.shard_count == 1


def test_waiting_asks_the_service_to_wait_a_little_less(
    service: FakeService, client: Client
) -> None:
    service.answers["wait"] = {"level": "durable", "age_seconds": 3.5}

    reached = client.wait("a-run", 7, "durable", 10.0)

    assert (reached.level, reached.age_seconds) == ("durable", 3.5)
    (asked,) = service.ids("wait")
    assert 0.0 < asked["timeout_seconds"] < 10.0
    assert asked["name"] is None


def test_waiting_for_no_time_asks_how_it_is_now(service: FakeService, client: Client) -> None:
    service.refusals["wait"] = [Refusal("not_durable")]

    with pytest.raises(NotDurableError, match="wait run=a-run step=7"):
        client.wait("a-run", 7, timeout_seconds=0)

    assert service.ids("wait")[0]["timeout_seconds"] == 0.0


def test_waiting_for_what_is_damaged_says_so(service: FakeService, client: Client) -> None:
    service.refusals["wait"] = [Refusal("integrity")]

    with pytest.raises(IntegrityError):
        client.wait("a-run", 7)


def test_a_flush_that_leaves_something_dirty_is_an_error(
    service: FakeService, client: Client
) -> None:
    nothing = {"pending_shards": 0, "pending_bytes": 0, "pending_steps": []}
    service.answers["flush"] = nothing
    client.flush("a-run", 7)

    steps = [{"run": "a-run", "step": step, "shards": 1, "size_bytes": 10} for step in (7, 8)]
    service.answers["flush"] = {"pending_shards": 2, "pending_bytes": 20, "pending_steps": steps}
    with pytest.raises(
        NotDurableError, match=r"2 shards \(20 B\) are .* of steps a-run/7, a-run/8"
    ):
        client.flush(timeout_seconds=5)

    assert [header["run"] for header in service.ids("flush")] == ["a-run", None]


@pytest.mark.parametrize("code", ["busy", "stopping"])
def test_a_wait_whose_time_is_over_is_not_durable_however_busy_the_service_is(
    service: FakeService, code: str
) -> None:
    for call in ("flush", "wait"):
        service.refusals[call] = [Refusal(code)] * 1000
        with Client(service.url, run="a-run", clock=FakeClock()) as client:
            with pytest.raises(NotDurableError, match=f"whether it is durable.*{code}"):
                getattr(client, call)("a-run", 7, timeout_seconds=0.0)


def test_what_is_left_of_a_flush_is_told_as_people_count(
    service: FakeService, client: Client
) -> None:
    steps = [{"run": "a-run", "step": 7, "shards": 1, "size_bytes": 67_108_864}]
    left = {"pending_shards": 1, "pending_bytes": 67_108_864, "pending_steps": steps}
    service.answers["flush"] = left
    with pytest.raises(NotDurableError) as caught:
        client.flush(timeout_seconds=5)
    assert caught.value.message == "1 shard (67.1 MB) is not durable in time, of step a-run/7"


def test_the_rest_is_asked_in_the_protocols_words(service: FakeService, client: Client) -> None:
    service.answers |= {
        "runs": {"runs": ["a", "b"]},
        "status": {"status": {"dirty_bytes": 5}},
        "delete_step": {"deleted_shards": 4},
    }

    assert client.runs() == ["a", "b"]
    assert client.status() == {"dirty_bytes": 5}
    assert client.delete_step("a-run", 7) == 4


def test_pins_and_collections_are_asked_for_in_the_protocols_words(
    service: FakeService, client: Client
) -> None:
    pinned = {"run": "a-run", "step": 7, "pinned_at": 5.0, "shards": 2, "local_shards": 1}
    pinned |= {"size_bytes": 30, "local_bytes": 10}
    service.answers |= {
        "pin": {"pin": pinned},
        "unpin": {"was_pinned": True},
        "pins": {"pins": [pinned]},
        "collect": {"collected": {"dry_run": True, "found": 0}},
    }

    info = client.pin("a-run", 7)

    assert (info.local_shards, info.local_bytes) == (1, 10)
    assert client.pins() == [info]
    assert client.unpin("a-run", 7)
    assert client.collect(older_than_seconds=60) == {"dry_run": True, "found": 0}
    assert [(h["run"], h["step"]) for h in service.ids("pin")] == [("a-run", 7)]
    assert [h["dry_run"] for h in service.ids("collect")] == [True]
