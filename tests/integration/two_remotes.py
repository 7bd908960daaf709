"""A whole node with a durable remote behind a proxy that can cut it off, and a replica beside."""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachetier_client import Client
from cachetier_client.bucket_format.documents import Manifest, ManifestState
from cachetier_client.bucket_format.layout import Layout

from cachetier.local.catalog import shards
from cachetier.remote.base import ObjectStore
from cachetier.remote.bucket import Bucket
from cachetier.remote.call_policy import CallPolicy, Retries
from cachetier.service.service import Service
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from tests.integration import serving
from tests.integration.drain_node import keys_of_saves

SECONDS = 60.0
RUN = "run"


def until(reached: Callable[[], bool], timeout_seconds: float = SECONDS) -> None:
    """Wait for what another process does."""
    deadline = time.monotonic() + timeout_seconds
    while not reached():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.05)


@dataclass
class Site:
    """One S3 server as two, each behind a proxy of its own that can be cut off."""

    endpoint: S3Endpoint
    far: S3Proxy
    near: S3Proxy
    scratch: Path
    far_bucket: str = field(default_factory=lambda: f"far-{uuid.uuid4().hex[:12]}")
    near_bucket: str = field(default_factory=lambda: f"near-{uuid.uuid4().hex[:12]}")

    def settings(self, **others: Any) -> dict[str, Any]:
        """Return the settings of a node; ``replica`` are further ones of its replica."""
        replica = {
            "url": f"s3://{self.near_bucket}/p",
            "endpoint": self.near.url,
            "assume": self.endpoint.verify,
            **others.pop("replica", {}),
        }
        return {
            "cache_dir": self.scratch / "cache",
            "socket": self.scratch / "s",
            "http": "127.0.0.1:0",
            "capacity": "1 GB",
            "remote": f"s3://{self.far_bucket}/p",
            "remote_endpoint": self.far.url,
            "remote_assume": self.endpoint.verify,
            "grace": "5s",
            "replicas": {"near": replica},
            **others,
        }

    def store(self, bucket: str) -> ObjectStore:
        """Return a store past the proxies; moto fails a read of what is replaced meanwhile."""
        return CallPolicy(self.endpoint.store(bucket=bucket), retries=Retries())

    def manifest(self, bucket: str, step: int) -> Manifest | None:
        """Return a step's manifest at the far or the near bucket, past the proxies."""
        seen = Bucket(self.store(bucket), Layout("p")).manifest(RUN, step)
        return seen.manifest if seen is not None else None

    def keys(self, bucket: str) -> list[str]:
        return sorted(keys_of_saves(self.store(bucket), "p/"))

    def forget_node(self) -> None:
        """Lose the node: nothing is left of its cache."""
        shutil.rmtree(self.scratch / "cache")


def published_at_near(place: Site, step: int) -> bool:
    manifest = place.manifest(place.near_bucket, step)
    return manifest is not None and manifest.state is ManifestState.PUBLISHED


@contextmanager
def site(endpoint: S3Endpoint) -> Iterator[Site]:
    scratch = Path(tempfile.mkdtemp(prefix="ct-"))  # a socket's path must be short
    with S3Proxy(endpoint.url) as far, S3Proxy(endpoint.url) as near:
        made = Site(endpoint, far, near, scratch)
        for bucket in (made.far_bucket, made.near_bucket):
            endpoint.create_bucket(bucket)
        try:
            yield made
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@dataclass
class Node:
    """A running service, and a client of it."""

    service: Service
    client: Client

    def save(self, step: int, bodies: dict[str, bytes], **options: Any) -> None:
        with self.client.checkpoint(RUN, step, rank=0, world_size=1, **options) as checkpoint:
            for name, body in bodies.items():
                checkpoint.put(body, name)

    def remote(self, name: str) -> dict[str, Any]:
        """Return what ``status`` says of a remote."""
        remotes = self.client.status()["remotes"]
        found: dict[str, Any] = next(each for each in remotes if each["name"] == name)
        return found

    def metric(self, line: str) -> float:
        """Return a metric by its name and labels."""
        text = self.service.metrics.exposition().decode()
        found = next((x for x in text.splitlines() if x.startswith(f"{line} ")), f"{line} 0")
        return float(found.split()[-1])

    def evict_all(self) -> int:
        """Evict what may go; return how many shards went."""
        found = self.service.store.read(shards.clean_local_shards)
        return sum(self.service._housekeeping._evictor.evict(shard) for shard in found)


@contextmanager
def running(settings: dict[str, Any]) -> Iterator[Node]:
    with serving.running(settings) as service, Client(f"unix://{service.socket}") as client:
        yield Node(service, client)
