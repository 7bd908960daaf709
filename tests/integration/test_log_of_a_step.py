"""The log of a real service and its real drain: a step from its first put to the bucket."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Condition, Thread
from typing import Any, ClassVar

import pytest
from cachetier_client import Client

from cachetier.testing.moto_server import moto_server
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.integration.test_leaving import ended, started

SECRET = "a-very-secret-access-key"
TOKEN = "a-token-that-nobody-may-read"
LARGE = os.urandom(9 << 20)
SECONDS = 50.0
RUN = re.compile(r"/(run-\d+)/")

Line = dict[str, Any]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[S3Endpoint]:
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture
def node(
    tmp_path: Path, endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[Any, dict[str, Any]]]]:
    """Start a service that logs everything."""
    for name, value in endpoint.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)

    running: list[Any] = []

    def start(endpoint_url: str = endpoint.url, **settings: str) -> tuple[Any, dict[str, Any]]:
        ours = {
            "remote": f"s3://{endpoint.bucket}/{tmp_path.name}",
            "remote_assume": endpoint.verify,
            "http": "127.0.0.1:0",
            "token": TOKEN,
            "log": "debug",
        }
        process, ready = started(tmp_path, endpoint_url, **{**ours, **settings})
        running.append(process)
        return process, ready

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
            ended(process)


def lines_of(tmp_path: Path) -> list[Line]:
    """Return the log, every line of which is a JSON object with the common fields."""
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    for line in lines:
        assert {"ts", "level", "event", "message", "process"} <= set(line), line
    return lines


def wait_for(tmp_path: Path, event: str, times: int = 1) -> None:
    deadline = time.monotonic() + SECONDS
    while (tmp_path / "log").read_text().count(f'"event": "{event}"') < times:
        assert time.monotonic() < deadline, (tmp_path / "log").read_text()
        time.sleep(0.05)


def test_a_step_tells_its_whole_life(
    tmp_path: Path,
    node: Callable[..., tuple[Any, dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CACHETIER_TOKEN", TOKEN)
    process, ready = node()
    with Client(f"unix://{ready['socket']}") as client:
        client.put_shard(LARGE, run="run", step=7, name="large", rank=0, world_size=1)
        with Client(ready["http"]) as over_http:
            over_http.put_shard(b"small", run="run", step=7, name="small", rank=0, world_size=1)
        client.seal("run", 7, rank=0, world_size=1)
        client.wait("run", 7, timeout_seconds=SECONDS)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0

    lines = lines_of(tmp_path)
    of_step = [line for line in lines if line.get("step") == 7]
    told = [(line["event"], line.get("name")) for line in of_step]
    assert told[0] == ("part.begun", None)
    for name in ("large", "small"):
        assert told.index(("shard.committed", name)) < told.index(("shard.drained", name))
    ends = [event for event, _ in told if event in ("part.sealed", "part.drained")]
    assert ends == ["part.sealed", "part.drained"]
    published = of_step[-1]
    assert published["event"] == "save.published" and published["level"] == "info"
    assert (published["shards"], published["size_bytes"]) == (2, len(LARGE) + 5)
    assert published["age_seconds"] > 0
    assert len({line["save_id"] for line in of_step}) == 1
    whole = [line["event"] for line in lines if line.get("step") is None]
    assert whole[0] == "service.recovered" and whole[-1] == "service.stopped"
    assert {"drain.started", "service.ready", "service.stopping"} <= set(whole)


def test_what_took_how_long_is_told_of_each_upload(
    tmp_path: Path, node: Callable[..., tuple[Any, dict[str, Any]]]
) -> None:
    process, ready = node(compression="zstd:1")
    with Client(f"unix://{ready['socket']}") as client:
        client.put_shard(bytes(9 << 20), run="run", step=7, name="x", rank=0, world_size=1)
        client.wait("run", 7, name="x", timeout_seconds=SECONDS)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    (drained,) = (line for line in lines_of(tmp_path) if line["event"] == "shard.drained")
    assert drained["codec"] == "zstd" and drained["stored_bytes"] < drained["size_bytes"]
    assert {"read", "compress", "send", "verify"} <= set(drained["phases"])
    for began, until, busy in drained["phases"].values():
        assert 0 <= began <= until <= drained["seconds"] + 0.001 and busy >= 0


def test_the_drain_speaks_through_the_same_log(
    tmp_path: Path, node: Callable[..., tuple[Any, dict[str, Any]]]
) -> None:
    process, _ready = node()
    wait_for(tmp_path, "drain.started")
    (begun,) = (line for line in lines_of(tmp_path) if line["event"] == "drain.started")
    os.kill(begun["pid"], signal.SIGKILL)
    wait_for(tmp_path, "drain.started", times=2)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    (died,) = (line for line in lines_of(tmp_path) if line["event"] == "drain.died")
    assert (died["pid"], died["status"]) == (begun["pid"], -signal.SIGKILL)


class Refusing(BaseHTTPRequestHandler):
    """An S3 server that refuses everything, and repeats what it was sent as it does.

    What concerns ``at_once`` runs it refuses together: a drain asks no more once it was refused.
    """

    protocol_version = "HTTP/1.1"
    signatures: ClassVar[set[str]] = set()
    at_once = 1
    runs: ClassVar[set[str]] = set()
    come = Condition()

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if run := RUN.search(self.path):
            with self.come:
                self.runs.add(run[1])
                self.come.notify_all()
                self.come.wait_for(lambda: len(self.runs) >= self.at_once, SECONDS)
        sent = self.headers.get("Authorization", "")
        self.signatures.add(sent.rpartition("Signature=")[2])
        said = f"You sent Authorization: {sent}"
        body = f"<Error><Code>AccessDenied</Code><Message>{said}</Message></Error>".encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _refuse  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def refusing() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        serving = Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        serving.join()


def test_a_failure_that_repeats_is_told_once_and_then_counted(
    tmp_path: Path,
    node: Callable[..., tuple[Any, dict[str, Any]]],
    refusing: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process, ready = node(refusing)
    monkeypatch.setattr(Refusing, "at_once", 2)
    Refusing.runs.clear()
    with Client(f"unix://{ready['socket']}") as client:
        for number in range(4):
            with client.checkpoint(f"run-{number}", 1, rank=0, world_size=1) as checkpoint:
                checkpoint.put(b"x", "x")
        deadline = time.monotonic() + SECONDS
        while client.status()["drain"]["failures"] < 2:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    lines = lines_of(tmp_path)
    failed = [line for line in lines if line["event"] == "drain.failed"]
    kinds = [(line["remote"], line["code"], line["kind"]) for line in failed]
    assert kinds and len(kinds) == len(set(kinds))
    summaries = [line for line in lines if line["event"] == "log.repeated"]
    assert sum(line["times"] for line in summaries if line["of"] == "drain.failed") >= 1
    assert "remote.refused" in [line["event"] for line in lines]


def test_secrets_are_in_no_line(
    tmp_path: Path,
    node: Callable[..., tuple[Any, dict[str, Any]]],
    refusing: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CACHETIER_TOKEN", TOKEN)
    process, ready = node(refusing)
    with (
        Client(ready["http"]) as client,
        client.checkpoint("run", 1, rank=0, world_size=1) as checkpoint,
    ):
        checkpoint.put(b"x", "x")
    wait_for(tmp_path, "drain.failed")
    process.send_signal(signal.SIGTERM)
    assert ended(process) == 0
    log = (tmp_path / "log").read_text()
    assert Refusing.signatures
    for secret in (SECRET, TOKEN, *Refusing.signatures):
        assert secret not in log
