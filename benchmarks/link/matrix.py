"""Drain and cold restore in a matrix of worlds, beside the best peer in the same one.

There are too many cells for one sitting. A run takes the six that were measured longest ago and
three of the others, drawn; ``FULL=1`` takes all, and goes on where it was broken off. What was
measured is kept in ``worlds.json``; **the worst cell is the figure**. Nobody tunes to a cell: the
stores of users are others.

Where only the processor is the limit, processor seconds are compared, else seconds.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from tempfile import mkdtemp

import msgspec
from cachetier_client import Client

from benchmarks import processes, raw
from benchmarks.drain.remote import none_went_early, put_held, seconds_until_durable
from benchmarks.link import restoring
from benchmarks.link.peers import Moved, Peer, fastest, has, moved_by
from benchmarks.link.worlds import GRID, WORLDS, Opened, World, opened
from benchmarks.measures import Result, at_least
from benchmarks.node import node
from benchmarks.scratch import Bench, settle

KEPT = Path(__file__).with_name("worlds.json")
TABLE = Path(__file__).with_name("worlds.md")
FULL_VARIABLE = "CACHETIER_BENCH_FULL"
RUN = "world"
GIB = 1 << 30
IN_TURN, DRAWN, WORST, RUNS = 6, 3, 3, 2
SIZE_BYTES, SHARDS = 2 * GIB, 4
OTHERS = ((GIB // 2, 4), (8 * GIB, 4), (2 * GIB, 2), (2 * GIB, 8))
RESTORED_AT_MOST = 2 * GIB  # ranks and stores hold what is restored in memory
QUICK_BYTES = 36 << 20
BAR = at_least(0.8)


@dataclass(frozen=True, slots=True)
class Cell:
    """One world, and what is moved there."""

    world: str
    size_bytes: int = SIZE_BYTES
    shards: int = SHARDS

    @property
    def is_base(self) -> bool:
        return (self.size_bytes, self.shards) == (SIZE_BYTES, SHARDS)

    def __str__(self) -> str:
        return f"{self.world}: {self.size_bytes / GIB:g} GiB in {self.shards}"


@dataclass(frozen=True, slots=True)
class Beside:
    """Ours beside the best peer: ``ratio`` is theirs by ours, in seconds or processor seconds."""

    ratio: float
    mb_per_second: float
    peer: str
    peer_mb_per_second: float


@dataclass(frozen=True, slots=True)
class Record:
    """What was measured in a cell, and when."""

    cell: Cell
    at: str
    drain: Beside
    restore: Beside | None = None

    @property
    def worst(self) -> float:
        return min(each.ratio for each in (self.drain, self.restore) if each is not None)


def measure(bench: Bench) -> list[Result]:
    if bench.quick:
        cells = [Cell(name, QUICK_BYTES, 2) for name in (GRID[1].name, "TLS")]
        return _rows([measured(bench, cell, number) for number, cell in enumerate(cells)])
    kept = Kept.read(KEPT)
    for number, cell in enumerate(kept.chosen(full=bool(os.environ.get(FULL_VARIABLE)))):
        bench.say(str(cell))
        try:
            kept.add(measured(bench, cell, number))
        except FileNotFoundError as error:
            bench.say(f"not tried: {error}")
        kept.write(KEPT)
    kept.full_since = None
    kept.write(KEPT)
    TABLE.write_text(table(kept.records.values()))
    return _rows(list(kept.records.values()))


# --- which cells ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    full_since: str | None = None
    records: list[Record] = field(default_factory=list)


@dataclass
class Kept:
    """What was measured so far."""

    records: dict[Cell, Record]
    full_since: str | None = None

    @classmethod
    def read(cls, path: Path) -> Kept:
        kept = msgspec.json.decode(path.read_bytes(), type=_File) if path.exists() else _File()
        known = {each.cell: each for each in kept.records if each.cell.world in WORLDS}
        return cls(known, kept.full_since)

    def write(self, path: Path) -> None:
        kept = _File(self.full_since, list(self.records.values()))
        path.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1))

    def add(self, record: Record) -> None:
        self.records[record.cell] = record

    def chosen(self, *, full: bool) -> list[Cell]:
        """Return the cells of this run, the one that was measured longest ago first."""
        known = [record for record in self.records.values() if record.cell.is_base]
        worst = sorted(known, key=lambda record: record.worst)[:WORST]
        cells = [Cell(name) for name in WORLDS]
        cells += [Cell(record.cell.world, *other) for record in worst for other in OTHERS]
        cells.sort(key=self._measured_at)
        if full:
            self.full_since = since = self.full_since or _now()
            return [cell for cell in cells if self._measured_at(cell) < since]
        rest = cells[IN_TURN:]
        return cells[:IN_TURN] + random.sample(rest, min(DRAWN, len(rest)))

    def _measured_at(self, cell: Cell) -> str:
        return self.records[cell].at if cell in self.records else ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- one cell -------------------------------------------------------------------------------------


def measured(bench: Bench, cell: Cell, number: int) -> Record:
    """Measure ours and the peers in a world.

    Raises:
        FileNotFoundError: What it takes is not on this machine.
    """
    bench = replace(bench, directory=bench.directory / f"cell-{number}")
    bench.directory.mkdir()
    try:
        drain = drained_beside(bench, WORLDS[cell.world], cell.size_bytes, cell.shards)
        fits = cell.size_bytes <= RESTORED_AT_MOST
        return Record(cell, _now(), drain, _restored_beside(bench, cell) if fits else None)
    finally:
        shutil.rmtree(bench.directory)


def drained_beside(bench: Bench, world: World, size_bytes: int, shards: int) -> Beside:
    """Measure drains beside the best peer's upload."""
    directory, each = Path(mkdtemp(dir=bench.directory)), size_bytes // shards
    source = raw.random_buffer(each)
    with opened(world, directory) as store:
        files = restoring.files(directory / "files", each, shards)

        def put(peer: Peer) -> Moved:
            store.remote.forget()
            store.take_shape()
            return peer.moved("put", files, store.endpoint)

        return _beside(
            bench,
            world,
            size_bytes,
            lambda number: drained(directory / f"cache-{number}", store, source, shards),
            put,
        )


