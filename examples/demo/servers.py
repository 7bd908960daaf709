"""The servers of the demo: S3 far away, and cachetier on this node."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cachetier.testing.s3_endpoint import free_ports
from examples.demo.narrate import Narrator
from examples.demo.processes import Child

BUCKET = "checkpoints"
PREFIX = "demo"
LATENCY_MS = 35
START_SECONDS = 60.0
SOCKET_PATH_LIMIT_BYTES = 100

_LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))
# What the user's shell says about these must not lead the demo to a real bucket or a real job.
_FOREIGN = ("CACHETIER_", "AWS_", "SLURM_", "OMPI_", "TORCHELASTIC_", "MASTER_")
_FOREIGN_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def environment() -> dict[str, str]:
    """Return this process's environment without anything about other stores, services and jobs."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_FOREIGN) and name not in _FOREIGN_NAMES
    }
    return kept | {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


class FarS3:
    """SeaweedFS behind a delay; ``environment`` lets a process in, and out to nowhere else."""

    def __init__(self, work_dir: Path, narrator: Narrator) -> None:
        address = work_dir / "s3.json"
        command = [sys.executable, "-m", "examples.demo.remote", "--bucket", BUCKET]
        command += ["--data-dir", str(work_dir / "s3"), "--latency-ms", str(LATENCY_MS)]
        self._child = Child(
            "SeaweedFS",
            [*command, "--address", str(address)],
            log=work_dir / "logs" / "s3.log",
            environment=environment(),
        )
        try:
            wait_until(address.exists, self._child, narrator, "the S3 server to start")
        except BaseException:
            self._child.stop()
            raise
        self.environment = environment() | json.loads(address.read_text())

    @property
    def url(self) -> str:
        return str(self.environment["AWS_ENDPOINT_URL"])

    def keep_to(self, cores: set[int]) -> None:
        """Use these cores only."""
        self._child.keep_to(cores)

    def stop(self) -> None:
        self._child.stop()


class Place(Protocol):
    """An S3 server: where it is, and the variables that let a process in."""

    @property
    def url(self) -> str: ...

    @property
    def environment(self) -> dict[str, str]: ...


class Service:
    """``cachetier serve`` on a cache directory; ``url`` is its socket's."""

    def __init__(self, work_dir: Path, far: Place) -> None:
        self.cache_dir = work_dir / "cache"
        self._socket = _socket_path(work_dir)
        self._far = far
        self._log = work_dir / "logs" / "cachetier.log"
        self.url = f"unix://{self._socket}"
        self.child: Child | None = None

    def start(self, narrator: Narrator) -> None:
        """Start it, and return once it takes requests."""
        port = free_ports(1)[0]
        command = [
            str(Path(sys.executable).with_name("cachetier")),
            *("serve", "--cache-dir", str(self.cache_dir), "--socket", str(self._socket)),
            *("--http", f"127.0.0.1:{port}"),
            *("--remote", f"s3://{BUCKET}/{PREFIX}", "--remote-endpoint", self._far.url),
        ]
        self.child = Child(
            "cachetier serve", command, log=self._log, environment=self._far.environment
        )
        ready = f"http://127.0.0.1:{port}/readyz"
        wait_until(lambda: _answers(ready), self.child, narrator, "cachetier to start")

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop()
        if self._socket.parent != self.cache_dir.parent:
            shutil.rmtree(self._socket.parent)


def wait_until(done: Callable[[], bool], child: Child, narrator: Narrator, what: str) -> None:
    """Return once ``done``; raise ChildError when the child ends, or takes too long."""
    give_up_at = time.monotonic() + START_SECONDS
    while not done():
        if child.exit_status is not None:
            raise child.failed("ended early")
        if time.monotonic() > give_up_at:
            raise child.failed(f"not ready after {START_SECONDS:g} s")
        narrator.waiting_for(what)
        time.sleep(0.05)


def _answers(url: str) -> bool:
    try:
        with _LOOPBACK.open(url, timeout=2.0) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _socket_path(work_dir: Path) -> Path:
    """Return where the socket goes: beside the cache, or nearer the root if that is too far."""
    beside = work_dir / "cachetier.sock"
    if len(os.fsencode(beside)) <= SOCKET_PATH_LIMIT_BYTES:
        return beside
    return Path(tempfile.mkdtemp(prefix="cachetier-demo-")) / "cachetier.sock"
