"""A whole service in this process, its remote in memory, and a caller who may be rude."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cachetier_client import Client
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.uploads import object_metadata
from cachetier_client.clock import Clock, SystemClock
from cachetier_client.io.digests import digest_of

from cachetier.cli.node import toml_of
from cachetier.doors.http.door import HttpDoor
from cachetier.doors.http.limits import RequestLimits
from cachetier.drain.schedule.queue_state import QueueState
from cachetier.drain.serve.drains import Drains
from cachetier.drain.serve.stats import DrainSnapshot, RemoteSnapshot
from cachetier.local.catalog import copies, saves
from cachetier.local.catalog.rows import Backlog
from cachetier.model.checkpoint import Save
from cachetier.model.names import DURABLE
from cachetier.remote.bucket import Bucket
from cachetier.remote.call_policy import CallPolicy, Observe
from cachetier.service.service import Service
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fakes.access import BEARER
from tests.fakes.memory_store import MemoryObjectStore
from tests.fakes.small_node import small_node

SECONDS = 60.0  # patience, not what anything takes
# The lines of a head that is written by hand, by whoever may do anything.
OWNER = f"Host: 127.0.0.1\r\nAuthorization: {BEARER['Authorization']}\r\n"


class IdleDrain(Drains):
    """A drain that never does anything; it remembers what it was asked to hurry, and how to end."""

    def __init__(self) -> None:
        self.queue = QueueState(SystemClock())
        self.snapshot = DrainSnapshot(RemoteSnapshot(DURABLE))
        self.hurried: list[tuple[str | None, int | None]] = []
        self.ending: list[str] = []
        self.retried = 0

    def start(self) -> None:
        """Nothing to start."""

    def ask_to_end(self) -> None:
        self.ending.append("asked")

    def stop(self, grace_seconds: float) -> None:
        self.ending.append(f"{grace_seconds:.1f} s left")

    def hurry(self, run: str | None, step: int | None) -> None:
        self.hurried.append((run, step))

    def hurry_replicas(self, run: str | None, step: int | None) -> None:
        """There are none."""

    def refusals(self, _run: str, _step: int, _since: float) -> list[str | None]:
        return []

    def nudge(self) -> None:
        """Nothing to wake."""

    def retry(self) -> None:
        self.retried += 1

    def limit_rate(self, bytes_per_second: float | None) -> None:
        self.queue.rate_limit = bytes_per_second

    def passed_by(self, size_bytes: int) -> None:
        """Nothing is counted."""

    def published(self, save: Save) -> None:
        """Nothing is counted."""

    def etas(self, backlog: Sequence[Backlog]) -> dict[int, float]:
        return {}

    def state(self) -> tuple[DrainSnapshot, ...]:
        return (self.snapshot,)


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The problem's code; the answer must be a well-formed problem."""
        assert self.headers["content-type"] == "application/problem+json", self
        problem = self.json
        assert problem["status"] == self.status
        assert all(problem[field] for field in ("type", "title", "detail", "hint"))
        return str(problem["code"])


class Caller:
    """Speaks HTTP to one port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.bearer: Mapping[str, str] = BEARER

    def __call__(
        self,
        method: str,
        path: str,
        body: bytes | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            chunked = body is not None and not isinstance(body, bytes)
            connection.request(
                method, path, body, {**self.bearer, **(headers or {})}, encode_chunked=chunked
            )
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, fields, response.read())
        finally:
            connection.close()

    def post(self, path: str, document: Mapping[str, Any]) -> Answer:
        kind = {"Content-Type": "application/json"}
        return self("POST", path, json.dumps(document).encode(), kind)

    @contextmanager
    def raw(self) -> Iterator[socket.socket]:
        """Lend a bare connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS) as connection:
            yield connection

    def send_raw(self, data: bytes) -> bytes:
        """Send bytes as they are; return everything until the service hangs up or falls silent."""
        with self.raw() as connection:
            connection.sendall(data)
            return received(connection)


