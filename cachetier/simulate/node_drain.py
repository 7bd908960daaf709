"""The drain of one node: the real queue, scheduler, worker and publisher, on simulated time.

``serve`` and drain process are one here: what the worker asks is answered at once. What a real one
does on threads a strand does, and so many of them at a time.
"""

from __future__ import annotations

import random
from collections import deque
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.stored import Stored

from cachetier.drain.loop import IDLE_SECONDS
from cachetier.drain.messages import DrainOrders, LocalShard, Size
from cachetier.drain.pace.remote_health import Health, RemoteHealth
from cachetier.drain.pace.traffic import Traffic
from cachetier.drain.publish.publisher import Publisher
from cachetier.drain.publish.store_claim import StoreClaimer
from cachetier.drain.schedule import scheduler
from cachetier.drain.schedule.queue_state import QueueState, Weights
from cachetier.drain.schedule.tasks import Task, Work, task_of
from cachetier.drain.serve.remote_state import RemoteState
from cachetier.drain.serve.service import DrainContext, DrainService
from cachetier.drain.serve.snapshot import unfinished
from cachetier.drain.serve.stats import DrainStats
from cachetier.drain.upload.target import UploadTarget
from cachetier.drain.upload.uploader import Uploader
from cachetier.drain.worker import Worker
from cachetier.errors import NotFoundError, TransientError
from cachetier.local.catalog import notes, shards, uploads
from cachetier.local.catalog.notes import OwnClaim
from cachetier.local.store import Store as LocalStore
from cachetier.model.bandwidth import Bandwidth
from cachetier.model.checkpoint import claimant_of
from cachetier.notifier import Changes
from cachetier.remote.base import ObjectStore
from cachetier.remote.bucket import InBatches
from cachetier.simulate.bucket import NodeObjectStore, ReadOnceBucket, SimulatedObjects
from cachetier.simulate.events import Alarm, Events
from cachetier.simulate.link import SimulatedLink
from cachetier.simulate.requests import SimulatedPlace, SimulatedRequests
from cachetier.simulate.saves import Saves
from cachetier.simulate.store import SimulatedStore
from cachetier.simulate.strands import Strands
from cachetier.steps.incidents import Incidents

IDENTITY = "simulated"
SIZE = Size()


@dataclass(frozen=True, slots=True)
class World:
    """The things that all nodes share."""

    events: Events
    strands: Strands
    store: SimulatedStore
    objects: SimulatedObjects


@dataclass(frozen=True, slots=True)
class DrainSetup:
    """How a node drains."""

    place: SimulatedPlace
    layout: Layout
    bandwidth: Bandwidth
    weights: Weights


