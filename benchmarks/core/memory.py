"""Puts that are acknowledged in memory: beside copies of the bytes, and before a slow disk.

A round deletes what it put before the next one, so that memory never fills up. The slow disk is
this one, held by a control group of version 1 (``blkio``), which needs root.
"""

from __future__ import annotations

import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from cachetier_client import Client

from benchmarks import processes, raw
from benchmarks.measures import Result, at_least, at_most, median_of, ratios
from benchmarks.node import Node, node
from benchmarks.scratch import Bench, touch_memory

RUN = "memory"
TMPFS = Path("/dev/shm")
THREADS = 4  # of a client
PIECE_BYTES = 4 << 20
ROOM_BYTES = 256 << 20  # all rounds of small ones, though a slow disk keeps what was deleted
DISK_RATE = 200_000_000
BLKIO = Path("/sys/fs/cgroup/blkio")
ROUNDS = 5
WHAT = "put_shard 1 GiB, ack memory: its speed / that of the same threads"

Level = Literal["memory", "local"]
LEVELS: tuple[Level, Level] = ("memory", "local")
Take = Callable[[int, memoryview], object]


def measure(bench: Bench) -> list[Result]:
    size_bytes = bench.sizes.large_bytes
    with ExitStack() as stack:
        folder = TMPFS / f"cachetier-bench-{os.getpid()}"
        folder.mkdir(mode=0o700)
        stack.callback(shutil.rmtree, folder)
        settings = {"memory": f"{max(4 * size_bytes, ROOM_BYTES)} in {folder}"}
        service = stack.enter_context(node(bench.directory / "cache", settings=settings))
        client = stack.enter_context(Client(service.url))
        free = [_round(client, size_bytes, step) for step in range(ROUNDS + 1)][1:]
        puts, copies, files = zip(*free, strict=True)
        bench.say(f"put {min(puts):.2f} s, copy {min(copies):.2f} s, tmpfs {min(files):.2f} s")
        results = [
            median_of(
                f"{WHAT} / copying them into memory", ratios(copies, puts), "", at_least(0.7)
            ),
            median_of(f"{WHAT} / writing them to a tmpfs", ratios(files, puts), ""),
        ]
        if not (BLKIO / "blkio.throttle.write_bps_device").exists():
            bench.say("no slow disk: no control group of version 1 here")
            return results
        stack.enter_context(_slow_disk(service, bench.directory))
        blocked = [_blocked(client, size_bytes, ROUNDS + 1 + step) for step in range(ROUNDS)]
        memory, local = zip(*blocked, strict=True)
        bench.say(f"disk of 200 MB/s: memory {min(memory):.2f} s, local {min(local):.2f} s")
        title = "blocked by a put, ack memory / ack local, the disk held to 200 MB/s"
        return [*results, median_of(title, ratios(memory, local), "", at_most(0.15))]


def _round(client: Client, size_bytes: int, step: int) -> tuple[float, float, float]:
    """Return the seconds of a put, of a copy and of a file of the same bytes."""
    source = raw.random_buffer(size_bytes)
    touch_memory(2 * size_bytes)
    put = _put(client, source, step, "memory")
    client.delete_step(RUN, step)
    with mmap.mmap(-1, size_bytes) as memory, memoryview(memory) as into:
        copied = _in_pieces(source, partial(_copy, into))
    descriptor = os.memfd_create("copy")  # a tmpfs
    written = _in_pieces(source, lambda at, piece: os.pwrite(descriptor, piece, at))
    os.close(descriptor)
    return put, copied, written


def _blocked(client: Client, size_bytes: int, step: int) -> tuple[float, float]:
    """Return how long a put blocks by either level; the one in memory waits for no other's copy."""
    source = raw.random_buffer(size_bytes)
    seconds = []
    for number, level in enumerate(LEVELS, 2 * step):
        seconds.append(_put(client, source, number, level))
        client.delete_step(RUN, number)
    return seconds[0], seconds[1]


def _put(client: Client, source: memoryview, step: int, level: Level) -> float:
    began = time.perf_counter()
    receipt = client.put_shard(source, run=RUN, step=step, name="shard", ack=level)
    seconds = time.perf_counter() - began
    if receipt.level != level:
        raise RuntimeError(f"the put was acknowledged at {receipt.level}, not {level}")
    return seconds


def _copy(into: memoryview, at: int, piece: memoryview) -> None:
    # numpy lets other threads run meanwhile, which a slice's assignment does not
    np.copyto(np.frombuffer(into, np.uint8)[at : at + len(piece)], np.frombuffer(piece, np.uint8))


def _in_pieces(source: memoryview, take: Take) -> float:
    """Have threads take the pieces of ``source``; return the seconds."""
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        starts = range(0, len(source), PIECE_BYTES)
        list(threads.map(lambda at: take(at, source[at : at + PIECE_BYTES]), starts))
    return time.perf_counter() - began


@contextmanager
def _slow_disk(service: Node, directory: Path) -> Iterator[None]:
    """Hold what we and the service write to the disk below ``directory`` to a rate."""
    group, root = BLKIO / f"cachetier-bench-{os.getpid()}", BLKIO / "cgroup.procs"
    group.mkdir()
    # The rank, which is this process, writes its shards itself: the service opens their files.
    pids = [os.getpid(), service.pid, *processes.children_of(service.pid)]
    try:
        disk = os.stat(directory).st_dev
        held = f"{os.major(disk)}:{os.minor(disk)} {DISK_RATE}"
        (group / "blkio.throttle.write_bps_device").write_text(held)
        for pid in pids:
            (group / "cgroup.procs").write_text(f"{pid}")
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            root.write_text(left)
        group.rmdir()