def _restored_beside(bench: Bench, cell: Cell) -> Beside:
    directory, each = bench.directory / "restore", cell.size_bytes // cell.shards
    with opened(WORLDS[cell.world], directory) as store:
        store.remote.keep()
        restoring.publish(bench, store.endpoint, [each] * cell.shards, 1)
        files = restoring.files(directory / "files", each, cell.shards)
        Peer("boto3", 16).move("put", files, store.endpoint)
        store.take_shape()
        return _beside(
            bench,
            WORLDS[cell.world],
            cell.size_bytes,
            lambda number: restoring.restore(bench, store.endpoint, 1, each, cell.shards, number),
            lambda peer: peer.moved("get", files, store.endpoint),
        )


def _beside(
    bench: Bench,
    world: World,
    size_bytes: int,
    ours: Callable[[int], Moved],
    theirs: Callable[[Peer], Moved],
) -> Beside:
    """Find the best peer, and take runs in turns with it."""

    def cost(moved: Moved) -> float:
        return moved.seconds if world.is_limited else moved.cpu_seconds

    best = fastest(bench, theirs, _peers(bench), cost)
    pairs = [(ours(number), theirs(best)) for number in range(1 if bench.quick else RUNS)]
    ratio = statistics.median(cost(other) / cost(own) for own, other in pairs)
    own, other = (
        size_bytes / 1e6 / statistics.median(moved.seconds for moved in side)
        for side in zip(*pairs, strict=True)
    )
    bench.say(f"{ratio:.2f}: {own:.0f} MB/s, {best} {other:.0f} MB/s")
    return Beside(round(ratio, 3), round(own), str(best), round(other))


def _peers(bench: Bench) -> list[Peer]:
    if bench.quick:
        return [Peer("boto3", 8)]
    peers = [Peer("boto3", threads) for threads in (0, 64, 128, 256)]
    s5cmd = [Peer("s5cmd", threads) for threads in (0, 128)] if has("s5cmd") else []
    return [*peers, Peer("CRT client", 0), *s5cmd]


def drained(
    cache_dir: Path,
    store: Opened,
    source: memoryview,
    shards: int,
    settings: Mapping[str, str] | None = None,
) -> Moved:
    """Have a drain that has just started send a step that it has waited for."""
    store.be_quick()
    store.remote.forget()
    with (
        node(cache_dir, remote=store.endpoint, settings=settings) as service,
        Client(service.url) as client,
    ):
        put_held(client, RUN, 1, repeat(source, shards))
        settle()
        none_went_early(store.remote)
        store.take_shape()
        used = processes.Used([service.pid])
        seconds = seconds_until_durable(client, RUN, 1)
        moved = moved_by(service, used, seconds)
    shutil.rmtree(cache_dir)
    return moved


# --- what people see ------------------------------------------------------------------------------


def _rows(records: list[Record]) -> list[Result]:
    drains = {record.cell: record.drain for record in records}
    restores = {record.cell: record.restore for record in records if record.restore}
    return [
        _worst("drain", drains),
        _worst("cold restore", restores),
    ]


def _worst(what: str, found: dict[Cell, Beside]) -> Result:
    cell = min(found, key=lambda cell: found[cell].ratio)
    ratios = tuple(each.ratio for each in found.values())
    measure = f"{what} in the worst world measured (link/worlds.md) / the best peer there"
    worlds = {each.world for each in found}
    note = f"{cell}, beside {found[cell].peer}; {len(worlds)} of {len(WORLDS)} worlds measured"
    return Result(measure, min(ratios), "", BAR, ratios, note)


def table(records: Iterable[Record]) -> str:
    """Return a table of all cells, the worst first."""
    lines = [
        "# The drain and cold restores in each world, beside the best peer there",
        "",
        "Written by `make bench ONLY=link`. Ratios are theirs by ours: of seconds, and of",
        "processor seconds where only the processor is the limit. MB/s of ours, then the peer's.",
        "",
        "| world | moved | drain | MB/s | beside | restore | MB/s | beside | measured |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for record in sorted(records, key=lambda record: record.worst):
        cell, sides = record.cell, []
        for side in (record.drain, record.restore):
            speeds = f"{side.mb_per_second:.0f}, {side.peer_mb_per_second:.0f}" if side else ""
            sides += [f"{side.ratio:.2f} | {speeds} | {side.peer}" if side else " | | "]
        size = f"{cell.size_bytes / GIB:g} GiB in {cell.shards}"
        lines.append(f"| {cell.world} | {size} | {' | '.join(sides)} | {record.at[:10]} |")
    return "\n".join([*lines, ""])
