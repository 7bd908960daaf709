"""A bare ``upload_part`` loop: ``bare_loop.py ENDPOINT BUCKET``.

What a person would write who wants nothing but speed: threads that read 16 MiB with ``O_DIRECT``
and hand it to boto3, with the drain's own boto3 settings (no payload signing, no checksum, no
retries), and with no digest, verification, record or pacing. Asked with lines of JSON, ``{"files":
[...], "threads": 4}``, it answers with seconds.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.drain.remote import ANYBODY
from cachetier.remote.s3.boto_client import connect

PART_BYTES = 16 << 20
MOST_THREADS = 64


def main(endpoint: str, bucket: str) -> None:
    client = connect(endpoint=endpoint, credentials=ANYBODY, max_connections=MOST_THREADS)
    for line in sys.stdin:
        wanted = json.loads(line)
        paths = [Path(each) for each in wanted["files"]]
        began = time.perf_counter()
        upload(client, bucket, paths, wanted["threads"])
        print(time.perf_counter() - began, flush=True)


def upload(client: Any, bucket: str, paths: list[Path], threads: int) -> None:
    """Upload every file, part by part, from ``threads`` threads at once."""
    own = threading.local()

    def send(job: tuple[int, str, str, int, int]) -> tuple[str, dict[str, Any]]:
        descriptor, key, upload_id, number, size_bytes = job
        if not hasattr(own, "memory"):
            own.memory = memoryview(mmap.mmap(-1, PART_BYTES))
        start = (number - 1) * PART_BYTES
        size_bytes = os.preadv(descriptor, [own.memory], start)
        body = own.memory[:size_bytes].tobytes()
        answer = client.upload_part(
            Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=body
        )
        return key, {"PartNumber": number, "ETag": answer["ETag"]}

    with _opened(paths) as descriptors:
        uploads = {
            path.name: client.create_multipart_upload(Bucket=bucket, Key=path.name)["UploadId"]
            for path in paths
        }
        jobs = [
            (descriptor, path.name, uploads[path.name], number, size_bytes)
            for path, descriptor in zip(paths, descriptors, strict=True)
            for size_bytes in [os.fstat(descriptor).st_size]
            for number in range(1, -(-size_bytes // PART_BYTES) + 1)
        ]
        parts: dict[str, list[dict[str, Any]]] = {path.name: [] for path in paths}
        with ThreadPoolExecutor(threads) as pool:
            for key, part in pool.map(send, jobs):
                parts[key].append(part)
        for key, upload_id in uploads.items():
            client.complete_multipart_upload(
                Bucket=bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts[key]}
            )


@contextmanager
def _opened(paths: list[Path]) -> Iterator[list[int]]:
    descriptors = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path in paths]
    try:
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