class NodeDrain:
    """Drains what ``saves`` owe the remote, until the node is ``lost``."""

    def __init__(
        self, world: World, setup: DrainSetup, saves: Saves, chance: random.Random
    ) -> None:
        self.lost = False
        self.wants_room = False
        self.changed = Changes(world.events)
        self._events, self._strands, self._store = world.events, world.strands, world.store
        self._saves = saves
        self._remote_state = cast("RemoteState", saves)
        place = setup.place
        self._link = SimulatedLink(world.events, place.each_connection, place.link)
        self._traffic = Traffic(
            SIZE.uploads + SIZE.parts, world.events, setup.bandwidth, SIZE.parts, self._link.moved
        )
        self.requests = SimulatedRequests(
            world.events, world.store, chance, place, self._traffic.pace, self._link
        )
        store = NodeObjectStore(world.objects, self.requests, setup.layout.prefix, self._traffic)
        bucket = ReadOnceBucket(cast("ObjectStore", store), setup.layout, world.objects.parsed)
        self._health = RemoteHealth(self._probe, self._heard, world.events)
        self.queue = QueueState(world.events, chance.random, setup.weights)
        publisher = Publisher(
            bucket,
            world.events,
            each=InBatches(cast("Executor", world.strands)),
            nonce=lambda: f"{chance.getrandbits(64):x}",
        )
        self._worker = Worker(
            _Service(self, saves, world.events),
            setup.layout,
            publisher,
            cast("Uploader", _Uploads(store)),
            self._health,
            cast("StoreClaimer", _Claimed()),
        )
        self._tasks: deque[Task] = deque()
        self._outstanding = self._working = 0
        self._alarm = Alarm(world.events, self._look)

    def moved(self) -> float:
        """Return how many bytes of shards have gone to the store so far."""
        return self._link.moved()

    def poke(self) -> None:
        """Look what there is to do now."""
        self._alarm.set(0.0)

    # --- the loop --------------------------------------------------------------------------------

    def _look(self) -> None:
        if self.lost:
            return
        self._health.probe()
        room = self._room()
        wait_seconds = self._fetch(room) if room > 0 else IDLE_SECONDS
        self._alarm.set(
            self._health.seconds_until_probe() if self._health.is_away else wait_seconds
        )
        while self._tasks and self._working < SIZE.uploads:
            self._working += 1
            self._strands.begin(partial(self._work, self._tasks.popleft()))

    def _room(self) -> int:
        if self._outstanding > SIZE.uploads:
            return 0
        return min(2 * SIZE.uploads, self._health.allowed) - self._outstanding

    def _fetch(self, count: int) -> float:
        """Take tasks; return after how many seconds to look again."""
        situation = self.queue.situation(wants_room=self.wants_room)
        views = unfinished(
            cast("LocalStore", self),
            self._remote_state,
            self.queue.blocked(),
            lambda *_: None,
            count,
        )
        plan = scheduler.plan(views, situation, count)
        self.queue.handed_out(plan.fairness)
        tasks = [task for work in plan.work if (task := self._task(work)) is not None]
        self._tasks.extend(tasks)
        self._outstanding = self._working + len(self._tasks)
        if count:  # who asks for none does not hear what waits
            size_bytes = sum(task.size_bytes for task in tasks)
            self._traffic.handed_out(size_bytes, all_of_it=len(tasks) < count)
        self._traffic.hurried = self.wants_room or self.queue.is_hurried()
        due_in_seconds = plan.due_in_seconds
        return IDLE_SECONDS if due_in_seconds is None else min(IDLE_SECONDS, due_in_seconds)

    def _task(self, work: Work) -> Task | None:
        number = self.queue.take(work)
        claimant = claimant_of(work.save, self._saves.of_step(work.save.run, work.save.step))
        return task_of(number, work, claimant) if number is not None else None

    def _work(self, task: Task) -> None:
        if self._health.is_away:
            self._worker.hand_back(task)
        else:
            self._worker.perform(task)
        self._working -= 1
        self._outstanding -= 1
        self._traffic.ended(task.size_bytes)
        self.poke()

    # --- how the remote is -----------------------------------------------------------------------

    def _probe(self) -> None:
        if self._store.is_away():
            self.requests.knocked_at.append(self._events.seconds)
            raise TransientError("the store is away")

    def _heard(self, health: Health) -> None:
        if health.retry:
            self.queue.forgive_all()
        self.poke()

    # --- what the real service asks --------------------------------------------------------------

    def read(self, query: object, *args: Any) -> Any:
        """Answer for the catalog; only what the real code asks it beside ``RemoteState``."""
        if query is notes.own_claim:
            return OwnClaim("", (), 0)
        if query is shards.stored_shards_of_rank:
            number, rank, _, after, limit = args
            return self._saves.of_rank(number, rank, after, limit)
        assert query in (shards.unsound_ranks, shards.summary_of, uploads.names_of_save), query
        return frozenset()

    def drop(self, _shards: object) -> None:
        """Drop nothing: what may go goes when room is made."""


class _Service(DrainService):
    """The real service over simulated saves: no file is opened, no upload and no claim recorded."""

    def __init__(self, node: NodeDrain, saves: Saves, clock: Events) -> None:
        context = DrainContext(
            store=cast("LocalStore", node),
            queue=node.queue,
            stats=cast("DrainStats", _Silent()),
            changes=node.changed,
            incidents=cast("Incidents", _Silent()),
            clock=clock,
            remote_state=cast("RemoteState", saves),
        )
        super().__init__(context, cast("DrainOrders", None))
        self._node = node
        self._saves = saves
        self._attempts: dict[int, int] = {}

    def _count_attempt(self, work: Work) -> int | None:
        if work.shard is None:
            return None
        version = work.shard.version
        attempt = self._attempts[version] = self._attempts.get(version, 0) + 1
        return attempt

    def open_shard(self, version: int) -> LocalShard:
        shard = self._saves.shard(version)
        if shard is None or not self._saves.wants(shard):
            raise NotFoundError(f"shard version {version} is not wanted any more")
        return LocalShard(b"", (), None)

    def shard_verified(
        self, version: int, stored: Stored, _seconds: float, _phases: object
    ) -> None:
        if not self._node.lost:
            self._saves.verified(version, self._clock.now(), stored)
            self._context.changes.ring()

    def shards_lost(self, versions: tuple[int, ...]) -> None:
        self._saves.lost(versions)


class _Uploads:
    """Stands for ``Uploader``: no bytes are read."""

    def __init__(self, store: NodeObjectStore) -> None:
        self._store = store

    def upload(self, target: UploadTarget, *_: object) -> Stored:
        return self._store.upload(target)

    def clear_away(self, *_: object) -> None:
        """Leave what was sent of a shard that is not wanted any more."""


class _Claimed:
    """Stands for ``StoreClaimer``: no directory is copied, and none goes back in time."""

    def identity(self) -> str:
        return IDENTITY

    def forget(self) -> None:
        """Keep it."""


class _Silent:
    """Stands for what only counts and tells."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_kwargs: None
