"""A node whose service is a process that can be killed, and clients that go on without it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from cachetier_client import Client
from cachetier_client.bucket_format.documents import Manifest, ManifestState
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.fallback.direct import parts

from cachetier.remote.bucket import Bucket
from cachetier.testing.s3_endpoint import S3Endpoint
from tests.forked_drains import in_line

RUN = "run"
SECONDS = 60.0


@dataclass
class Place:
    """A bucket, and room for the caches of nodes."""

    endpoint: S3Endpoint
    scratch: Path
    name: str = field(default_factory=lambda: f"past-{uuid.uuid4().hex[:12]}")

    @property
    def environment(self) -> dict[str, str]:
        """What a rank, or a service, is told of the remote."""
        return {
            "CACHETIER_REMOTE": json.dumps(
                {"url": f"s3://{self.name}/p", "assume": [self.endpoint.verify]}
            ),
            "CACHETIER_REMOTE_ENDPOINT": self.endpoint.url,
            **self.endpoint.environment(),
        }

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.endpoint.store(bucket=self.name), Layout("p"))

    def manifest(self, step: int) -> Manifest | None:
        seen = self.bucket.manifest(RUN, step)
        return seen.manifest if seen is not None else None

    def is_published(self, step: int) -> bool:
        manifest = self.manifest(step)
        return manifest is not None and manifest.state is ManifestState.PUBLISHED

    def all_keys(self) -> list[str]:
        return sorted(self.bucket.objects.list("p/").keys)

    def client(self, node: str = "node", **options: Any) -> Client:
        """Return a client of a node's service, whether that runs or not."""
        return Client(f"unix://{self.scratch / node}.sock", run=RUN, **options)

    def node(self, name: str = "node", **environment: str) -> Node:
        return Node(self.scratch, name, {**self.environment, **environment})


@contextmanager
def place(endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Lend a bucket that ranks of this process know, as if nothing was ever put before."""
    with tempfile.TemporaryDirectory(prefix="ct-") as scratch:
        made = Place(endpoint, Path(scratch))
        endpoint.create_bucket(made.name)
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("CACHETIER_FALLBACK", "s3:100ms")
        monkeypatch.setattr(parts, "THIS_PROCESS", parts.DirectRankParts())
        yield made


class Node:
    """A service as a process of its own; its cache outlives it."""

    def __init__(self, scratch: Path, name: str, environment: Mapping[str, str]) -> None:
        self.cache_dir = scratch / name
        self.socket = scratch / f"{name}.sock"
        self._log = (scratch / f"{name}.log").open("ab")
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("CACHETIER_")},
            **in_line(),
            "CACHETIER_CACHE_DIR": str(self.cache_dir),
            "CACHETIER_SOCKET": str(self.socket),
            "CACHETIER_HTTP": "",
            "CACHETIER_CAPACITY": "1GB",
            **environment,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        self.start_without_waiting()
        until(self._answers)
        return self

    def start_without_waiting(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cachetier", "serve"],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )

    def kill(self) -> None:
        """End it as a crash does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        """End it as a person does."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    def run(self, *words: str) -> str:
        """Run a verb as the service's user; return what it says, whatever became of it."""
        command = [sys.executable, "-m", "cachetier", *words]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._log.close()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the service ended while starting"
        try:
            with Client(f"unix://{self.socket}", fallback="fail") as client:
                client.status()
        except Exception:
            return False
        return True


def until(reached: Callable[[], bool], timeout_seconds: float = SECONDS) -> None:
    """Wait for what another process does."""
    deadline = time.monotonic() + timeout_seconds
    while not reached():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(0.05)
