"""Count what calls cost, whatever the machine's mood: ``python -m tools.house.costs``.

A real ``serve`` with its drain, a client in this process, an S3 server (moto) behind a proxy that
counts. Each call is made several times, and of its counts the least stands, as timers run beside:

- *syncs*, *statements*, *messages*: see ``counting``; of client, ``serve`` and drain together;
- *requests*: at the bucket;
- *moved*: bytes that the three read or wrote, files and pipes, for each byte of the payload;
- *cpu*: milliseconds of processor time of the three, the median; only the same machine compares.

Where nothing is to be drained the drain is stopped meanwhile: else its looks at what waits fall
into a call on one machine, and beside it on another.

``tests/oracle/costs.json`` keeps them, and more than is kept there is a failure, but for some
statements and messages of the drain's looks; processor time is only shown.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from cachetier_client import Client

from tools.house.byte_path import asleep

if TYPE_CHECKING:
    from benchmarks.node import Node

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "tests" / "oracle" / "costs.json"
SMALL, LARGE = 4096, 16 << 20
RUNS = 12
QUIET_SECONDS, PATIENCE_SECONDS = 0.3, 10.0
WAIT_SECONDS = 300.0
COUNTS = ("syncs", "statements", "messages", "requests")
RUN = "costs"
STEP, RESTORE = "step of 16 MiB, put to published", "cold restore of 16 MiB"
DRAINING = (STEP, RESTORE)  # with a drain that is awake
_PART: dict[str, Any] = {"name": "weights", "rank": 0, "world_size": 1, "save_id": "s"}

Costs = dict[str, float]


class Bench:
    """What is counted at: processes, and the proxy before the bucket."""

    def __init__(
        self,
        folder: Path,
        pids: Callable[[], list[int]],
        requests: Callable[[], int] = lambda: 0,
    ) -> None:
        self._folder = folder
        self._pids = pids
        self._requests = requests

    def measured(self, call: Callable[[int], object], payload_bytes: int, first: int = 1) -> Costs:
        """Return what ``call`` costs; it gets another number each time."""
        runs = [self._once(call, number) for number in range(first, first + RUNS)]
        found = {kind: min(run[kind] for run in runs) for kind in COUNTS}
        moved = min(run["moved_bytes"] for run in runs) / payload_bytes
        cpu = statistics.median(run["cpu_seconds"] for run in runs)
        return {**found, "moved": round(moved, 1), "cpu": round(1000 * cpu, 1)}

    def _once(self, call: Callable[[int], object], number: int) -> Costs:
        self._settle()
        before = self._look()
        call(number)
        self._settle()
        after = self._look()
        return {kind: after[kind] - before[kind] for kind in before}

    def _settle(self) -> None:
        """Wait until nothing is counted any more."""
        ends_at, last = time.monotonic() + PATIENCE_SECONDS, self._counted()
        while time.monotonic() < ends_at:
            time.sleep(QUIET_SECONDS)
            now = self._counted()
            if now == last:
                return
            last = now

    def _counted(self) -> Costs:
        from tools.house import counting

        return {**counting.read(self._folder), "requests": self._requests()}

    def _look(self) -> Costs:
        from benchmarks.processes import cpu_seconds

        pids = [os.getpid(), *self._pids()]
        moved = sum(_moved_bytes(pid) for pid in pids)
        cpu = sum(map(cpu_seconds, pids))
        return {**self._counted(), "moved_bytes": moved, "cpu_seconds": cpu}


def _moved_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    fields = dict(line.split(": ") for line in lines)
    return int(fields["rchar"]) + int(fields["wchar"])


def measured() -> dict[str, Costs]:
    """Return the costs of every call."""
    from tools.house import counting

    with tempfile.TemporaryDirectory(prefix="costs-") as scratch:
        folder = Path(scratch)
        os.environ[counting.FOLDER] = scratch
        packages = (Path(__file__).parent / "counter", ROOT, ROOT / "client")
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, packages))
        os.environ["PYTHONSAFEPATH"] = "1"  # else the drain finds this folder's packages first
        counting.install(folder)
        logging.getLogger("cachetier_client.calls.unsealed").setLevel(logging.ERROR)
        return {**_alone(folder), **_with_bucket(folder), **_of_the_door(folder)}


def _alone(folder: Path) -> dict[str, Costs]:
    """Cost of shards on a node whose bucket nobody answers for."""
    from benchmarks.node import node

    with (
        node(folder / "alone") as served,
        Client(served.url) as client,
        asleep(served.drain_pids()),
    ):
        bench = Bench(folder, lambda: [served.pid])

        def put(size_bytes: int) -> Callable[[int], object]:
            data = os.urandom(size_bytes)
            return lambda number: client.put_shard(data, run=RUN, step=number, **_PART)

        found = {
            "put of 4 KiB": bench.measured(put(SMALL), SMALL),
            "put of 16 MiB": bench.measured(put(LARGE), LARGE, 1 + RUNS),
        }
        found["local get of 16 MiB"] = bench.measured(
            lambda _: client.get_shard(RUN, 1 + RUNS, "weights"), LARGE
        )
        return found


def _with_bucket(folder: Path) -> dict[str, Costs]:
    """Cost of a step on its way, and back on another node."""
    from benchmarks.node import node
    from cachetier.testing.moto_server import moto_server
    from cachetier.testing.s3proxy import S3Proxy

    data = os.urandom(LARGE)
    settings = {"remote_assume": "readback"}  # moto judges no digests
    with moto_server() as server, S3Proxy(server.url) as proxy:
        remote = server.behind(proxy.url)

        def bench(served: Node) -> Bench:
            pids = lambda: [served.pid, *served.drain_pids()]  # noqa: E731
            return Bench(folder, pids, lambda: proxy.requests)

        with (
            node(folder / "first", remote=remote, settings=settings) as served,
            Client(served.url) as client,
        ):

            def save(number: int) -> None:
                client.put_shard(data, run=RUN, step=number, **_PART)
                client.seal(RUN, number, rank=0, world_size=1, save_id="s")
                client.wait(RUN, number, "durable", WAIT_SECONDS)

            there = bench(served).measured(save, LARGE)
        with (
            node(folder / "second", remote=remote, settings=settings) as served,
            Client(served.url) as client,
        ):
            back = bench(served).measured(
                lambda number: client.get_shard(RUN, number, "weights"), LARGE
            )
    return {STEP: there, RESTORE: back}


def _of_the_door(folder: Path) -> dict[str, Costs]:
    from benchmarks.s3.door import PREFIX, boto, door

    with door(folder / "door") as served, asleep(served.node.drain_pids()):
        client, data = boto(served.endpoint), os.urandom(LARGE)
        bench = Bench(folder, lambda: [served.node.pid])
        bucket = served.endpoint.bucket

        def put(number: int) -> object:
            return client.put_object(Bucket=bucket, Key=f"{PREFIX}{number}", Body=data)

        return {"put of 16 MiB at the S3 door": bench.measured(put, LARGE)}


# --- what is kept ---------------------------------------------------------------------------------


def higher(found: dict[str, Costs], kept: dict[str, Costs]) -> list[str]:
    """Say which counts are higher than those that are kept."""
    return [
        f"{call}: {found[call][kind]:g} {kind}, and {kept[call][kind]:g} are kept"
        for call in kept
        for kind in (*COUNTS, "moved")
        if found[call][kind] > kept[call][kind] + _leeway(call, kind, kept[call][kind])
    ]


def _leeway(call: str, kind: str, kept: float) -> float:
    """Return how much more says nothing: an awake drain's looks fall into a call, or beside it."""
    if call in DRAINING and kind in ("statements", "messages"):
        return max(6.0, 0.05 * kept)
    return 0.1 * kept if kind == "moved" else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Count what calls cost.")
    parser.add_argument("--write", action="store_true", help="keep what is found")
    options = parser.parse_args()
    found = measured()
    columns = (*COUNTS, "moved", "cpu")
    click.echo(f"{'':36}" + "".join(f"{column:>12}" for column in columns))
    for call, costs in found.items():
        click.echo(f"{call:36}" + "".join(f"{costs[column]:12g}" for column in columns))
    if options.write:
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return
    kept: dict[str, Costs] = json.loads(KEPT.read_text(encoding="utf-8"))
    for line in (told := higher(found, kept)):
        click.echo(f"higher: {line}", err=True)
    if told:
        sys.exit("what is meant is kept by: python -m tools.house.costs --write, with a word why")


if __name__ == "__main__":
    main()
