"""Small puts by boto3: through the door, and straight to the same kind of server 35 ms away."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

from benchmarks import raw
from benchmarks.core.http import bare_app
from benchmarks.measures import Result, at_most, median_of, ratios
from benchmarks.s3.door import PREFIX, boto, door
from benchmarks.scratch import Bench
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.seaweed import seaweedfs

LATENCY_SECONDS = 0.035
BODY_BYTES = 4096
PUTS = 100
ROUNDS = 5
DOOR = "boto3 PUT 4 KiB through the door"
FAR = "boto3 PUT 4 KiB to S3 at 35 ms"
BARE = "boto3 PUT 4 KiB to a bare app"
SYNC = "a file's sync of 4 KiB more"
WORDS = (DOOR, FAR, BARE, SYNC)


def measure(bench: Bench) -> list[Result]:
    """Measure also what no door can save: boto3 itself, to an app that drops the body; a sync."""
    puts = 3 if bench.quick else PUTS
    found: dict[str, list[float]] = {word: [] for word in WORDS}
    with (
        seaweedfs(bench.directory / "s3") as server,
        S3Proxy(server.url, latency_seconds=LATENCY_SECONDS) as proxy,
        door(bench.directory / "cache") as node,
        bare_app() as port,
        (bench.directory / "plain").open("wb", buffering=0) as plain,
    ):
        app = S3Endpoint(f"http://127.0.0.1:{port}", "bare", node.endpoint.credentials, "checksum")
        does = {
            DOOR: _putting(node.endpoint),
            FAR: _putting(server.behind(proxy.url)),
            BARE: _putting(app),
            SYNC: lambda body: raw.append_and_sync(plain.fileno(), body),
        }
        for number in range(-1, 1 if bench.quick else ROUNDS):  # the first one only warms up
            last = {word: _p50_milliseconds(act, puts) for word, act in does.items()}
            bench.say(", ".join(f"{word} {each:.2f} ms" for word, each in last.items()))
            for word, each in last.items() if number >= 0 else ():
                found[word].append(each)
    what = "boto3 PUT 4 KiB through the door, p50 / the same to S3 at 35 ms"
    compared = median_of(what, ratios(found[DOOR], found[FAR]), "", at_most(0.06))
    return [compared, *(median_of(f"{word}, p50", found[word], "ms") for word in WORDS)]


def _putting(endpoint: S3Endpoint) -> Callable[[bytes], object]:
    client = boto(endpoint)

    def put(body: bytes) -> None:
        key = f"{PREFIX}{os.urandom(8).hex()}"
        client.put_object(Bucket=endpoint.bucket, Key=key, Body=body)

    return put


def _p50_milliseconds(act: Callable[[bytes], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        body = os.urandom(BODY_BYTES)
        began = time.perf_counter()
        act(body)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) * 1e3
