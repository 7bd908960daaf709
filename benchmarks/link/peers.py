"""What users would pick instead: boto3, the CRT client, s5cmd and rclone, on the same sink."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.drain.remote import RunningSink
from benchmarks.scratch import ROOT, Bench, touch_memory

PATIENCE_SECONDS = 600.0
Verb = Literal["put", "get"]


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer with so many threads in all; 0 for its defaults."""

    name: str
    threads: int

    def __str__(self) -> str:
        return f"{self.name}, {self.threads} threads" if self.threads else f"{self.name}, defaults"

    def move(self, verb: Verb, files: Sequence[Path], remote: RunningSink) -> float:
        """Upload or download files; return the seconds that took.

        Raises:
            RuntimeError: It failed, or left a file short.
        """
        sizes = [path.stat().st_size for path in files]
        if verb == "get":
            for path in files:
                path.unlink()
        touch_memory(2 * sum(sizes))
        began = time.perf_counter()
        done = subprocess.run(
            self._command(verb, files, remote),
            cwd=ROOT,
            env=_environment(remote),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        seconds = time.perf_counter() - began
        if done.returncode or [path.stat().st_size for path in files] != sizes:
            raise RuntimeError(f"{self} failed: {done.stderr[-2000:]}")
        return float(done.stdout) if self.name in ("boto3", "CRT client") else seconds

    def _command(self, verb: Verb, files: Sequence[Path], remote: RunningSink) -> list[str]:
        url, bucket = remote.endpoint.url, remote.endpoint.bucket
        threads, each = self.threads or 10 * len(files), 0
        folder, names = files[0].parent, [path.name for path in files]
        if self.name in ("boto3", "CRT client"):
            library = "boto3" if self.name == "boto3" else "crt"
            command = [sys.executable, "-m", "benchmarks.link.peer", library, url, bucket]
            return [*command, str(threads), verb, *map(str, files)]
        each = max(1, self.threads // len(files))
        ours, theirs = f"{folder}/", f"{bucket}/"
        if self.name == "s5cmd":
            ends = (ours, f"s3://{theirs}") if verb == "put" else (f"s3://{theirs}*", ours)
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
    names = ["boto3", *(name for name in ("s5cmd", "rclone") if _has(name))]
    tuned = [Peer(name, number) for name in names for number in (0, *threads)]
    return [*tuned, Peer("CRT client", 0)]  # it counts its connections itself


def fastest(
    bench: Bench, verb: Verb, files: Sequence[Path], remote: RunningSink, choices: Sequence[Peer]
) -> list[Peer]:
    """Return the peers, each with the threads that suit it best, the fastest first."""
    best: dict[str, tuple[float, Peer]] = {}
    for peer in choices:
        if verb == "put":
            remote.forget()
        seconds = peer.move(verb, files, remote)
        bench.say(f"{peer}: {seconds:.2f} s")
        best[peer.name] = min(best.get(peer.name, (seconds, peer)), (seconds, peer), key=_seconds)
    return [peer for _, peer in sorted(best.values(), key=_seconds)]


def _seconds(timed: tuple[float, Peer]) -> float:
    return timed[0]


def _has(name: str) -> bool:
    return shutil.which(name, path=_path()) is not None


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def _environment(remote: RunningSink) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": _path(),
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nobody",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "RCLONE_CONFIG_SINK_TYPE": "s3",
        "RCLONE_CONFIG_SINK_PROVIDER": "Other",
        "RCLONE_CONFIG_SINK_ENV_AUTH": "true",
        "RCLONE_CONFIG_SINK_ENDPOINT": remote.endpoint.url,
    }
