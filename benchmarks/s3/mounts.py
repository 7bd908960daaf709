"""Memory of a node with very many buckets mounted, once each has been written to and asked."""

from __future__ import annotations

import time

from benchmarks import processes, raw
from benchmarks.drain.remote import sink
from benchmarks.measures import Result, at_most
from benchmarks.s3.door import boto, door, put_to, signed_link
from benchmarks.scratch import Bench

MOUNTS, QUICK_MOUNTS = 200, 8
BODY_BYTES = 1 << 20
PATIENCE_SECONDS = 300.0


def measure(bench: Bench) -> list[Result]:
    names = [f"bucket-{number}" for number in range(QUICK_MOUNTS if bench.quick else MOUNTS)]
    body = raw.random_buffer(BODY_BYTES)
    with sink() as remote, door(bench.directory / "cache", remote.endpoint, names) as node:
        client = boto(node.endpoint)
        for name in names:
            put_to(signed_link(client, "put_object", Bucket=name, Key="put"), body)
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while remote.counts().bytes < len(names) * BODY_BYTES:
            if time.monotonic() > give_up_at:
                raise RuntimeError("the mounts were not drained in time")
            time.sleep(0.1)
        for name in names:
            try:
                client.head_object(Bucket=name, Key="never-put")
            except client.exceptions.ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                    raise
        serve = processes.proportional_bytes(node.node.pid) / (1 << 20)
        drain = sum(map(processes.proportional_bytes, node.node.drain_pids())) / (1 << 20)
    bench.say(f"{len(names)} mounts: serve {serve:.0f} MiB, drain {drain:.0f} MiB")
    what = f"memory (PSS) with {MOUNTS} mounts in use"
    return [
        Result(f"{what}: serve", serve, "MiB", at_most(384), (serve,)),
        Result(f"{what}: the drain", drain, "MiB", at_most(384), (drain,)),
    ]
