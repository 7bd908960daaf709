"""Loads by both ranks, from a disk whose files are not in the page cache."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from cachetier_client import Client

from benchmarks.measures import Result, at_least, median_of, ratios
from benchmarks.node import node
from benchmarks.scratch import Bench, settle
from benchmarks.torch.names import DCP, OURS
from benchmarks.torch.places import Places
from benchmarks.torch.ranks import ranks
from benchmarks.torch.sizes import sizes_of

WARM_SHARE = 0.02  # of a file's pages may be in memory and it is still cold


def measure(bench: Bench) -> list[Result]:
    sizes = sizes_of(bench)
    seconds: dict[str, list[float]] = {DCP: [], OURS: []}
    cache = bench.directory / "cache"
    with (
        node(cache) as service,
        Client(service.url) as client,
        ranks(sizes, {"CACHETIER_URL": service.url}, bench.directory / "ranks.log") as job,
    ):
        places = Places(bench.directory, client)
        with places.next_for(DCP) as theirs, places.next_for(OURS) as ours:
            job.save(DCP, theirs)
            job.save(OURS, ours)
            wheres = {DCP: (theirs, Path(theirs.where)), OURS: (ours, cache / "data")}
            for number in range(sizes.loads + 1):
                for mode in wheres if number % 2 else reversed(wheres):
                    place, directory = wheres[mode]
                    _make_cold(directory)
                    taken = job.load(mode, place)
                    if number:  # the first one only warms up
                        seconds[mode].append(taken)
        size_bytes = job.state_bytes()
        bench.say(", ".join(f"{mode}: {found[-1]:.2f} s" for mode, found in seconds.items()))
    faster = ratios(seconds[DCP], seconds[OURS])
    what = "dcp.load, page cache cold: FileSystemReader / CachetierReader from local"
    rates = {mode: [2 * size_bytes / 1e9 / each for each in seconds[mode]] for mode in seconds}
    return [
        median_of(what, faster, "times", at_least(1.5)),
        median_of("dcp.load, CachetierReader, both ranks", rates[OURS], "GB/s"),
        median_of("dcp.load, FileSystemReader, cold, both ranks", rates[DCP], "GB/s"),
    ]


def _make_cold(directory: Path) -> None:
    """Have the files under a directory out of the page cache.

    Raises:
        RuntimeError: They are still in it.
    """
    settle()  # what is not written out stays
    for path in _files(directory):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if (share := _share_in_memory(path)) > WARM_SHARE:
            raise RuntimeError(f"{share:.0%} of {path} are still in the page cache")


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in directory.rglob("*") if path.is_file() and path.stat().st_size > 2**20)


def _share_in_memory(path: Path) -> float:
    """Return which part of a file's pages is in memory, as mincore(2) says."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file:
        size = path.stat().st_size
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        with mmap.mmap(
            file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
        ) as at:
            first = ctypes.c_char.from_buffer(at)
            address = ctypes.c_void_p(ctypes.addressof(first))
            failed = libc.mincore(address, ctypes.c_size_t(size), pages)
            del first
            if failed:
                raise OSError(ctypes.get_errno(), "mincore")
    return sum(page & 1 for page in pages) / len(pages)
