"""s3torchconnector's DCP writer, unchanged: through the door, and straight to S3 at 35 ms.

Each saves two ranks' state. Training waits for as long as ``save`` takes: it is not asynchronous.
What the door took is drained to the same server, behind the same 35 ms, before the next.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from benchmarks.measures import Result, at_most, median_of, ratios
from benchmarks.s3.door import PREFIX, DoorNode, boto, door
from benchmarks.s3.small import LATENCY_SECONDS
from benchmarks.scratch import Bench, settle
from benchmarks.torch.beside_s3 import PATIENCE_SECONDS, missing
from benchmarks.torch.names import S3
from benchmarks.torch.ranks import Ranks, ranks
from benchmarks.torch.sizes import sizes_of
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.seaweed import seaweedfs

WHAT = "training blocked by s3torchconnector's DCP save: through the door / straight at 35 ms"


def measure(bench: Bench) -> list[Result]:
    why = missing()
    if why:
        return [Result(WHAT, None, "", at_most(0.3), (), why)]
    ours, theirs = [], []
    with (
        seaweedfs(bench.directory / "s3") as server,
        S3Proxy(server.url, latency_seconds=LATENCY_SECONDS) as proxy,
        door(bench.directory / "cache", remote=server.behind(proxy.url)) as node,
        _job(bench, node.endpoint, "door") as near,
        _job(bench, server.behind(proxy.url), "straight") as far,
    ):
        for number in range(sizes_of(bench).remote_saves + 1):  # the first one only warms up
            settle()
            step = f"{PREFIX}{number}/"
            taken = near.save(S3, f"s3://{node.endpoint.bucket}/{step}")
            _wait_until_drained(node, step)
            straight = far.save(S3, f"s3://{server.bucket}/straight/{number}/")
            bench.say(f"through the door {taken:.2f} s, straight {straight:.2f} s")
            if number:
                ours.append(taken)
                theirs.append(straight)
    return [
        median_of(WHAT, ratios(ours, theirs), "", at_most(0.3)),
        median_of("a save by s3torchconnector through the door", ours, "s"),
        median_of("a save by s3torchconnector straight at 35 ms", theirs, "s"),
    ]


def _job(bench: Bench, endpoint: S3Endpoint, name: str) -> AbstractContextManager[Ranks]:
    environment = {**endpoint.environment(), "AWS_ENDPOINT_URL": endpoint.url}
    return ranks(sizes_of(bench), environment, bench.directory / f"{name}.log")


def _wait_until_drained(node: DoorNode, prefix: str) -> None:
    """Return once the bucket has all of a save: its last object, which the others precede."""
    client, bucket = boto(node.endpoint), node.endpoint.bucket
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < give_up_at:
        head = client.head_object(Bucket=bucket, Key=f"{prefix}.metadata")
        if head["ResponseMetadata"]["HTTPHeaders"]["x-cachetier-level"] == "durable":
            return
        time.sleep(0.1)
    raise RuntimeError("the save was not drained")
