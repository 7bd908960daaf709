"""A multipart upload by 16 threads, beside a bare server that only writes what it receives."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import raw
from benchmarks.measures import Result, at_least, median_of, ratios
from benchmarks.s3.door import PREFIX, DoorNode, boto, door, put_to, signed_link
from benchmarks.scratch import ROOT, Bench, settle

THREADS = 16
PART_BYTES = 64 << 20
PARTS = 64
ROUNDS = 5


def measure(bench: Bench) -> list[Result]:
    part = raw.random_buffer(5 << 20 if bench.quick else PART_BYTES)
    parts = 2 if bench.quick else PARTS
    ours, bare = [], []
    for number in range(-1, 1 if bench.quick else ROUNDS):  # the first one only warms up
        pair = {"door": _by_door, "bare server": _by_bare_server}
        last = {}
        for name in sorted(pair, reverse=number % 2 == 0):
            cache = bench.directory / "files"
            last[name] = pair[name](cache, part, parts)
            shutil.rmtree(cache)
            settle()
        bench.say(", ".join(f"{name} {seconds:.2f} s" for name, seconds in last.items()))
        if number >= 0:
            ours.append(last["door"])
            bare.append(last["bare server"])
    size_bytes = len(part) * parts
    return [
        median_of(
            "multipart 4 GiB by 16 threads / a bare server, bodies to O_DIRECT",
            ratios(bare, ours),
            "",
            at_least(0.8),
        ),
        median_of(
            "multipart 4 GiB by 16 threads", [size_bytes / 1e9 / each for each in ours], "GB/s"
        ),
    ]


def _by_door(cache: Path, part: memoryview, parts: int) -> float:
    with door(cache) as node:
        return _uploaded(node, part, parts)


def _uploaded(node: DoorNode, part: memoryview, parts: int) -> float:
    client, bucket = boto(node.endpoint), node.endpoint.bucket
    where: dict[str, Any] = {"Bucket": bucket, "Key": f"{PREFIX}upload"}
    where["UploadId"] = client.create_multipart_upload(**where)["UploadId"]
    numbers = range(1, parts + 1)
    links = [signed_link(client, "upload_part", **where, PartNumber=number) for number in numbers]
    began = time.perf_counter()
    tags = _by_threads(links, part)
    listed: Any = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, 1)]
    client.complete_multipart_upload(**where, MultipartUpload={"Parts": listed})
    return time.perf_counter() - began


def _by_bare_server(directory: Path, part: memoryview, parts: int) -> float:
    directory.mkdir()
    with _bare_server(directory) as port:
        urls = [f"http://127.0.0.1:{port}/{number}?" for number in range(parts)]
        began = time.perf_counter()
        _by_threads(urls, part)
        return time.perf_counter() - began


def _by_threads(urls: list[str], part: memoryview) -> list[str]:
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda url: put_to(url, part), urls))


@contextmanager
def _bare_server(directory: Path) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.s3.bare_disk", str(directory)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.communicate()
