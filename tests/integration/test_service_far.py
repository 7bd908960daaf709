"""A whole node with its real drain process and an S3 server: to the bucket and back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client, DeadlineError, NotDurableError, RemoteRefusedError

from cachetier.config.settings import load
from cachetier.service.service import Service
from cachetier.testing.moto_server import moto_server
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fakes.bodies import noise
from tests.integration.serving import Caller, node_settings
from tests.integration.test_http_shards import LARGE

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture
def settings(
    tmp_path: Path, endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    remote = f"s3://{endpoint.bucket}/{tmp_path.name}"
    return node_settings(tmp_path, endpoint, remote, monkeypatch)


def started(settings: dict[str, Any]) -> Service:
    service = Service(load(settings))
    service.start()
    return service


def test_a_checkpoint_reaches_the_bucket_and_comes_back_on_a_new_node(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    bodies = {"small": b"small", "large": noise(LARGE)}
    service = started(settings)
    try:
        with Client(f"unix://{service.socket}") as client:
            with client.checkpoint("run", 7, rank=0, world_size=1) as checkpoint:
                for name, body in bodies.items():
                    checkpoint.put(body, name)
            client.wait("run", 7, timeout_seconds=100)
            client.flush(timeout_seconds=100)
            assert client.status()["dirty_bytes"] == 0
        exposition = service.metrics.exposition().decode()
        assert _value(exposition, "drained_bytes_total") == LARGE + 5
        assert _value(exposition, "published_total") == 1
    finally:
        service.stop()

    service = started({**settings, "cache_dir": tmp_path / "another"})
    try:
        assert service.url is not None
        call = Caller(int(service.url.rsplit(":", 1)[1]))
        latest = call("GET", "/v1/runs/run/latest").json["step"]
        assert (latest["step"], latest["state"]) == (7, "published")
        for name, body in bodies.items():
            answer = call("GET", f"/v1/runs/run/steps/7/shards/{name}")
            assert answer.body == body
            assert answer.headers["cachetier-source"] == "remote"
        assert call("DELETE", "/v1/runs/run/steps/7").status == 200
    finally:
        service.stop()


def test_a_spread_save_is_found_and_deleted_by_a_node_that_is_not_set_up_to_spread(
    settings: dict[str, Any], endpoint: S3Endpoint, tmp_path: Path
) -> None:
    prefix = tmp_path.name
    bodies = {f"shard-{number}": noise(1000 + number) for number in range(20)}
    bodies["large"] = noise(LARGE)
    service = started({**settings, "remote_assume": f"{settings['remote_assume']},spread"})
    try:
        with Client(f"unix://{service.socket}") as client:
            with client.checkpoint("run", 7, rank=0, world_size=1) as checkpoint:
                for name, body in bodies.items():
                    checkpoint.put(body, name)
            client.wait("run", 7, timeout_seconds=100)
    finally:
        service.stop()
    keys = endpoint.store().list(f"{prefix}/").keys
    spread = [key for key in keys if key.startswith(f"{prefix}/~")]
    assert len(spread) == len(bodies)
    assert len({key.split("/")[1] for key in spread}) > 5

    service = started({**settings, "cache_dir": tmp_path / "another"})
    try:
        with Client(f"unix://{service.socket}") as client:
            latest = client.latest("run", level="durable")
            assert latest is not None
            assert latest.step == 7
            for name, body in bodies.items():
                assert bytes(client.get_shard("run", 7, name)) == body
            client.delete_step("run", 7)
        _until(lambda: not endpoint.store().list(f"{prefix}/~").keys)
    finally:
        service.stop()


def _value(exposition: str, name: str) -> float:
    line = next(
        x
        for x in exposition.splitlines()
        if x.startswith((f"cachetier_{name} ", f"cachetier_{name}{{"))
    )
    return float(line.split()[1])


@pytest.mark.torch
def test_the_first_example_of_the_readme_works(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = text.partition("```python\n")[2].partition("```")[0]
    service = started(settings)
    try:
        monkeypatch.setenv("CACHETIER_URL", f"unix://{service.socket}")
        exec(compile(example, "README.md", "exec"), {})
    finally:
        service.stop()
    assert capsys.readouterr().out.startswith("local ")


def test_an_ack_of_durable_over_http_is_durable(settings: dict[str, Any]) -> None:
    service = started(settings)
    try:
        assert service.url is not None
        call = Caller(int(service.url.rsplit(":", 1)[1]))
        answer = call("PUT", "/v1/runs/run/steps/1/shards/x?ack=durable", noise(100_000))
        assert (answer.status, answer.json["level"]) == (201, "durable")
        step = call("GET", "/v1/runs/run/steps/1").json["step"]
        assert [shard["state"] for shard in step["shards"]] == ["clean"]
    finally:
        service.stop()


def test_a_bucket_that_is_missing_is_told_and_mended_by_itself(
    settings: dict[str, Any], endpoint: S3Endpoint
) -> None:
    bucket = "mended-later"  # moto servers of one process share their buckets
    service = started({**settings, "remote": f"s3://{bucket}/x"})
    try:
        with Client(f"unix://{service.socket}") as client:
            with client.checkpoint("run", 1, rank=0, world_size=1) as checkpoint:
                checkpoint.put(b"x", "x")
            with pytest.raises((NotDurableError, DeadlineError, RemoteRefusedError)):
                client.flush(timeout_seconds=1)
            _until(lambda: client.status()["remotes"][0]["state"] == "refused", client.status)
            remote = client.status()["remotes"][0]
            assert remote["reason"]
            assert client.status()["dirty_shards"] == 1
            assert b"cachetier_remote_refused 1.0" in service.metrics.exposition()
            assert bytes(client.get_shard("run", 1, "x")) == b"x"
            endpoint.create_bucket(bucket)
            client.wait("run", 1, timeout_seconds=100)
            _until(lambda: client.status()["remotes"][0]["state"] == "ok")
    finally:
        service.stop()


def _until(holds: Any, what: Any = lambda: None) -> None:
    deadline = time.monotonic() + 90  # a courteous drain waits for the other tests
    while not holds():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def test_stopping_ends_the_drain_and_keeps_what_is_dirty(settings: dict[str, Any]) -> None:
    unreachable = {**settings, "remote_endpoint": "http://127.0.0.1:1"}
    service = started(unreachable)
    try:
        with Client(f"unix://{service.socket}") as client:
            client.put_shard(noise(LARGE), run="run", step=1, name="x")
    finally:
        service.stop()  # the drain would try for ever
    service = started(settings)
    try:
        with Client(f"unix://{service.socket}") as client:
            client.flush(timeout_seconds=100)
            assert client.status()["dirty_bytes"] == 0
    finally:
        service.stop()
