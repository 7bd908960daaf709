"""A node without doors for tests of the drain: a real store, and a drain on threads."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.stored import Content, ShardFacts, Stored
from cachetier_client.clock import Clock, SystemClock
from cachetier_client.identity.names import SaveIds
from cachetier_client.io import digests
from cachetier_client.results import Receipt

from cachetier.drain.channel import AskingEnd, DrainLink
from cachetier.drain.loop import DrainLoop, Signals
from cachetier.drain.messages import DrainOrders, Size
from cachetier.drain.pace.traffic import Traffic
from cachetier.drain.schedule.queue_state import EQUAL, QueueState, Weights
from cachetier.drain.schedule.tasks import Work
from cachetier.drain.serve.remote_state import RemoteState
from cachetier.drain.serve.service import DrainContext, DrainService
from cachetier.drain.serve.stats import DrainSnapshot, DrainStats
from cachetier.drain.serve.supervisor import Supervisor
from cachetier.drain.upload.stopwatch import Phases
from cachetier.ingest.ingest import NodeIngest
from cachetier.ingest.write_through import WriteThrough
from cachetier.local.catalog import notes, saves
from cachetier.local.catalog.rows import IncidentRecord, Summary
from cachetier.local.recovery import open_store
from cachetier.local.store import Staged, Store
from cachetier.model.backpressure import WhenFull
from cachetier.model.checkpoint import Save
from cachetier.model.compression import Rules
from cachetier.model.levels import Level
from cachetier.model.policy import DRAIN_ALL, Policy
from cachetier.model.shard import Shard
from cachetier.notifier import Changes
from cachetier.remote.base import ObjectStore
from cachetier.remote.bucket import Bucket
from cachetier.remote.settings import RemoteSettings
from cachetier.steps.incidents import Incidents
from cachetier.steps.operations import Checkpoints
from cachetier.steps.views import StepView
from tests.fakes.bodies import kept
from tests.fakes.waiting import waited

BLOCK = digests.BLOCK_BYTES
REMOTE = "durable"
# A drain on threads asks for none.
NO_ORDERS = DrainOrders(RemoteSettings(REMOTE, "none"), "", "", Size(), (), "")


def content_of(data: bytes) -> Content:
    blocks = tuple(digests.digest_of(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK))
    return Content(len(data), digests.combine(blocks, len(data)), blocks)


@kept
def patterned(size_bytes: int, seed: int = 0) -> bytes:
    """Return bytes of which no two blocks are equal."""
    word = b"".join((seed + number).to_bytes(8, "big") for number in range(1024))
    return b"".join(
        number.to_bytes(8, "big") + word[8:] for number in range(-(-size_bytes // 8192))
    )[:size_bytes]


def keys_of_saves(objects: ObjectStore, prefix: str = "") -> tuple[str, ...]:
    """Return every key but those of nodes: claims on store ids, and notes that go later."""
    of_nodes = ("/.cachetier/stores/", "/.cachetier/unflushed/")
    keys = objects.list(prefix).keys
    return tuple(key for key in keys if not any(each in key for each in of_nodes))


class Seen(DrainStats):
    """Keeps what the drain told, in order."""

    def __init__(self, remote: str, clock: Clock) -> None:
        super().__init__(remote, clock)
        self.drained_bytes = 0
        self.steps: list[int] = []
        self.damaged: list[str] = []
        self.codes: list[str] = []

    def drained(
        self, shard: Shard, stored: Stored, seconds: float, phases: Phases | None = None
    ) -> None:
        super().drained(shard, stored, seconds, phases)
        self.drained_bytes += shard.content.size_bytes

    def count_failure(self, work: Work, code: str, message: str) -> None:
        super().count_failure(work, code, message)
        self.codes.append(code)

    def quarantined(self, shard: Shard, reason: str, *, lost: bool) -> None:
        super().quarantined(shard, reason, lost=lost)
        if lost:
            self.damaged.append(shard.name)

    def published(self, save: Save, here: Summary, seconds: float | None, *, decides: bool) -> None:
        super().published(save, here, seconds, decides=decides)
        self.steps.append(save.step)


def as_shown(now: DrainSnapshot) -> dict[str, Any]:
    """Return what status shows of a drain and of its remote."""
    return {**now.as_json(), "remotes": [asdict(now.remote)]}


def shown(drain: Supervisor) -> dict[str, Any]:
    """Return what status shows of a drain to one remote."""
    return as_shown(drain.state())


class Probes:
    """Probes of a remote: when each ended, and how many requests there had been by then."""

    def __init__(self, probe: Callable[[], None], requests: Callable[[], int]) -> None:
        self._probe = probe
        self._requests = requests
        self.ended: list[tuple[float, int]] = []

    def __call__(self) -> None:
        try:
            self._probe()
        finally:
            self.ended.append((time.monotonic(), self._requests()))


class Node:
    """A store with everything around it that the drain needs."""

    def __init__(
        self,
        cache_dir: Path,
        objects: ObjectStore,
        *,
        capacity_bytes: int = 1 << 30,
        when_full: WhenFull = WhenFull.WAIT,
        clock: Clock | None = None,
        fraction: Callable[[], float] = random.random,
        policy: Policy = DRAIN_ALL,
        weights: Weights = EQUAL,
        packing: bool = False,
    ) -> None:
        self.cache_dir = cache_dir
        self.packing = packing
        cache_dir.mkdir(exist_ok=True)
        self.clock = clock or SystemClock()
        self.store: Store = open_store(cache_dir, capacity_bytes, self.clock, policy=policy).store
        self.changes = Changes(SystemClock())  # those who wait here wait in real time
        self.incidents = Incidents(self.store)
        self.bucket = Bucket(objects, Layout("ckpt"))
        self.probe: Callable[[], None] = objects.check  # a test may take one that does not retry
        self.queue = QueueState(self.clock, fraction, weights)
        self.stats = self.seen = Seen(REMOTE, self.clock)
        self.checkpoints = Checkpoints(
            self.store, self.bucket, self.changes, self.clock, hurry=self.hurry
        )
        self.through = WriteThrough(self.store, self.bucket, self.queue, self.clock, remote=REMOTE)
        self.ingest = NodeIngest(
            self.store,
            when_full=when_full,
            make_room=self.changes.ring,
            open_remote_stage=self.through.open,
            on_committed=self.changes.ring,
        )

    def watched_probes(self, requests: Callable[[], int]) -> Probes:
        """Watch the probes of the next drain; ``requests`` says how many requests there were."""
        self.probe = probes = Probes(self.probe, requests)
        return probes

    def wait_for_probes_alone(self, probes: Probes, least_seconds: float) -> None:
        """Assert that once no task is under way all requests are probes, so far from another."""
        self.wait_until(lambda: not self.queue.in_flight())
        first = len(probes.ended)
        self.wait_until(lambda: len(probes.ended) > first + 5)
        for (earlier_at, earlier), (at, count) in pairwise(probes.ended[first:]):
            assert count == earlier + 1
            assert at >= earlier_at + least_seconds

    @property
    def context(self) -> DrainContext:
        return DrainContext(
            self.store,
            self.queue,
            self.stats,
            self.changes,
            self.incidents,
            self.clock,
            RemoteState(self.store, REMOTE),
            self.packing,
        )

    def put(self, ids: SaveIds, name: str, data: bytes, element_size: int = 0) -> Receipt:
        facts = ShardFacts(element_size=element_size)
        if len(data) <= 65536:
            digest = digests.digest_of(data)
            return self.ingest.begin_inline(ids, name, data, digest, 5.0)()
        staged = self.ingest.begin(ids, name, len(data), 5.0)
        if not isinstance(staged, Staged):
            for at in range(0, len(data), BLOCK):
                staged.write(data[at : at + BLOCK])
            return self.ingest.commit(staged, ids, name, content_of(data), facts)
        assert staged.writer is not None
        with open(staged.writer, "wb", closefd=False) as file:
            file.write(data)
            file.truncate()
        staged.close_writer()
        return self.ingest.commit(staged, ids, name, content_of(data), facts)

    def seal(self, ids: SaveIds) -> None:
        self.checkpoints.seal(ids, None)

    def hurry(self, run: str | None, step: int | None) -> None:
        """Drain a step, a run, or (None) everything first, as the supervisor of a drain has it."""
        self.queue.hurry(run, step)
        self.changes.ring()

    def wait_durable(self, ids: SaveIds, timeout_seconds: float = 60.0) -> StepView:
        waited(self.checkpoints, ids.run, ids.step, None, Level.DURABLE, timeout_seconds)
        return self.checkpoints.step(ids.run, ids.step)[0]

    def wait_until(self, reached: Callable[[], bool], timeout_seconds: float = 60.0) -> None:
        """Wait for something that may ring no bell."""
        assert self.changes.wait_for(reached, timeout_seconds, 0.02), self.state()

    def wait_clean(self, ids: SaveIds, name: str, timeout_seconds: float = 60.0) -> None:
        waited(self.checkpoints, ids.run, ids.step, name, Level.DURABLE, timeout_seconds)

    def shard(self, ids: SaveIds, name: str) -> Shard | None:
        return self.store.read(lambda sql: saves.visible_shard(sql, ids.run, ids.step, name))

    def key(self, ids: SaveIds, name: str, location: str | None = None) -> str:
        return self.bucket.layout.shard_key(ids.run, location or str(ids.step), name)

    def state(self) -> dict[str, Any]:
        return as_shown(self.stats.snapshot(self.queue.in_flight()))

    def save(self, ids: SaveIds) -> Save:
        found = self.store.read(lambda sql: saves.saves_of(sql, ids.run, ids.step))
        return next(save for save in found if save.save_id == ids.save_id)

    def told(self) -> list[IncidentRecord]:
        return self.store.read(lambda sql: notes.incidents_after(sql, 0))

    @contextmanager
    def draining(
        self,
        size: Size = Size(uploads=4, parts=4),  # noqa: B008  frozen
        *,
        abruptly: bool = False,
        compression: str = "off",
        rules: Sequence[tuple[str, str]] = (),
    ) -> Iterator[DrainLoop]:
        """Drain on threads of this process; ``abruptly`` hangs up in the end, as a dying serve."""
        ours, theirs = socket.socketpair()
        service = DrainService(self.context, NO_ORDERS, Rules.parsed(compression, rules))
        link = DrainLink(ours, service, self.changes)
        link.start()
        channel, signals = AskingEnd(theirs), Signals()
        receiver = signals.listen(channel)
        drain = DrainLoop(
            channel.serve,
            self.bucket,
            self.store.store_id,
            self.clock,
            probe=self.probe,
            signals=signals,
            traffic=Traffic(size.uploads + size.parts, self.clock),
            size=size,
        )
        thread = threading.Thread(target=drain.run, name="drain")
        thread.start()
        try:
            yield drain
        finally:
            if not abruptly:
                signals.stop()
                thread.join()
            link.close()
            thread.join()
            channel.close()
            receiver.join()
            self.queue.forget_tasks()

    def close(self) -> None:
        self.store.close()
