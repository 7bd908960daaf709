"""A local object of 1 GiB by GET, beside an app that sends a file of the same bytes."""

from __future__ import annotations

import os
import time

from benchmarks import raw
from benchmarks.core.http import bare_app
from benchmarks.measures import Result, at_least, median_of, ratios
from benchmarks.s3.bare_file import VARIABLE
from benchmarks.s3.door import PREFIX, RECEIVE_BYTES, boto, door, get_from, put_to, signed_link
from benchmarks.scratch import Bench

ROUNDS = 7


def measure(bench: Bench) -> list[Result]:
    body = raw.random_buffer(bench.sizes.large_bytes)
    plain = bench.directory / "plain"
    raw.write_and_sync(plain, body)
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    ours, bare = [], []
    with (
        door(bench.directory / "cache") as node,
        bare_app("benchmarks.s3.bare_file:app", **{VARIABLE: str(plain)}) as port,
    ):
        client, where = boto(node.endpoint), {"Bucket": node.endpoint.bucket, "Key": f"{PREFIX}r"}
        put_to(signed_link(client, "put_object", **where), body)
        link = signed_link(client, "get_object", **where)
        for number in range(-1, 1 if bench.quick else ROUNDS):  # the first one only warms up
            door_seconds = _taken(link, buffer, len(body))
            bare_seconds = _taken(f"http://127.0.0.1:{port}/", buffer, len(body))
            bench.say(f"door {door_seconds:.2f} s, bare app {bare_seconds:.2f} s")
            if number >= 0:
                ours.append(door_seconds)
                bare.append(bare_seconds)
    return [
        median_of(
            "GET 1 GiB of a local object / an app on uvicorn that sends the same file",
            ratios(bare, ours),
            "",
            at_least(0.7),
        ),
        median_of("GET 1 GiB of a local object", [len(body) / 1e9 / each for each in ours], "GB/s"),
    ]


def _taken(url: str, buffer: memoryview, size_bytes: int) -> float:
    os.sync()
    began = time.perf_counter()
    received = get_from(url, buffer)
    seconds = time.perf_counter() - began
    if received != size_bytes:
        raise RuntimeError(f"{received} bytes came, not {size_bytes}")
    return seconds
