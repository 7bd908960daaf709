"""The benchmark of a remote: latency, throughput by streams and part size, throttling.

It goes through our own store, each call made once, so it sees what a drain would see before any
retry. Everything lies in a folder of its own and is removed; every byte that is read is verified.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from cachetier_client.bucket_format.uploads import UploadedPart
from cachetier_client.io.digests import digest_of, joined

from cachetier.doctor.probe import TIMEOUTS, Probe
from cachetier.doctor.rawdisk import Times
from cachetier.errors import RemoteDigestError, ThrottledError, TransientError
from cachetier.remote.base import ObjectStore
from cachetier.remote.factory import open_store
from cachetier.remote.settings import RemoteSettings
from cachetier.remote.stall_guard import Timeouts

SMALL_BYTES = 4096
MEBIBYTE = 1 << 20
STREAMS = (1, 2, 4, 8, 16, 32, 64)
PART_BYTES = 16 * MEBIBYTE
OTHER_PART_BYTES = (8 * MEBIBYTE, 32 * MEBIBYTE)
SMALL_SHARE, RATE_SHARE = 0.15, 0.1  # of the time; the rest goes to throughput
PUT_SHARE = 0.6  # of a throughput's time
MOST_SMALL = 300
MOST_FAILURES = 3
WAIT_SECONDS = 0.1  # after a refused request that names no time


@dataclass(frozen=True, slots=True)
class RemoteBenchOptions:
    """How much to do: for ``seconds`` in all, at most ``size_bytes`` written, up to ``streams``."""

    seconds: float = 60.0
    size_bytes: int = 4 << 30
    streams: int = 16

    @property
    def cells(self) -> list[tuple[int, int]]:
        """(streams, part_bytes) of each throughput to measure, the other part sizes last."""
        up_to = [number for number in STREAMS if number < self.streams] + [self.streams]
        most = min(8, self.streams)
        return [(number, PART_BYTES) for number in up_to] + [
            (most, part_bytes) for part_bytes in OTHER_PART_BYTES
        ]


@dataclass(frozen=True, slots=True)
class RequestRate:
    """How many small puts a second get through from so many streams, and how many were refused."""

    streams: int
    per_second: float
    throttled: int


@dataclass(frozen=True, slots=True)
class MeasuredThroughput:
    """The throughput of ``streams`` streams of such parts, each way."""

    streams: int
    part_bytes: int
    put_bytes_per_second: float
    get_bytes_per_second: float
    throttled: int
    failed: int


@dataclass(slots=True)
class Measured:
    """All of it; ``latencies`` by the kind of small request, one at a time."""

    latencies: dict[str, Times] = field(default_factory=dict)
    rate: RequestRate | None = None
    throughputs: list[MeasuredThroughput] = field(default_factory=list)


@dataclass(slots=True)
class _Tally:
    """The tally of the streams of one measurement."""

    moved_bytes: int = 0
    requests: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def bytes_per_second(self) -> float:
        return self.moved_bytes / self.seconds if self.seconds else 0.0


class ObjectBench:
    """One remote; used by one thread, which starts others.

    Raises:
        RemoteError: The remote refuses, or fails again and again.
        RemoteDigestError: What was read is not what was put.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        plan: RemoteBenchOptions,
        *,
        on_step: Callable[[str], object] = lambda _what: None,
        store: ObjectStore | None = None,
    ) -> None:
        """Prepare; ``store`` stands in for the one of the settings in tests."""
        self._plan = plan
        self._on_step = on_step
        self._probe = Probe(settings, "objbench")
        self._store = store or open_store(settings, timeouts=Timeouts(*TIMEOUTS))
        self._pool = memoryview(os.urandom(max(OTHER_PART_BYTES) + MEBIBYTE))
        self.left_behind: list[str] = []

    def run(self) -> Measured:
        """Measure everything in the plan, and clean up."""
        measured = Measured()
        try:
            self._probe.inquiry.look(self._probe.settings.prefix)
            self._small(measured)
            self._rate(measured)
            self._large(measured)
        finally:
            self.left_behind = self._probe.clean()
        return measured

    # --- small -----------------------------------------------------------------------------------

    def _small(self, measured: Measured) -> None:
        self._on_step("small requests")
        seconds = self._plan.seconds * SMALL_SHARE / 4
        body = bytes(self._pool[:SMALL_BYTES])
        digest = digest_of(body)
        keys = [self._probe.key(f"small-{number}") for number in range(MOST_SMALL)]

        def get(key: str) -> None:
            if self._store.get(key) != body:
                raise RemoteDigestError(f"{key}: the store returns other bytes", key=key)

        self._store.put(keys[0], body, digest=digest)  # opens the connection
        put = _timed(lambda key: self._store.put(key, body, digest=digest), keys, seconds)
        keys = keys[: put.count]
        measured.latencies |= {
            "PUT": put,
            "HEAD": _timed(self._store.head, keys, seconds),
            "GET": _timed(get, keys, seconds),
            "DELETE": _timed(self._store.delete, keys, seconds),
        }

    def _rate(self, measured: Measured) -> None:
        """Put small objects from all streams, over a few keys again and again."""
        self._on_step("requests a second")
        body = bytes(self._pool[:SMALL_BYTES])
        digest = digest_of(body)

        def put(number: int) -> int:
            self._store.put(self._probe.key(f"rate-{number % 64}"), body, digest=digest)
            return len(body)

        streams = self._plan.streams
        tally = self._in_streams(streams, self._plan.seconds * RATE_SHARE, 1 << 30, put)
        throttled = tally.outcomes[ThrottledError.code]
        per_second = tally.requests / tally.seconds if tally.seconds else 0.0
        measured.rate = RequestRate(streams, per_second, throttled)

    # --- large -----------------------------------------------------------------------------------

    def _large(self, measured: Measured) -> None:
        cells = self._plan.cells
        seconds = self._plan.seconds * (1 - SMALL_SHARE - RATE_SHARE) / len(cells)
        room_bytes = self._plan.size_bytes // len(cells)
        for number, (streams, part_bytes) in enumerate(cells):
            self._on_step(f"{streams} streams of {part_bytes // MEBIBYTE} MiB")
            with self._uploaded(streams, part_bytes, (seconds, room_bytes)) as (key, put, parts):
                if number == 0 and parts:
                    measured.latencies["first byte"] = _timed(
                        lambda key: self._store.get(key, 0, 1), [key] * 20, seconds * 0.1
                    )
                got = self._read_back(streams, key, parts, seconds * (1 - PUT_SHARE))
            both = put.outcomes + got.outcomes
            throttled = both.pop(ThrottledError.code, 0)
            measured.throughputs.append(
                MeasuredThroughput(
                    streams,
                    part_bytes,
                    put.bytes_per_second,
                    got.bytes_per_second,
                    throttled,
                    both.total(),
                )
            )

    @contextmanager
    def _uploaded(
        self, streams: int, part_bytes: int, bounds: tuple[float, int]
    ) -> Iterator[tuple[str, _Tally, list[UploadedPart]]]:
        """Upload parts for a while as one object, lend it, and delete it."""
        seconds, room_bytes = bounds
        key, upload_id = self._probe.upload(f"large-{streams}-{part_bytes}", self._store)
        parts: list[UploadedPart] = []

        def put(number: int) -> int:
            body = self._body(number, part_bytes)
            part = self._store.upload_part(key, upload_id, number + 1, body, digest=digest_of(body))
            parts.append(part)
            return part_bytes

        most = max(streams, room_bytes // part_bytes)
        tally = self._in_streams(streams, seconds * PUT_SHARE, most, put)
        parts.sort(key=lambda part: part.number)
        if parts:
            whole = joined((part.digest, part.size_bytes) for part in parts)
            self._store.complete_upload(key, upload_id, parts, digest=whole)
            self._probe.ended(upload_id)
        yield key, tally, parts
        self._store.delete(key)

    def _read_back(
        self, streams: int, key: str, parts: Sequence[UploadedPart], seconds: float
    ) -> _Tally:
        """Read parts at random, and verify each."""
        if not parts:
            return _Tally()
        starts = [0]
        for part in parts:
            starts.append(starts[-1] + part.size_bytes)
        own = threading.local()

        def get(_number: int) -> int:
            if not hasattr(own, "memory"):
                own.memory = memoryview(bytearray(parts[0].size_bytes))
            at = random.randrange(len(parts))
            view = own.memory[: parts[at].size_bytes]
            self._store.read_into(key, starts[at], view)
            if digest_of(view) != parts[at].digest:
                raise RemoteDigestError(f"{key}: the store returns other bytes", key=key)
            return parts[at].size_bytes

        return self._in_streams(streams, seconds, 1 << 30, get)

    def _body(self, number: int, part_bytes: int) -> memoryview:
        """Return other bytes for each of the first thousands of parts, so that none is shared."""
        start = number * 251 % MEBIBYTE
        return self._pool[start : start + part_bytes]

    # --- streams ---------------------------------------------------------------------------------

    def _in_streams(
        self, streams: int, seconds: float, most: int, move: Callable[[int], int]
    ) -> _Tally:
        """Call ``move`` with 0, 1, 2... from so many threads until the time or ``most`` is up.

        Throttled and transient calls are counted and passed over; what the remote refuses, and
        what fails again and again, ends it.
        """
        stream = _BenchStream(move, most, time.perf_counter() + seconds)
        began = time.perf_counter()
        with ThreadPoolExecutor(streams) as threads:
            try:
                for _ in threads.map(lambda _index: stream.run(), range(streams)):
                    pass
            except BaseException:
                stream.cut.set()  # a signal caught us here, and the threads are waited for
                raise
        stream.tally.seconds = time.perf_counter() - began
        return stream.tally


class _BenchStream:
    """A workload that several threads share: take a number, move it, note how it went."""

    def __init__(self, move: Callable[[int], int], most: int, ends_at: float) -> None:
        self.tally = _Tally()
        self.cut = threading.Event()
        self._move = move
        self._numbers = iter(range(most))
        self._ends_at = ends_at
        self._lock = threading.Lock()

    def run(self) -> None:
        """Move until the time is up, once at least; cuts the others off when it fails."""
        try:
            failures, moved_any = 0, False
            while not self.cut.is_set() and self._has_time(moved_any, failures):
                with self._lock:
                    number = next(self._numbers, None)
                if number is None:
                    return
                if self._moved(number):
                    moved_any = True
                else:
                    failures += 1
        except BaseException:
            self.cut.set()
            raise

    def _has_time(self, moved_any: bool, failures: int) -> bool:
        if time.perf_counter() < self._ends_at:
            return True
        return not moved_any and failures <= MOST_FAILURES

    def _moved(self, number: int) -> bool:
        try:
            moved_bytes = self._move(number)
        except (ThrottledError, TransientError) as error:
            with self._lock:
                self.tally.outcomes[error.code] += 1
                failed = self.tally.outcomes.total() - self.tally.outcomes[ThrottledError.code]
            if failed > MOST_FAILURES + self.tally.requests:
                raise
            self.cut.wait(error.retry_after_seconds or WAIT_SECONDS)
            return False
        with self._lock:
            self.tally.moved_bytes += moved_bytes
            self.tally.requests += 1
        return True


def _timed(call: Callable[[str], object], keys: Sequence[str], seconds: float) -> Times:
    """Time ``call`` of each key in turn, for so long; once at least."""
    taken: list[float] = []
    ends_at = time.perf_counter() + seconds
    for key in keys:
        began = time.perf_counter()
        with contextlib.suppress(ThrottledError):  # counted where it is looked for
            call(key)
        taken.append(time.perf_counter() - began)
        if time.perf_counter() > ends_at:
            break
    return Times.of(taken)


ENOUGH_SHARE = 0.9  # more streams are not worth what they take from everybody else
GROWTH = 1.1
WORKERS_LIMIT = 64
BELOW_THROTTLING = 0.8
_ROUND_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Advice:
    """Settings to write down.

    Args:
        drain_workers: The fewest streams that reach nine tenths of the best throughput.
        max_rate: Four fifths of what passed without throttling, as the setting has it; empty
            where nothing was throttled.
        remarks: What a person should know of them.
    """

    drain_workers: int
    max_rate: str
    remarks: tuple[str, ...]


def advice_for(measured: Sequence[MeasuredThroughput]) -> Advice:
    """Return what to set, from at least one throughput with parts of the usual size."""
    usual = sorted(
        (each for each in measured if each.part_bytes == PART_BYTES), key=lambda each: each.streams
    )
    calm = [each for each in usual if not each.throttled] or usual[:1]
    best = max(each.put_bytes_per_second for each in calm)
    enough = next(each for each in calm if each.put_bytes_per_second >= ENOUGH_SHARE * best)
    remarks, max_rate = [], ""
    if throttled := [each.streams for each in usual if each.throttled]:
        rate = max(1, int(best * BELOW_THROTTLING) // _ROUND_BYTES)
        max_rate = f"{rate} MB/s"
        remarks.append(
            f"the store throttles from {min(throttled)} streams; the drain adapts by itself; "
            "max_rate avoids the search, and throttling of others"
        )
    elif _still_grows(usual):
        remarks.append(
            f"{usual[-1].streams} streams were still faster than fewer: try --streams "
            f"{min(WORKERS_LIMIT, 2 * usual[-1].streams)}"
        )
    if failed := sum(each.failed for each in measured):
        remarks.append(f"{failed} requests failed: the figures are those of a store in trouble")
    return Advice(min(WORKERS_LIMIT, enough.streams), max_rate, tuple(remarks))


def _still_grows(usual: Sequence[MeasuredThroughput]) -> bool:
    """Whether the most streams were clearly faster than any fewer."""
    if len(usual) < 2 or usual[-1].streams >= WORKERS_LIMIT:
        return False
    fewer = max(each.put_bytes_per_second for each in usual[:-1])
    return usual[-1].put_bytes_per_second > GROWTH * fewer
