"""``python -m benchmarks.scale RESULTS``: drains and restores with 1, 2, 4 and 8 carriers.

Each over plain HTTP and over TLS, beside what plain sockets move to and from the same sink, whose
own limit they show; and what a save costs training, where there is a GPU. ``RESULTS`` is a folder;
``scale.json`` in it has a line for each figure, with processor seconds of every process. Nothing
new begins once the time is nearly up (``--minutes``, 8).
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import shutil
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine, raw
from benchmarks.link import matrix, restoring
from benchmarks.link.peers import FLOOR, Moved, Peer
from benchmarks.link.processor import PLAIN, TLS
from benchmarks.link.worlds import Opened, opened
from benchmarks.processes import Used
from benchmarks.scratch import FULL, QUICK, Bench, scratch
from cachetier.config.settings import Settings

CARRIERS = (1, 4, 8, 2)  # the ends and the middle first
SHARDS = 8
SHARD_BYTES, QUICK_BYTES = 512 << 20, 9 << 20
MINUTES = 8.0
SPARE_SECONDS = 45.0  # what the longest single figure takes
GPU_ROUNDS = 3
_SETTINGS = {each.name for each in dataclasses.fields(Settings)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: proves that it works")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    ends_at = time.monotonic() + 60 * options.minutes - SPARE_SECONDS
    with scratch() as directory, (options.results / "scale.json").open("w") as file:
        _tell(file, {"machine": machine.describe(directory)})
        bench = Bench(directory, QUICK if options.quick else FULL, options.quick, _say)
        for row in _rows(bench, ends_at):
            _tell(file, row)


def carriers(count: int) -> Mapping[str, str]:
    """Return the settings for so many carriers: none, while there is no such setting."""
    return {"carriers": str(count)} if "carriers" in _SETTINGS else {}


def _rows(bench: Bench, ends_at: float) -> Iterator[dict[str, Any]]:
    for world in (PLAIN, TLS):
        inside = dataclasses.replace(bench, directory=bench.directory / world.name)
        with opened(world, inside.directory) as store:
            yield from _in_world(inside, world.name, store, ends_at)
        shutil.rmtree(inside.directory)
        if world is PLAIN:  # before TLS, should time run out
            yield from _on_a_gpu(bench, ends_at)


def _in_world(bench: Bench, name: str, store: Opened, ends_at: float) -> Iterator[dict[str, Any]]:
    """Yield the floor, drains and restores; the sink keeps bodies for the last of them."""
    each = QUICK_BYTES if bench.quick else SHARD_BYTES
    files = restoring.files(bench.directory / "files", each, SHARDS)
    source = raw.random_buffer(each)
    floor = Peer(FLOOR, 0)

    def figure(what: str, count: int, move: Any) -> dict[str, Any]:
        sink = Used([store.remote.pid])
        moved: Moved = move()
        gib = SHARDS * each / 2**30
        return {
            "what": f"{what}, {name}",
            "carriers": count,
            "GB/s": round(SHARDS * each / 1e9 / moved.seconds, 3),
            "s/GiB": round(moved.cpu_seconds / gib, 3),
            "sink s/GiB": round(sink.cpu_seconds() / gib, 3),
            **{
                f"{role} s/GiB": [round(used / gib, 3) for used in processes]
                for role, processes in moved.each.items()
            },
        }

    yield figure("plain sockets up", 0, partial(floor.moved, "put", files, store.endpoint))
    for count in CARRIERS:
        if time.monotonic() < ends_at:
            cache, how = bench.directory / f"cache-{count}", carriers(count)
            move = partial(matrix.drained, cache, store, source, SHARDS, how)
            yield figure("drain", count, move)
    store.remote.keep()
    if time.monotonic() > ends_at:
        return
    floor.move("put", files, store.endpoint)
    yield figure("plain sockets down", 0, partial(floor.moved, "get", files, store.endpoint))
    restoring.publish(bench, store.endpoint, [each] * SHARDS, 1)
    for count in CARRIERS:
        if time.monotonic() < ends_at:
            move = partial(restoring.restore, bench, store.endpoint, 1, each, SHARDS, count)
            yield figure("restore", count, partial(move, settings=carriers(count)))


def _on_a_gpu(bench: Bench, ends_at: float) -> Iterator[dict[str, Any]]:
    if importlib.util.find_spec("torch") is None or time.monotonic() > ends_at:
        return
    from benchmarks.torch import gpu

    inside = dataclasses.replace(bench, directory=bench.directory / "gpu")
    inside.directory.mkdir()
    for result in gpu.measure(inside, GPU_ROUNDS):
        yield {"what": result.measure, "value": result.value, "unit": result.unit}


def _say(line: str) -> None:
    print(f"  {line}", flush=True)


def _tell(file: Any, row: dict[str, Any]) -> None:
    """Keep a figure at once: whoever lends the machine may end this at any time."""
    print(json.dumps(row), file=file, flush=True)
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
