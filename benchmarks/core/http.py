"""A large PUT through the HTTP door, beside a bare app that throws the same body away."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import raw
from benchmarks.measures import Result, at_least, median_of, ratios
from benchmarks.node import TOKEN, node
from benchmarks.scratch import ROOT, Bench, settle
from cachetier.testing.s3_endpoint import free_ports


def measure(bench: Bench) -> list[Result]:
    body = raw.random_buffer(bench.sizes.large_bytes)
    ours, bare = [], []
    with node(bench.directory / "cache") as service, bare_app() as bare_port:
        for number in range(-1, bench.sizes.large_runs):
            step = f"/v1/runs/http/steps/{number + 1}"
            door = _put(service.http_port, f"{step}/shards/shard", body)
            thrown_away = _put(bare_port, "/", body)
            _request(service.http_port, "DELETE", step)
            settle()
            bench.say(f"HTTP door {door:.2f}, bare app {thrown_away:.2f}")
            if number >= 0:  # the first one only warms up
                ours.append(door)
                bare.append(thrown_away)
    return [
        median_of(
            "HTTP PUT 1 GiB / the same body thrown away by a bare app",
            ratios(bare, ours),
            "",
            at_least(0.6),
        ),
        median_of("HTTP PUT 1 GiB", [len(body) / 1e9 / seconds for seconds in ours], "GB/s"),
    ]


def _put(port: int, path: str, body: memoryview) -> float:
    began = time.perf_counter()
    _request(port, "PUT", path, body)
    return time.perf_counter() - began


def _request(port: int, method: str, path: str, body: memoryview | None = None) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path}: {answer.status} {text[:500]!r}")


@contextmanager
def bare_app(app: str = "benchmarks.core.bare_app:app", **variables: str) -> Iterator[int]:
    """Serve a bare app as the service serves its own: uvicorn with httptools and uvloop."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "uvicorn", app]
    options = ["--port", str(port), "--loop", "uvloop", "--http", "httptools", "--no-access-log"]
    process = subprocess.Popen(
        [*command, *options, "--host", "127.0.0.1", "--log-level", "error"],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < give_up_at:
        try:
            _request(port, "HEAD", "/")
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError("the bare app did not start")
