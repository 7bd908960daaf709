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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client, StoppingError

from cachetier.notifier import Changes
from cachetier.remote.factory import open_store
from cachetier.remote.settings import RemoteSettings
from cachetier.testing.moto_server import moto_server
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.client.fakes import FakeClock
from tests.integration.serving import Served, serving

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
    with serving(notice_seconds=60) as served:
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


def test_without_a_notice_time_nothing_is_flushed() -> None:
    with serving() as served:
        served.service.leave()

        assert served.service.operations.status()["state"] == "ready"
        assert served.drain.hurried == []


def test_the_newest_local_only_step_is_sent_when_the_node_is_left() -> None:
    with serving(notice_seconds=60, durable_every=100) as served:
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
        "grace_seconds": "3",
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
        remote_verify=endpoint.verify,
        notice_seconds="50",
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
    for notice, signals, code in (("1", 1, 0), ("600", 2, 128 + signal.SIGTERM)):
        process, ready = started(tmp_path, nowhere, remote="s3://bucket/p", notice_seconds=notice)
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
