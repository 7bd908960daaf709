"""Everything that a node, its clients, ``fsck`` and ``doctor`` ever send to a bucket, recorded."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from cachetier_client import Client
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.clock import SystemClock
from cachetier_client.fallback.direct import parts
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.config.settings import load
from cachetier.doctor.checks import examine
from cachetier.fsck.run import FsckOptions, fsck
from cachetier.remote.bucket import Bucket, Remote
from cachetier.remote.factory import open_remote
from cachetier.testing.http_wire import WireHead
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3_operations import operation_of
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Trouble, Troubles
from tests.fakes.bodies import noise
from tests.integration.doctoring import OF_REMOTE, patient
from tests.integration.fallbacks import until
from tests.integration.serving import node_settings, running

BUCKET, PREFIX, RUN = "checkpoints", "llama", "run"
LARGE = 5 * BLOCK_BYTES  # of more than one part
_PROPERTIES = {"lifecycle": "GetBucketLifecycleConfiguration", "versioning": "GetBucketVersioning"}


@dataclass(frozen=True)
class Request:
    """One request: the call as S3 names it, and what it is about."""

    operation: str
    key: str
    query: dict[str, list[str]]
    headers: dict[str, str]

    @classmethod
    def of(cls, head: WireHead) -> Request:
        parts = urlsplit(head.first[1])
        query = parse_qs(parts.query, keep_blank_values=True)
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").lstrip("/")
        known = (name for asked, name in _PROPERTIES.items() if asked in query)
        return cls(next(known, operation_of(head)), key, query, dict(head.fields))


class Recorder(Troubles):
    """Keeps every request; runs ``on_request`` before one is passed on."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.on_request: Callable[[Request], object] = lambda _request: None

    def strike(self, request: WireHead) -> Trouble | None:
        made = Request.of(request)
        self.requests.append(made)
        self.on_request(made)
        return super().strike(request)


@dataclass
class Life:
    """One node over a server of which every request is recorded."""

    server: S3Endpoint
    settings: dict[str, Any]
    recorder: Recorder
    bodies: dict[str, bytes] = field(default_factory=dict)

    @property
    def behind(self) -> Bucket:
        """The bucket, past the recorder."""
        return Bucket(self.server.store(bucket=BUCKET), Layout(PREFIX))

    @property
    def client(self) -> Client:
        return Client(f"unix://{self.settings['socket']}", run=RUN)

    def live(self) -> None:
        """Do once all that ever makes a request."""
        self._examine()
        with self.client as client:
            with running(self.settings) as service:
                self._save(client, 1, {"weights": noise(LARGE), "small": b"s" * 1000, "b": b"b"})
                changed = noise(LARGE)[:-100] + bytes(100)
                self._save(client, 2, {"weights": changed})  # most of it is copied
                self._killed_drain(client)
                self._save(client, 4, {"gone": b"gone" * 1000})
                client.delete_step(RUN, 4)
                self._partly_away(client, service.stop)
            with running(self.settings):
                until(lambda: self.behind.published(RUN, 6) is not None)
            self._all_away(client)
        self._repair()
        self._restore()

    def _save(self, client: Client, step: int, bodies: dict[str, bytes]) -> None:
        with client.checkpoint(RUN, step, rank=0, world_size=1, save_id="s") as checkpoint:
            for name, body in bodies.items():
                checkpoint.put(body, name)
        client.wait(RUN, step, "durable", 60)

    def _examine(self) -> None:
        remote = load(self.settings).durable
        looked_at = patient(Path(self.settings["cache_dir"]), remote)
        assert all(found.state != "fail" for _, found in examine(looked_at, OF_REMOTE))

    def _killed_drain(self, client: Client) -> None:
        """End the drain with an upload under way: its successor asks what is there."""
        once = threading.Lock()

        def kill(request: Request) -> None:
            if request.operation == "UploadPart" and once.acquire(blocking=False):
                os.kill(client.status()["drain"]["pid"], signal.SIGKILL)

        self.recorder.on_request = kill
        self._save(client, 3, {"resumed": noise(LARGE, 3)})
        self.recorder.on_request = lambda _request: None

    def _partly_away(self, client: Client, stop: Callable[[], None]) -> None:
        """Stop the service within a part: it is asked in the bucket to seal what it holds."""
        checkpoint = client.checkpoint(RUN, 6, rank=0, world_size=1, save_id="s")
        checkpoint.put(b"held" * 1000, "held")
        stop()
        checkpoint.put(noise(LARGE, 6), "past")
        checkpoint.seal()

    def _all_away(self, client: Client) -> None:
        with client.checkpoint(RUN, 7, rank=0, world_size=1, save_id="s") as checkpoint:
            assert checkpoint.put(noise(LARGE, 7), "direct").level == "durable"
            checkpoint.put(b"small", "direct-small")
        assert self.behind.published(RUN, 7) is not None

    def _repair(self) -> None:
        """Lose an object and the manifest of its step behind the node's back, and repair both."""
        layout = self.behind.layout
        objects = self.behind.objects
        objects.delete(layout.shard_key(RUN, "2", "weights"))
        objects.delete(layout.manifest_key(RUN, 3))
        remote = Remote("durable", open_remote(load(self.settings).durable))
        cache_dir, options = Path(self.settings["cache_dir"]), FsckOptions(repair=True)
        report = fsck(cache_dir, [remote], SystemClock(), options, capacity_bytes=1 << 30)
        assert report.outcomes
        with running(self.settings):
            until(lambda: objects.head(layout.shard_key(RUN, "2", "weights")) is not None)

    def _restore(self) -> None:
        """Have a node that never saw the run give a shard of it."""
        scratch = Path(self.settings["cache_dir"]).parent
        elsewhere = {**self.settings, "cache_dir": scratch / "b", "socket": scratch / "t"}
        with running(elsewhere), Client(f"unix://{scratch / 't'}", fallback="fail") as client:
            assert bytes(client.get_shard(RUN, 1, "weights")) == noise(LARGE)
            assert bytes(client.get_shard(RUN, 1, "small")) == b"s" * 1000


@contextmanager
def life(
    endpoint: S3Endpoint, scratch: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Iterator[Life]:
    """Lend a node with a bucket of its own; nothing of it was ever seen."""
    endpoint.create_bucket(BUCKET)
    monkeypatch.setenv("CACHETIER_FALLBACK", "s3:100ms")
    monkeypatch.setattr(parts, "THIS_PROCESS", parts.DirectRankParts())
    recorder = Recorder()
    with S3Proxy(endpoint.url, troubles=recorder) as proxy:
        server = replace(endpoint, bucket=BUCKET)
        remote = f"s3://{BUCKET}/{PREFIX}"
        usual = node_settings(scratch, server.behind(proxy.url), remote, monkeypatch)
        yield Life(server, {**usual, "pack": True, "http": "", **settings}, recorder)
