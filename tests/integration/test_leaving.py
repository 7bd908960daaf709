"""A node that is told to go takes its bytes along, as far as the time allows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client, InvalidRequestError, NotDurableError, StoppingError
from cachetier_client.deadline import Deadline
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.notifier import Changes
from cachetier.remote.factory import open_store
from cachetier.remote.settings import RemoteSettings
from cachetier.testing.moto_server import moto_server
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.client.fakes import FakeClock
from tests.integration.serving import Served, serving
from tests.integration.test_cli import run

SEAL = {"rank": 0, "world_size": 1, "save_id": "http"}


@contextmanager
def leaving(served: Served) -> Iterator[None]:
    """Have the service leave, in a thread, until the block ends."""
    thread = threading.Thread(target=served.service.leave)
    thread.start()
    try:
        deadline = time.monotonic() + 60
        while served.service.operations.status()["state"] != "leaving":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield
    finally:
        changes: Changes = served.service._changes
        changes.close()
        thread.join(60)


def test_a_node_that_is_left_takes_no_shards_but_finishes_what_is_begun() -> None:
    with serving(notice="60s") as served:
        assert served.put("x", b"x").status == 201
        with leaving(served):
            refused = served.put("y", b"y")
            assert (refused.status, refused.code) == (503, "stopping")
            assert served.call("GET", "/readyz").status == 503
            assert served.call.post("/v1/runs/r/steps/1/seal", SEAL).json == {"sealed_ranks": [0]}
            with Client(served.unix_url, fallback="fail", clock=FakeClock()) as client:
                assert bytes(client.get_shard("r", 1, "x")) == b"x"
                with pytest.raises(StoppingError):
                    client.put_shard(b"z", run="r", step=2, name="z")
        assert (None, None) in served.drain.hurried


def patience(seconds: float) -> dict[str, object]:
    return {"timeout_seconds": seconds}


@pytest.mark.parametrize("door", ["unix", "http"])
def test_a_node_leaves_when_it_is_told_to_and_stays_when_it_is_told_so(door: str) -> None:
    with serving() as served:
        url = served.unix_url if door == "unix" else str(served.service.url)
        with Client(url, fallback="fail", clock=FakeClock()) as client:
            client.leave(10.0)
            assert client.status()["state"] == "leaving"
            with pytest.raises(StoppingError, match="cachetier leave --stay"):
                client.put_shard(b"x", run="r", step=1, name="x", rank=0, world_size=1)
            client.stay()
            assert client.status()["state"] == "ready"
            client.put_shard(b"x", run="r", step=1, name="x", rank=0, world_size=1)
            with pytest.raises(NotDurableError, match=r"1 shard.* r/1"):
                client.leave(0.1)
            assert client.status()["state"] == "leaving"


def test_a_node_has_not_left_while_a_put_is_under_way() -> None:
    with serving() as served, Client(served.unix_url, fallback="fail") as client:
        with client.open_shard("r", 1, "x", rank=0, world_size=1) as stream:
            stream.write(bytes(2 * BLOCK_BYTES + 1))
            assert served.service._course.puts == 1
            late = served.call.post("/v1/leave", patience(0.1))
            assert (late.status, late.code) == (504, "not_durable")
            assert late.json["detail"].endswith("are not durable: 1 put under way")
            with pytest.raises(NotDurableError, match="not durable in time, still put"):
                client.leave(0.1)
        assert served.service._course.puts == 0  # what had begun was taken
        late = served.call.post("/v1/leave", patience(0.1))
        assert "of steps r/1" in late.json["detail"]


def test_a_step_that_is_being_saved_is_sent_though_a_policy_keeps_it_and_older_ones_are_not() -> (
    None
):
    with serving(durable_every=100) as served:
        for step in (1, 2, 3):
            path = f"/v1/runs/r/steps/{step}"
            assert served.call("PUT", f"{path}/shards/x", b"x").status == 201
            if step < 3:
                assert served.call.post(f"{path}/seal", SEAL).status == 200

        late = served.call.post("/v1/leave", patience(0.1))

        assert (late.status, served.drain.hurried) == (504, [("r", 2), ("r", 3), (None, None)])
        assert served.call.post("/v1/runs/r/steps/3/seal", SEAL).status == 200
        pending = served.service.operations.status()["pending"]
        assert [(each["step"], each["state"]) for each in pending] == [(2, "sealed"), (3, "sealed")]


@pytest.mark.parametrize("wrong", [{"stay": 1}, {"timeout_seconds": -1}, {"other": True}])
def test_a_wrong_request_does_not_have_the_node_left(wrong: dict[str, object]) -> None:
    with serving() as served:
        assert served.call.post("/v1/leave", wrong).status == 422
        with pytest.raises(InvalidRequestError), Client(served.unix_url) as client:
            client._caller.transport.call("leave", {"stay": 1, **wrong}, Deadline(9, FakeClock()))
        assert served.service.operations.status()["state"] == "ready"


def test_the_verb_ends_with_3_when_not_all_is_durable_and_with_0_when_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving() as served:
        assert served.put("x", b"x").status == 201
        late = run(served, "leave", "--timeout", "0.1s")
        assert (late.code, served.call("GET", "/readyz").status) == (3, 503)
        stayed = run(served, "leave", "--stay")
        assert (stayed.code, stayed.out) == (0, "The node takes puts again.\n")
        assert served.call("GET", "/readyz").status == 200
        assert served.call("DELETE", "/v1/runs/r/steps/1").status == 200
        left = run(served, "leave", "--json")
        assert (left.code, left.json["pending_shards"]) == (0, 0)


def test_without_a_notice_time_nothing_is_flushed() -> None:
    with serving() as served:
        served.service.leave()

        assert served.service.operations.status()["state"] == "ready"
        assert served.drain.hurried == []


def test_the_newest_local_only_step_is_sent_when_the_node_is_left() -> None:
    with serving(notice="60s", durable_every=100) as served:
        for step in (1, 2):
            path = f"/v1/runs/r/steps/{step}"
            assert served.call("PUT", f"{path}/shards/x", b"x").status == 201
            assert served.call.post(f"{path}/seal", SEAL).status == 200
        with leaving(served):
            pass

        pending = served.service.operations.status()["pending"]
        assert [(each["step"], each["state"]) for each in pending] == [(2, "sealed")]
        assert served.drain.hurried == [("r", 2), (None, None)]


# --- the real process ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with moto_server() as endpoint:
        yield endpoint


def started(
    tmp_path: Path, endpoint_url: str, **settings: str
) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    chosen = {
        "cache_dir": str(tmp_path / "cache"),
        "socket": str(tmp_path / "s"),
        "http": "",
        "remote_endpoint": endpoint_url,
        "grace": "3s",
        **settings,
    }
    with (tmp_path / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "cachetier", "serve", "--json"],
            env={**os.environ, **{f"CACHETIER_{k.upper()}": v for k, v in chosen.items()}},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def ended(process: subprocess.Popen[str], seconds: float = 60) -> int:
    assert process.stdout is not None
    with process.stdout:
        return process.wait(seconds)


def test_sigterm_flushes_within_the_notice_time(
    tmp_path: Path, endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in endpoint.environment().items():
        monkeypatch.setenv(name, value)
    prefix = tmp_path.name
    process, ready = started(
        tmp_path,
        endpoint.url,
        remote=f"s3://{endpoint.bucket}/{prefix}",
        remote_assume=endpoint.verify,
        notice="50s",
    )
    with Client(f"unix://{ready['socket']}") as client:
        client.put_shard(b"unsealed", run="run", step=1, name="x", rank=0, world_size=1)
    process.send_signal(signal.SIGTERM)

    assert ended(process) == 0
    assert "everything that was to be drained is durable" in (tmp_path / "log").read_text()
    remote = RemoteSettings(
        name="durable",
        bucket=endpoint.bucket,
        prefix=prefix,
        endpoint=endpoint.url,
        verify=endpoint.verify,
    )
    assert open_store(remote).get(f"{prefix}/run/1/x") == b"unsealed"


def test_what_cannot_be_flushed_is_named_and_a_second_sigterm_ends_it_at_once(
    tmp_path: Path,
) -> None:
    nowhere = "http://127.0.0.1:1"
    for notice, signals, code in (("1s", 1, 0), ("600s", 2, 128 + signal.SIGTERM)):
        process, ready = started(tmp_path, nowhere, remote="s3://bucket/p", notice=notice)
        with Client(f"unix://{ready['socket']}", fallback="fail") as client:
            client.put_shard(b"x", run="run", step=1, name="x", rank=0, world_size=1)
            process.terminate()
            deadline = time.monotonic() + 60
            while signals == 2 and client.status()["state"] != "leaving":
                assert time.monotonic() < deadline
            if signals == 2:
                process.terminate()
        assert ended(process, 30) == code

    told = "left behind, safe on this node only: 1 shard, 1 B of steps run/1 (1 shard, 1 B)"
    assert told in (tmp_path / "log").read_text()


def test_puts_that_meet_a_restart_wait_for_it_and_nothing_is_flushed(tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:1"
    process, ready = started(tmp_path, nowhere, remote="s3://bucket/p")
    put = 0
    enough, enough_again = threading.Event(), threading.Event()

    def train() -> None:
        nonlocal put
        with Client(f"unix://{ready['socket']}", run="run", fallback="wait") as client:
            while not enough_again.is_set():
                name = f"shard-{put:06}"
                client.put_shard(bytes(100_000), step=1, name=name, rank=0, world_size=1)
                put += 1
                if put == 20:
                    enough.set()

    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train)
        assert enough.wait(60)
        process.terminate()
        assert ended(process) == 0
        before = put
        process, _ = started(tmp_path, nowhere, remote="s3://bucket/p")
        deadline = time.monotonic() + 60
        while put < before + 20 and not training.done():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        enough_again.set()
        training.result(60)
    with Client(f"unix://{ready['socket']}", fallback="fail") as client:
        assert client.status()["dirty_bytes"] == put * 100_000
    process.terminate()
    assert ended(process) == 0
    assert "leaving" not in (tmp_path / "log").read_text()
