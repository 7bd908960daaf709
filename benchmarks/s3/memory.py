"""Memory of the service while 64 connections upload at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from benchmarks import processes, raw
from benchmarks.measures import Result, at_most
from benchmarks.s3.door import PREFIX, boto, door, put_to, signed_link
from benchmarks.scratch import Bench

CONNECTIONS = 64
BODY_BYTES = 64 << 20


def measure(bench: Bench) -> list[Result]:
    body = raw.random_buffer(1 << 20 if bench.quick else BODY_BYTES)
    with door(bench.directory / "cache") as node:
        client, bucket = boto(node.endpoint), node.endpoint.bucket
        links = [
            signed_link(client, "put_object", Bucket=bucket, Key=f"{PREFIX}{number}")
            for number in range(CONNECTIONS)
        ]
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(lambda link: put_to(link, body), links))
        peak = processes.peak_bytes(node.node.pid) / (1 << 20)
    bench.say(f"serve: {peak:.0f} MiB at most")
    what = "peak memory of serve, 64 connections uploading 64 MiB each to the S3 door"
    return [Result(what, peak, "MiB", at_most(512), (peak,))]
