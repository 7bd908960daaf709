"""What the service tells of puts, whichever door they come by."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from cachetier_client import BackpressureError

from cachetier.telemetry.events import Event
from tests.integration.serving import Served, client_by, serving

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "cachetier")


def told(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    """Return the fields of each event called ``name``."""
    found = []
    for record in caplog.records:
        event = getattr(record, "event", None)
        if isinstance(event, Event) and event.name == name:
            assert isinstance(record.args, dict)
            found.append(record.args)
    return found


def put(served: Served, door: str, name: str, data: bytes) -> None:
    with client_by(door, served) as client:
        client.put_shard(data, run="r", step=1, name=name, rank=2, world_size=4, save_id="s")


@pytest.mark.parametrize("door", ["unix", "http"])
@pytest.mark.parametrize("size_bytes", [3, 100_000])
def test_a_part_is_begun_once_and_each_shard_is_told(
    caplog: pytest.LogCaptureFixture, door: str, size_bytes: int
) -> None:
    with serving() as served:
        for name in ("a", "b"):
            put(served, door, name, bytes(size_bytes))
    (begun,) = told(caplog, "part.begun")
    assert begun == {"run": "r", "step": 1, "save_id": "s", "rank": 2, "world_size": 4}
    committed = told(caplog, "shard.committed")
    assert [each["name"] for each in committed] == ["a", "b"]
    for each in committed:
        assert (each["size_bytes"], each["rank"], each["reached"]) == (size_bytes, 2, "local")
        assert each["seconds"] == pytest.approx(each["stage_seconds"] + each["commit_seconds"])


@pytest.mark.parametrize("door", ["unix", "http"])
@pytest.mark.parametrize("size_bytes", [60_000, 900_000])
def test_a_put_that_finds_no_room_is_told_with_its_reason(
    caplog: pytest.LogCaptureFixture, door: str, size_bytes: int
) -> None:
    with serving(capacity="1 MB", when_full="reject") as served:
        put(served, door, "first", bytes(980_000))
        with client_by(door, served) as client, pytest.raises(BackpressureError):
            ids = {"run": "r", "step": 1, "name": "second", "rank": 2, "world_size": 4}
            client.put_shard(bytes(size_bytes), **ids, save_id="s")  # type: ignore[arg-type]
    refused = told(caplog, "put.refused")
    assert refused and "no room" in refused[0]["reason"]
    assert [each["name"] for each in told(caplog, "shard.committed")] == ["first"]


def test_a_seal_tells_what_of_the_step_is_here(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as served, client_by("unix", served) as client:
        for name in ("a", "b"):
            put(served, "unix", name, b"123")
        client.seal("r", 1, rank=2, world_size=4, save_id="s")
    (sealed,) = told(caplog, "part.sealed")
    assert (sealed["shards"], sealed["size_bytes"], sealed["sealed"]) == (2, 6, 1)


def test_a_caller_who_names_a_span_is_told_with_the_shard(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving() as served:
        path = "/v1/runs/r/steps/1/shards"
        served.call("PUT", f"{path}/a", b"x", {"traceparent": CALLER})
        served.call("PUT", f"{path}/b", b"x", {"traceparent": "nonsense"})
    callers = {each["name"]: each.get("traceparent") for each in told(caplog, "shard.committed")}
    assert callers == {"a": CALLER, "b": None}


def test_the_service_tells_where_it_serves_and_that_it_stops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with serving() as served:
        url = served.service.url
    (ready,) = told(caplog, "service.ready")
    assert ready["http"] == url and ready["socket"] == served.service.socket
    assert [record.getMessage() for record in caplog.records][-1] == "stopped"
