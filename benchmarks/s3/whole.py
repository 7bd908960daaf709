"""Objects of 64 MiB put whole by boto3: to the door, to a local SeaweedFS, to a bare app."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import raw
from benchmarks.core.http import bare_app
from benchmarks.measures import Result, at_least, median_of, ratios
from benchmarks.s3.door import PREFIX, boto, door
from benchmarks.scratch import Bench, settle
from cachetier.remote.s3.boto_client import Credentials
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.seaweed import seaweedfs

BODY_BYTES = 64 << 20
ROUNDS = 9
WORDS = ("the door", "SeaweedFS", "a bare app")


def measure(bench: Bench) -> list[Result]:
    body = bytes(raw.random_buffer(1 << 20 if bench.quick else BODY_BYTES))
    seconds: dict[str, list[float]] = {word: [] for word in WORDS}
    with _targets(bench.directory) as endpoints:
        clients = [(word, boto(each), each.bucket) for word, each in endpoints.items()]
        for number in range(-1, 1 if bench.quick else ROUNDS):  # the first one only warms up
            last = {}
            for word, client, bucket in clients[:: 1 if number % 2 else -1]:
                settle()
                began = time.perf_counter()
                client.put_object(Bucket=bucket, Key=f"{PREFIX}{number}", Body=body)
                last[word] = time.perf_counter() - began
            bench.say(", ".join(f"{word} {last[word]:.3f} s" for word in WORDS))
            for word in WORDS if number >= 0 else ():
                seconds[word].append(last[word])
    ours, seaweed, bare = (seconds[word] for word in WORDS)
    return [
        median_of(
            "boto3 PUT 64 MiB through the door / to a local SeaweedFS",
            ratios(seaweed, ours),
            "",
            at_least(2),
        ),
        median_of(
            "boto3 PUT 64 MiB through the door / to a bare app that discards it",
            ratios(bare, ours),
            "",
            at_least(0.7),
        ),
        median_of(
            "boto3 PUT 64 MiB through the door", [len(body) / 1e9 / each for each in ours], "GB/s"
        ),
    ]


@contextlib.contextmanager
def _targets(directory: Path) -> Iterator[dict[str, S3Endpoint]]:
    with (
        door(directory / "cache") as node,
        seaweedfs(directory / "s3") as server,
        bare_app() as port,
    ):
        nobody = Credentials("anybody", "the-app-looks-at-no-signature")
        bare = S3Endpoint(f"http://127.0.0.1:{port}", "bare", nobody, "checksum")
        yield dict(zip(WORDS, (node.endpoint, server, bare), strict=True))
