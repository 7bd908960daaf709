"""The sink from the outside: started, told what to do, asked what came."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cachetier_client import Client

from benchmarks.drain.link import Shape
from benchmarks.scratch import ROOT
from cachetier.remote.s3.boto_client import Credentials
from cachetier.testing.s3_endpoint import S3Endpoint

BUCKET = "sink"
ANYBODY = Credentials("anybody", "the-sink-looks-at-no-signature")
PATIENCE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server runs: its address, and what its command begins with to run there."""

    host: str
    enter: tuple[str, ...] = ()


HERE = Place("127.0.0.1")


@dataclass(frozen=True, slots=True)
class Counts:
    """What a sink has counted since it was last told to forget.

    ``bytes`` came in as bodies, ``arrived_bytes`` with those that did not come to their end;
    ``read_bytes`` went out as answers to GET.
    ``accepted`` and ``rejected`` are tries of parts; ``repeated`` were accepted before. ``knocks``
    are connections made while it was down. ``p99_seconds`` is a part's latency, from its first try
    until it was accepted. ``at`` is an instant of the sink's monotonic clock, which is ours.
    """

    requests: int
    arrived_bytes: int
    bytes: int
    read_bytes: int
    accepted: int
    rejected: int
    repeated: int
    knocks: int
    p99_seconds: float
    at: float


class RunningSink:
    """A sink in a process, and a session, of its own."""

    def __init__(self, process: subprocess.Popen[str], scheme: str, host: str) -> None:
        self._process = process
        assert process.stdout is not None
        port = int(process.stdout.readline())
        self.endpoint = S3Endpoint(f"{scheme}://{host}:{port}", BUCKET, ANYBODY, "checksum")

    @property
    def pid(self) -> int:
        return self._process.pid

    def counts(self) -> Counts:
        return self._command({})

    def forget(self) -> Counts:
        """Drop every object and count."""
        return self._command({"forget": True})

    def throttle(self, rate: float) -> Counts:
        """Let ``rate`` parts a second through; 0 for no limit."""
        return self._command({"rate": rate})

    def narrow(self, bytes_per_second: float, latency_seconds: float) -> Counts:
        """Let so much through, of all connections together, and answer late."""
        return self._command({"link": bytes_per_second, "shape": {"latency": latency_seconds}})

    def take_shape(self, shape: Shape, total: float = 0.0) -> Counts:
        """Be as slow for each connection as ``shape`` says, and for all together as ``total``."""
        return self._command({"link": total, "shape": asdict(shape)})

    def keep(self) -> Counts:
        """Keep the bytes of objects from now on, and give them back."""
        return self._command({"keep": True})

    def go_down(self) -> Counts:
        """Reset every connection, until ``come_back``."""
        return self._command({"down": True})

    def come_back(self) -> Counts:
        return self._command({"down": False})

    def _command(self, command: dict[str, Any]) -> Counts:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return Counts(**json.loads(self._process.stdout.readline()))


@contextmanager
def sink(*certificate_and_key: Path, there: Place = HERE) -> Iterator[RunningSink]:
    """Run a sink ``there`` until the block ends; over TLS, if it is given what for."""
    command = [sys.executable, "-m", "benchmarks.drain.sink", there.host]
    process = subprocess.Popen(
        [*there.enter, *command, *map(str, certificate_and_key)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield RunningSink(process, "https" if certificate_and_key else "http", there.host)
    finally:
        process.communicate()  # it ends with its input


def put_held(client: Client, run: str, step: int, bodies: Iterator[memoryview]) -> int:
    """Put shards of a step that nobody has sealed: they wait here, for up to half a minute.

    Returns their size in all; ``client.seal(run, step, rank=0, world_size=1)`` lets them go.
    """
    size_bytes = 0
    for number, body in enumerate(bodies):
        client.put_shard(body, run=run, step=step, name=f"shard-{number}", rank=0, world_size=1)
        size_bytes += len(body)
    return size_bytes


def seconds_until_durable(client: Client, run: str, step: int) -> float:
    """Seal a step; return how long it takes until all of it is verified, and published."""
    began = time.perf_counter()
    client.seal(run, step, rank=0, world_size=1)
    client.wait(run, step, "durable", timeout_seconds=PATIENCE_SECONDS)
    return time.perf_counter() - began


def none_went_early(remote: RunningSink) -> None:
    """Make sure that the drain still held back what ``put_held`` put.

    Raises:
        RuntimeError: It has sent some; the put took longer than it waits for a seal.
    """
    if remote.counts().accepted:
        raise RuntimeError("the drain began before the step was sealed: the disk is too slow")