def node_settings(
    directory: Path, endpoint: S3Endpoint, remote: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Return settings of a service over ``endpoint``, whose credentials go to the environment."""
    for name, value in endpoint.environment().items():
        monkeypatch.setenv(name, value)
    return {
        "cache_dir": directory / "cache",
        "socket": directory / "s",
        "http": "127.0.0.1:0",
        "capacity": "1 GB",
        "remote": remote,
        "remote_endpoint": endpoint.url,
        "remote_assume": endpoint.verify,
        "grace": "5s",
    }


def as_file(settings: dict[str, Any]) -> str:
    """Return settings of ``node_settings`` as a file has them: what is of the remote in a table."""
    of_remote = {name: value for name, value in settings.items() if name.startswith("remote")}
    remote = {name.removeprefix("remote_"): value for name, value in of_remote.items()}
    remote["url"] = remote.pop("remote")
    remote["assume"] = [remote["assume"]]
    own = {name: value for name, value in settings.items() if name not in of_remote}
    found = {**own, "remote": remote}
    texts = {name: str(each) if isinstance(each, Path) else each for name, each in found.items()}
    return "".join(f"{name} = {toml_of(each)}\n" for name, each in texts.items())


@contextmanager
def running(settings: dict[str, Any]) -> Iterator[Service]:
    """Run a whole service with its own drain until the block ends."""
    service = Service(small_node(settings))
    service.start()
    try:
        yield service
    finally:
        service.stop()


@contextmanager
def client_by(door: str, served: Served) -> Iterator[Client]:
    """Lend a client of one of the service's doors: ``unix`` or ``http``."""
    url = served.unix_url if door == "unix" else served.service.url
    with Client(url) as opened:
        yield opened


def received(connection: socket.socket, seconds: float = SECONDS) -> bytes:
    """Return what comes until the other side closes; an abort counts as closing."""
    connection.settimeout(seconds)
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


class Served:
    """A running service."""

    def __init__(self, service: Service, objects: MemoryObjectStore, drain: IdleDrain) -> None:
        self.service = service
        self.objects = objects
        self.drain = drain
        assert service.url is not None
        self.call = Caller(int(service.url.rsplit(":", 1)[1]))

    @property
    def unix_url(self) -> str:
        return f"unix://{self.service.socket}"

    @property
    def cache_dir(self) -> Path:
        return Path(self.service.operations.status()["disk"]["directory"])

    def data_files(self) -> list[Path]:
        return [path for path in (self.cache_dir / "data").rglob("*") if path.is_file()]

    def holds_nothing(self) -> bool:
        """Whether no byte is kept or accounted: what a refused put must leave behind."""
        return not self.data_files() and self.service.store.space.used_bytes == 0

    @contextmanager
    def second_door(self, limits: RequestLimits) -> Iterator[tuple[HttpDoor, Caller]]:
        """Lend another door to the same node."""
        door = HttpDoor(("127.0.0.1", 0), self.service.operations, limits=limits)
        door.start()
        try:
            yield door, Caller(int(door.url.rsplit(":", 1)[1]))
        finally:
            door.stop(1.0)

    def put(self, name: str, data: bytes, **parameters: Any) -> Answer:
        query = "&".join(f"{key}={value}" for key, value in parameters.items())
        return self.call("PUT", f"{shard_path(name)}?{query}", data)

    def drained(self, name: str, data: bytes) -> None:
        """Do what the drain does: have the object in the remote, and the shard clean."""
        store = self.service.store
        shard = store.read(lambda sql: saves.visible_shard(sql, "r", 1, name))
        assert shard is not None
        save = store.read(lambda sql: saves.save_named(sql, "r", 1, shard.save_id))
        assert save is not None
        location = save.location or "1"
        store.write(copies.record_location, save.number, location)
        metadata = object_metadata(shard.save_id, store.store_id, shard.version, shard.content)
        key = Layout("p").shard_key("r", location, name)
        self.objects.put(key, data, digest=digest_of(data), metadata=metadata)
        now = SystemClock().now()
        store.write(copies.record_verified, shard.version, DURABLE, [DURABLE], now)
        self.service._changes.ring()


def shard_path(name: str) -> str:
    return f"/v1/runs/r/steps/1/shards/{name}"


@contextmanager
def serving(
    cache_dir: Path | None = None,
    observe: Observe = lambda *_call: None,
    clock: Clock | None = None,
    bucket: tuple[MemoryObjectStore, Layout] | None = None,
    **settings: Any,
) -> Iterator[Served]:
    """Serve on a free port until the block ends; ``observe`` is told of each call of the remote.

    ``bucket``: what another node has filled.
    """
    scratch = Path(tempfile.mkdtemp(prefix="ct-"))  # a socket's path must be short
    objects, layout = bucket or (MemoryObjectStore(), Layout("p"))
    drain = IdleDrain()
    chosen: dict[str, Any] = {
        "cache_dir": cache_dir or scratch / "cache",
        "socket": scratch / "s",
        "http": "127.0.0.1:0",
        "remote": "s3://bucket/p",
        "capacity": "1 GB",
        "grace": "5s",
        **settings,
    }
    service = Service(
        small_node(chosen),
        clock=clock,
        bucket=Bucket(CallPolicy(objects, observe=observe), layout),
        open_drain=lambda *_parts: drain,
    )
    try:
        service.start()
        yield Served(service, objects, drain)
    finally:
        service.stop()
        shutil.rmtree(scratch)
