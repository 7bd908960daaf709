"""What users would pick instead, on the same sink: boto3, the CRT client, s5cmd, rclone and others.

``FLOOR`` is what plain sockets take between the sink and memory: no peer can take less.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.node import Node
from benchmarks.processes import Used
from benchmarks.scratch import ROOT, Bench, touch_memory
from cachetier.testing.s3_endpoint import S3Endpoint

PATIENCE_SECONDS = 600.0
FLOOR = "plain sockets, from and into memory"
LIBRARIES = {
    "boto3": "boto3",
    "CRT client": "crt",
    "obstore": "obstore",
    "multi-storage-client": "multistorageclient",
    FLOOR: "sockets",
}
Verb = Literal["put", "get"]


@dataclass(frozen=True, slots=True)
class Moved:
    """What it took to move all bytes: ``cpu_seconds`` of all processes, ``each`` by their role.

    A role's processes are named one by one, the busiest first.
    """

    seconds: float
    cpu_seconds: float
    each: Mapping[str, Sequence[float]] = field(default_factory=dict)


def moved_by(service: Node, used: Used, seconds: float) -> Moved:
    """Return what a node took, and its ranks if ``used`` counts them."""
    drain = service.drain_pids()[:1]
    each: dict[str, list[float]] = {}
    used_by = used.by_process()
    for pid in sorted(used_by, key=used_by.__getitem__, reverse=True):
        role = "serve" if pid == service.pid else "drain" if pid in drain else "others"
        each.setdefault(role, []).append(used_by[pid])
    return Moved(seconds, sum(used_by.values()), each)


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer with so many threads in all; 0 for its defaults."""

    name: str
    threads: int

    def __str__(self) -> str:
        return f"{self.name}, {self.threads} threads" if self.threads else f"{self.name}, defaults"

    def move(self, verb: Verb, files: Sequence[Path], endpoint: S3Endpoint) -> float:
        """Upload or download files; return the seconds that took; raises as ``moved``."""
        return self.moved(verb, files, endpoint).seconds

    def moved(self, verb: Verb, files: Sequence[Path], endpoint: S3Endpoint) -> Moved:
        """Upload or download files; return what that took.

        Raises:
            RuntimeError: It failed, or left a file short.
        """
        sizes = [path.stat().st_size for path in files]
        if verb == "get":
            for path in files:
                path.unlink()
        touch_memory(2 * sum(sizes))
        began, cpu = time.perf_counter(), _childrens_cpu_seconds()
        done = subprocess.run(
            self._command(verb, files, endpoint),
            cwd=ROOT,
            env=_environment(endpoint),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        moved = Moved(time.perf_counter() - began, _childrens_cpu_seconds() - cpu)
        if done.returncode or [path.stat().st_size for path in files] != sizes:
            raise RuntimeError(f"{self} failed: {done.stderr[-2000:]}")
        if self.name not in LIBRARIES:
            return moved
        seconds, cpu_seconds = map(float, done.stdout.split())  # without the start of Python
        return Moved(seconds, cpu_seconds)

    def _command(self, verb: Verb, files: Sequence[Path], endpoint: S3Endpoint) -> list[str]:
        url, bucket = endpoint.url, endpoint.bucket
        threads, each = self.threads or 10 * len(files), 0
        folder, names = files[0].parent, [path.name for path in files]
        if self.name in LIBRARIES:
            peer = [sys.executable, "-m", "benchmarks.link.peer", LIBRARIES[self.name]]
            command = [*peer, url, bucket]
            return [*command, str(threads), verb, *map(str, files)]
        each = max(1, self.threads // len(files))
        ours, theirs = f"{folder}/", f"{bucket}/"
        if self.name == "s5cmd":
            ends = (ours, f"s3://{theirs}") if verb == "put" else (f"s3://{theirs}file-*", ours)
            many = ["--numworkers", str(self.threads)] if self.threads else []
            parts = ["--concurrency", str(each), "--part-size", "8"] if self.threads else []
            return ["s5cmd", "--endpoint-url", url, *many, "cp", *parts, *ends]
        ends = (ours, f"sink:{theirs}") if verb == "put" else (f"sink:{theirs}", ours)
        many = ["--transfers", str(len(files))]
        many += ["--s3-upload-concurrency", str(each), "--s3-chunk-size", "8Mi"]
        many += ["--multi-thread-streams", str(each), "--multi-thread-cutoff", "8Mi"]
        only = [part for name in names for part in ("--include", name)]
        how = [
            "--s3-no-check-bucket",
            "--ignore-times",
            "--ignore-checksum",
            *(many if self.threads else []),
        ]
        return ["rclone", "--config", os.devnull, "copy", *how, *only, *ends]


def peers(threads: Sequence[int]) -> list[Peer]:
    """Return each peer that is there, with its defaults and with each number of threads."""
    names = ["boto3", *(name for name in ("s5cmd", "rclone") if has(name))]
    tuned = [Peer(name, number) for name in names for number in (0, *threads)]
    return [*tuned, Peer("CRT client", 0)]  # it counts its connections itself


def fastest(
    bench: Bench,
    move: Callable[[Peer], Moved],
    choices: Sequence[Peer],
    cost: Callable[[Moved], float] = lambda moved: moved.seconds,
) -> Peer:
    """Return the peer, and how many threads, that costs least."""
    costs = {}
    for peer in choices:
        moved = move(peer)
        bench.say(f"{peer}: {moved.seconds:.2f} s, processor {moved.cpu_seconds:.2f} s")
        costs[peer] = cost(moved)
    return min(costs, key=costs.__getitem__)


def _childrens_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def has(name: str) -> bool:
    """Return whether a library, or a program, is on this machine."""
    module = {"CRT client": "awscrt", FLOOR: "ssl"}.get(name, LIBRARIES.get(name))
    if module is not None:
        return importlib.util.find_spec(module) is not None
    return shutil.which(name, path=_path()) is not None


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def _environment(endpoint: S3Endpoint) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": _path(),
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nobody",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",  # the sink reads no trailers
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        "RCLONE_CONFIG_SINK_TYPE": "s3",
        "RCLONE_CONFIG_SINK_PROVIDER": "Other",
        "RCLONE_CONFIG_SINK_ENV_AUTH": "true",
        "RCLONE_CONFIG_SINK_ENDPOINT": endpoint.url,
        "RCLONE_CA_CERT": os.environ.get("REQUESTS_CA_BUNDLE", ""),
    }
