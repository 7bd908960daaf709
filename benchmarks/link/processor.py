"""What a GiB costs the processor, up and down, plain and over TLS, beside peers and plain sockets.

All move the same files to and from the same sink on loopback, each with its defaults. Ours is a
node's whole cost: the service, its drain and what they start, and for a restore the ranks, which
check every block. Peers keep downloads in files that they neither sync nor check; the floor, plain
sockets, touches no disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import raw
from benchmarks.drain.link import Shape
from benchmarks.link import matrix, restoring
from benchmarks.link.peers import FLOOR, Moved, Peer, Verb, has
from benchmarks.link.worlds import Opened, World, opened
from benchmarks.measures import Result, at_most, median_of
from benchmarks.scratch import Bench

OTHERS = ("CRT client", "s5cmd", "rclone", "obstore", "multi-storage-client", "boto3")
PLAIN, TLS = World("plain", Shape()), World("TLS", Shape(), tls=True)
VERBS: tuple[tuple[str, Verb], ...] = (("an upload", "put"), ("a download", "get"))
SHARDS = 4
RUNS, QUICK_RUNS = 2, 1
# A node moves many GiB: what a process costs once is to count as little as it does there.
SIZE_BYTES, QUICK_BYTES = 2 << 30, 36 << 20
BARS = {
    ("a drain", "plain", "all"): 0.5,
    ("a drain", "TLS", "all"): 1.3,
    ("a restore", "plain", "all"): 1.0,
    ("a drain", "plain", "drain"): 0.1,
    ("a restore", "plain", "serve"): 0.1,
}


def measure(world: World, bench: Bench) -> list[Result]:
    directory = bench.directory
    gib = (QUICK_BYTES if bench.quick else SIZE_BYTES) / 2**30
    each = int(gib * 2**30) // SHARDS
    with opened(world, directory) as store:
        files = restoring.files(directory / "files", each, SHARDS)
        source = raw.random_buffer(each)
        up = _runs(
            bench, lambda number: matrix.drained(directory / f"{number}", store, source, SHARDS)
        )
        rows = _ours(bench, world, "a drain", up, gib)
        store.remote.keep()
        rows += _peers(bench, world, store, files, source, gib)
        restoring.publish(bench, store.endpoint, [each] * SHARDS, 1)
        down = _runs(
            bench,
            lambda number: restoring.restore(bench, store.endpoint, 1, each, SHARDS, number),
        )
        return [*rows, *_ours(bench, world, "a restore", down, gib)]


def _peers(
    bench: Bench, world: World, store: Opened, files: list[Path], source: memoryview, gib: float
) -> list[Result]:
    rows = []
    for name in (FLOOR, *OTHERS[: 1 if bench.quick else None]):
        for what, verb in VERBS:
            move = partial(Peer(name, 0).moved, verb, files, store.endpoint)
            try:
                moved = _runs(bench, lambda _: move()) if has(name) else []  # noqa: B023
                values = [each.cpu_seconds / gib for each in moved]
                rows.append(_row(world, what, name, values, "not on this machine"))
            except RuntimeError as error:
                rows.append(_row(world, what, name, [], f"failed: {error}"))
                for path in files:  # a download that failed has left none
                    path.write_bytes(source)
            bench.say(f"{rows[-1].measure}: {rows[-1].values or rows[-1].note}")
    return rows


def _runs(bench: Bench, move: Callable[[int], Moved]) -> list[Moved]:
    return [move(number) for number in range(QUICK_RUNS if bench.quick else RUNS)]


def _ours(bench: Bench, world: World, what: str, moved: list[Moved], gib: float) -> list[Result]:
    roles = {"all": [each.cpu_seconds / gib for each in moved]}
    for role in moved[0].each:
        roles[role] = [sum(each.each[role]) / gib for each in moved]
    bench.say(f"{what}: {roles}")
    return [_row(world, what, role, values) for role, values in roles.items()]


def _row(world: World, what: str, who: str, values: list[float], note: str = "") -> Result:
    """Return the median of ``values``, or ``note``, which says why there is none."""
    measure = f"processor time of {what}, {world.name}: {who}"
    if not values:
        return Result(measure, None, "s/GiB", None, (), note)
    limit = BARS.get((what, world.name, who))
    return median_of(measure, values, "s/GiB", at_most(limit) if limit else None)
