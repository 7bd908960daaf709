"""What jobs do without a cache: ``writers.py ENDPOINT BUCKET WRITERS PARTS PART_BYTES``.

Each of so many threads, one for a rank, has a boto3 client of its own with the standard retries,
and puts its objects one after the other. Prints a line when ready, waits for one, then prints how
many objects it gave up, and the seconds that each put took, given up or not.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from benchmarks.drain.remote import ANYBODY


def main(endpoint: str, bucket: str, writers: int, parts: int, part_bytes: int) -> None:
    session = boto3.session.Session(
        aws_access_key_id=ANYBODY.access_key,
        aws_secret_access_key=ANYBODY.secret_key,
        region_name="us-east-1",
    )
    config = Config(retries={"mode": "standard"}, s3={"addressing_style": "path"})
    clients = [session.client("s3", endpoint_url=endpoint, config=config) for _ in range(writers)]
    body = os.urandom(part_bytes)

    def write(rank: int) -> list[tuple[bool, float]]:
        done = []
        for number in range(parts):
            began = time.perf_counter()
            there = _put(clients[rank], bucket, f"rank-{rank}/shard-{number}", body)
            done.append((there, time.perf_counter() - began))
        return done

    print(flush=True)
    sys.stdin.readline()
    with ThreadPoolExecutor(writers) as ranks:
        puts = [put for done in ranks.map(write, range(writers)) for put in done]
    failures = sum(not there for there, _ in puts)
    print(json.dumps([failures, [seconds for _, seconds in puts]]), flush=True)


def _put(client: Any, bucket: str, key: str, body: bytes) -> bool:
    try:
        client.put_object(Bucket=bucket, Key=key, Body=body)
    except (BotoCoreError, ClientError):
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *(int(each) for each in sys.argv[3:6]))
