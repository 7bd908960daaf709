"""Small puts by boto3: through the door, and straight to the same kind of server 35 ms away."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.measures import Result, at_most, median_of, ratios
from benchmarks.s3.door import PREFIX, boto, door
from benchmarks.scratch import Bench
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.seaweed import seaweedfs

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

LATENCY_SECONDS = 0.035
BODY_BYTES = 4096
PUTS = 100
ROUNDS = 5


def measure(bench: Bench) -> list[Result]:
    ours, theirs = [], []
    with (
        seaweedfs(bench.directory / "s3") as server,
        S3Proxy(server.url, latency_seconds=LATENCY_SECONDS) as proxy,
        door(bench.directory / "cache") as node,
    ):
        here, there = boto(node.endpoint), boto(server.behind(proxy.url))
        for number in range(-1, 1 if bench.quick else ROUNDS):  # the first one only warms up
            puts = 3 if bench.quick else PUTS
            near = _p50(here, node.endpoint.bucket, puts)
            far = _p50(there, server.bucket, puts)
            bench.say(f"through the door {near * 1e3:.2f} ms, straight {far * 1e3:.2f} ms")
            if number >= 0:
                ours.append(near)
                theirs.append(far)
    return [
        median_of(
            "boto3 PUT 4 KiB through the door, p50 / the same to S3 at 35 ms",
            ratios(ours, theirs),
            "",
            at_most(0.06),
        ),
        median_of("boto3 PUT 4 KiB through the door, p50", [each * 1e3 for each in ours], "ms"),
        median_of("boto3 PUT 4 KiB to S3 at 35 ms, p50", [each * 1e3 for each in theirs], "ms"),
    ]


def _p50(client: S3Client, bucket: str, puts: int) -> float:
    seconds = []
    for _ in range(puts):
        body, key = os.urandom(BODY_BYTES), f"{PREFIX}{os.urandom(8).hex()}"
        began = time.perf_counter()
        client.put_object(Bucket=bucket, Key=key, Body=body)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
