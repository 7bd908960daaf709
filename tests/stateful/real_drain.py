"""The drain as it is, task by task in the caller's thread.

Scheduler, service, channel, worker, uploader, packs and publisher are those of the service; only
the process and its threads are left out, so that a life can be repeated step by step.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, cast

import pytest
from cachetier_client.clock import Clock, SystemClock
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.drain.channel import AskingEnd, ChannelClosedError, DrainLink
from cachetier.drain.messages import DrainOrders, Size
from cachetier.drain.object_worker import ObjectWorker, Stamps
from cachetier.drain.pace.remote_health import RemoteHealth
from cachetier.drain.publish import publisher
from cachetier.drain.publish.publisher import Publisher
from cachetier.drain.publish.store_claim import StoreClaimer
from cachetier.drain.schedule import object_order
from cachetier.drain.schedule.queue_state import QueueState
from cachetier.drain.schedule.tasks import Task
from cachetier.drain.serve.remote_state import RemoteState
from cachetier.drain.serve.service import DrainContext, DrainService
from cachetier.drain.serve.stats import DrainStats
from cachetier.drain.upload import uploader
from cachetier.drain.upload.buffers import Buffers
from cachetier.drain.upload.packs import PackSender
from cachetier.drain.upload.uploader import UploadContext, Uploader
from cachetier.drain.worker import Worker
from cachetier.local.store import Store
from cachetier.model.names import DURABLE
from cachetier.model.objects import Mount
from cachetier.notifier import Changes
from cachetier.remote.base import ObjectStore
from cachetier.remote.bucket import Bucket
from cachetier.remote.settings import RemoteSettings
from cachetier.remote.store_clock import StoreClock
from cachetier.steps.incidents import Incidents

REMOTE = DURABLE
SINGLE_PUT_BYTES = 1 << 20  # what is larger goes in parts of one block
ORDERS = DrainOrders(RemoteSettings(REMOTE, "none"), "", "", Size(), (), "")


@contextmanager
def _small_parts() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (uploader, publisher, object_order):
            patch.setattr(module, "SINGLE_PUT_BYTES", SINGLE_PUT_BYTES)
        yield


class InCaller(Executor):
    """Runs what is submitted at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class _Watched:
    """Calls ``service``, and tells of what ends a thread that answers."""

    def __init__(self, service: DrainService, ended: Callable[[BaseException], None]) -> None:
        self._service = service
        self._ended = ended

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answered(**arguments: Any) -> Any:
            try:
                return getattr(self._service, name)(**arguments)
            except Exception:
                raise
            except BaseException as error:
                self._ended(error)
                raise

        return answered


class RealDrain:
    """Makes shards clean, publishes steps, shows objects; begins its threads with the first task.

    ``mounts`` are those of the S3 door, whose buckets ``stores`` has. ``remote`` is what the
    catalog calls ``bucket``; small shards go to the durable one in packs.
    """

    def __init__(
        self,
        store: Store,
        bucket: Bucket,
        clock: Clock,
        mounts: Sequence[Mount] = (),
        stores: Mapping[str, ObjectStore] | None = None,
        store_clock: StoreClock | None = None,
        remote: str = REMOTE,
    ) -> None:
        self._remote = remote
        self._mounts = mounts
        self._stores = stores or {}
        self._store_clock = store_clock or StoreClock()
        self._store = store
        self._bucket = bucket
        self._clock = clock
        self.queue = QueueState(clock, lambda: 1.0)  # what failed is put off: nothing spins
        self._worker: Worker | None = None
        self._broken: BaseException | None = None
        self._channel: AskingEnd
        self._link: DrainLink
        self._listener: threading.Thread

    def next_task(self) -> Task | None:
        """Take the most urgent task off the queue; None when there is nothing to do now."""
        self._begin()
        if not self.queue.is_hurried():
            self.queue.hurry(None, None)  # or what is not sealed would wait
        with self._power_loss_told():
            handout = self._channel.serve.next_work(1)
        return handout.tasks[0] if handout.tasks else None

    def perform(self, task: Task) -> None:
        """Do a task, or put it off."""
        assert self._worker is not None
        with self._power_loss_told(), _small_parts():
            self._worker.perform(task)

    def drain_one(self) -> bool:
        """Do the most urgent task; return False when there is none."""
        task = self.next_task()
        if task is not None:
            self.perform(task)
        return task is not None

    def drain_all(self) -> None:
        """Go on until nothing is left that can be done now."""
        while self.drain_one():
            pass

    def close(self) -> None:
        """Hang up; the next task begins again."""
        if self._worker is not None:
            self._channel.close()
            self._link.close()
            self._listener.join()
            self._worker = None

    @contextmanager
    def _power_loss_told(self) -> Iterator[None]:
        """Raise here what ended a thread that answers."""
        try:
            yield
        except ChannelClosedError:
            if self._broken is None:
                raise
            self.close()
            raise self._broken from None

    def _begin(self) -> None:
        if self._worker is not None:
            return
        ours, theirs = socket.socketpair()
        changes = Changes(SystemClock())
        watched = cast("DrainService", _Watched(self._service(changes), self._power_lost))
        self._link = DrainLink(ours, watched, changes)
        self._link.start()
        self._channel = AskingEnd(theirs)
        listen, nothing = self._channel.listen, lambda: None
        self._listener = threading.Thread(target=listen, args=(nothing,), daemon=True)
        self._listener.start()
        self._worker = self._make_worker(self._channel.serve)

    def _power_lost(self, error: BaseException) -> None:
        self._broken = error
        self._channel.close()

    def _service(self, changes: Changes) -> DrainService:
        context = DrainContext(
            self._store,
            self.queue,
            DrainStats(self._remote, self._clock),
            changes,
            Incidents(self._store),
            self._clock,
            RemoteState(self._store, self._remote),
            packing=self._remote == REMOTE,
            mounts={mount.run: mount for mount in self._mounts},
            store_clock=self._store_clock,
        )
        return DrainService(context, ORDERS)

    def _make_worker(self, serve: DrainService) -> Worker:
        claim, buffers = StoreClaimer(serve, self._bucket, self._store.store_id), Buffers()
        stamps = Stamps(self._store.store_id, self._store_clock, self._clock.now)
        context = UploadContext(
            self._bucket.objects,
            buffers,
            InCaller(),
            usual_part_bytes=lambda: BLOCK_BYTES,
        )
        return Worker(
            serve,
            self._bucket.layout,
            Publisher(self._bucket, self._clock, confirm=claim.confirm),
            Uploader(context),
            RemoteHealth(lambda: None, lambda _health: None, self._clock),
            claim,
            packs=PackSender(serve, context, self._bucket.layout, claim.identity),
            objects=ObjectWorker(serve, self._stores.__getitem__, context, stamps=stamps),
        )
