"""The benchmark of a node: puts and gets through its service, beside its bare disk.

Both sides take turns, round by round, so that whatever else the machine does hits both. Shards are
put into the run ``.bench``, are never sealed, so none is published, and each round's go at its end.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachetier_client.units import shown_size

from cachetier.doctor import rawdisk
from cachetier.doctor.scratch import scratch
from cachetier.errors import CachetierError

if TYPE_CHECKING:
    from cachetier_client import Client

RUN = ".bench"
STEPS = 1 << 40  # of which each bench takes some of its own
SMALL_BYTES = 4096
ROOM_SHARE = 0.7  # of the capacity; above it the bench would drive others' shards out
SAVE_ID = "bench"


class NoRoomError(CachetierError):
    """The bench would drive out what others need."""

    code = "backpressure"
    hint = "Give a smaller --size, or wait until more has drained."


@dataclass(frozen=True, slots=True)
class NodeBenchOptions:
    """``ranks`` shards of ``size_bytes`` (whole pages) at once, so often; and small ones."""

    size_bytes: int = 256 << 20
    ranks: int = 1
    rounds: int = 3
    small: int = 200

    @property
    def room_bytes(self) -> int:
        return self.size_bytes * self.ranks


@dataclass(frozen=True, slots=True)
class Row:
    """One figure through the service, and the same of the bare disk; None where that is not ours.

    Args:
        unit: ``bytes_per_second``, where more is better, or ``seconds``, where less is.
    """

    what: str
    unit: str
    service: float
    disk: float | None

    @property
    def ratio(self) -> float | None:
        """The service's share of what the disk does: 1 is as good as the bare disk."""
        if not self.disk or not self.service:
            return None
        faster = self.service / self.disk
        return faster if self.unit == "bytes_per_second" else 1 / faster


@dataclass(slots=True)
class _Rounds:
    """The results of the rounds, by measurement."""

    service: dict[str, list[float]] = field(default_factory=dict)
    disk: dict[str, list[float]] = field(default_factory=dict)

    def row(self, what: str, unit: str) -> Row:
        disk = self.disk.get(what)
        return Row(
            what,
            unit,
            statistics.median(self.service[what]),
            statistics.median(disk) if disk else None,
        )


def room_for(status: dict[str, Any], plan: NodeBenchOptions) -> None:
    """Return if the plan fits in without driving others' shards out.

    Raises:
        NoRoomError: It does not; says how much there is.
    """
    free_bytes = int(status["capacity_bytes"] * ROOM_SHARE) - int(status["used_bytes"])
    if plan.room_bytes > free_bytes:
        raise NoRoomError(
            f"the cache has {shown_size(max(0, free_bytes))} to spare, "
            f"the bench needs {shown_size(plan.room_bytes)}"
        )


class NodeBench:
    """One node, by a client of its service; used by one thread, which starts others.

    Args:
        directory: The cache's, as seen from here; None where the bare disk is not to be measured.
    """

    def __init__(
        self,
        client: Client,
        plan: NodeBenchOptions,
        directory: Path | None,
        *,
        on_step: Callable[[str], object] = lambda _what: None,
    ) -> None:
        self._client = client
        self._plan = plan
        self._directory = directory
        self._on_step = on_step
        self._first_step = secrets.randbelow(STEPS) * 1000

    def run(self) -> list[Row]:
        """Measure everything in the plan; what it put is gone afterwards, whatever happens.

        Raises:
            NoRoomError: The cache is too full.
            CachetierClientError: What a put or get may raise.
            OSError: The bare disk fails.
        """
        room_for(self._client.status(), self._plan)
        rounds = _Rounds()
        with ExitStack() as stack:
            place = None
            if self._directory is not None:
                place = stack.enter_context(scratch(self._directory, ".bench-"))
            self._small(rounds, place)
            self._large(rounds, place)
        return [
            rounds.row("put 4 KiB, p50", "seconds"),
            rounds.row("put 4 KiB, p99", "seconds"),
            rounds.row("put", "bytes_per_second"),
            rounds.row("get", "bytes_per_second"),
        ]

    def _small(self, rounds: _Rounds, place: Path | None) -> None:
        self._on_step("small puts")
        body = bytes(rawdisk.random_memory(SMALL_BYTES))
        taken = []
        try:
            for number in range(self._plan.small):
                began = time.perf_counter()
                self._put(0, f"small-{number}", body)
                taken.append(time.perf_counter() - began)
        finally:
            self._delete(0)
        _note(rounds.service, rawdisk.Times.of(taken))
        if place is not None:
            _, synced = rawdisk.synced_writes(place, 60.0, self._plan.small)
            _note(rounds.disk, synced)

    def _large(self, rounds: _Rounds, place: Path | None) -> None:
        """Do each round both ways; the first touches memory and disk, and does not count."""
        shards = [rawdisk.random_memory(self._plan.size_bytes) for _ in range(self._plan.ranks)]
        into = [rawdisk.random_memory(self._plan.size_bytes) for _ in shards]
        for number in range(self._plan.rounds + 1):
            self._on_step(f"round {number} of {self._plan.rounds}")
            through = self._through_service(number + 1, shards, into)
            bare = _on_disk(place, shards, into) if place is not None else None
            if number:
                for what, seconds in through.items():
                    rounds.service.setdefault(what, []).append(self._plan.room_bytes / seconds)
                for what, seconds in (bare or {}).items():
                    rounds.disk.setdefault(what, []).append(self._plan.room_bytes / seconds)

    def _through_service(
        self, step: int, shards: list[memoryview], into: list[memoryview]
    ) -> dict[str, float]:
        """Put all shards at once and get them back; return the seconds of each."""
        try:
            put = _at_once(lambda at: self._put(step, f"large-{at}", shards[at]), len(shards))
            got = _at_once(
                lambda at: self._client.get_shard(
                    RUN, self._first_step + step, f"large-{at}", out=into[at]
                ),
                len(shards),
            )
        finally:
            self._delete(step)
        return {"put": put, "get": got}

    def _put(self, step: int, name: str, body: bytes | memoryview) -> None:
        # One rank of two: the step never becomes whole, so nobody publishes it.
        self._client.put_shard(
            body,
            run=RUN,
            step=self._first_step + step,
            name=name,
            rank=0,
            world_size=2,
            save_id=SAVE_ID,
        )

    def _delete(self, step: int) -> None:
        self._client.delete_step(RUN, self._first_step + step)


def _on_disk(place: Path, shards: list[memoryview], into: list[memoryview]) -> dict[str, float]:
    """Write and read files of the same sizes, as many at once; return the seconds of each."""
    paths = [place / f"large-{number}" for number in range(len(shards))]
    try:
        put = _at_once(lambda at: rawdisk.write_file(paths[at], shards[at]), len(shards))
        got = _at_once(lambda at: rawdisk.read_file(paths[at], into[at]), len(shards))
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
    return {"put": put, "get": got}


def _at_once(do: Callable[[int], object], count: int) -> float:
    """Do it ``count`` times at once; return the seconds until the last has ended."""
    began = time.perf_counter()
    with ThreadPoolExecutor(count) as threads:
        for _ in threads.map(do, range(count)):
            pass
    return time.perf_counter() - began


def _note(side: dict[str, list[float]], times: rawdisk.Times) -> None:
    side["put 4 KiB, p50"] = [times.p50_seconds]
    side["put 4 KiB, p99"] = [times.p99_seconds]
