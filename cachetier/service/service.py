"""The composition root: build the node, start it, watch it, stop it in order.

Start-up is recovery, so a clean stop only saves time: it lets what is in flight end within the
grace time, and loses nothing if it cannot.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from cachetier_client.clock import Clock, Countdown, SystemClock

from cachetier import __version__
from cachetier.access.audit import Audit
from cachetier.carriers.process import Nursery
from cachetier.config.settings import CLEAR_TEXT, Settings
from cachetier.console.cluster import Cluster
from cachetier.doors.operations import Operations, Steering
from cachetier.doors.unix.door import UnixDoor
from cachetier.drain.serve.drains import Drains
from cachetier.ingest.admission import Admission
from cachetier.ingest.ingest import Ingest, NodeIngest, OpenRemoteStage
from cachetier.ingest.instrumented import InstrumentedIngest
from cachetier.ingest.pending_seals import PendingSeals
from cachetier.ingest.shares import SharedIngest, Shares
from cachetier.ingest.write_back import WriteBack
from cachetier.ingest.write_through import WriteThrough
from cachetier.local.catalog import connection
from cachetier.local.catalog.connection import sqlite_version
from cachetier.local.files import data_files
from cachetier.local.files.filesystem import checked_mount
from cachetier.local.recovery import Recovered, open_store
from cachetier.local.store import Store
from cachetier.model.backpressure import WhenFull
from cachetier.model.keep import stays
from cachetier.model.names import DURABLE, STORE_ID_NAME
from cachetier.model.objects import is_mount
from cachetier.model.shard import Shard
from cachetier.notifier import Changes
from cachetier.objects.settling import Settling
from cachetier.reclaim.evict import Evictor, Watermarks
from cachetier.reclaim.gc import Garbage
from cachetier.reclaim.loop import Housekeeping
from cachetier.reclaim.prune import prune_catalog
from cachetier.reclaim.retention import Retention
from cachetier.remote.answers import Answers
from cachetier.remote.bucket import Bucket, Remote
from cachetier.remote.factory import open_remote
from cachetier.remote.mounted import MountBuckets
from cachetier.remote.neighbours.store import NeighbourServer
from cachetier.remote.scheme import scheme_of
from cachetier.remote.settings import RemoteSettings
from cachetier.remote.store_clock import StoreClock
from cachetier.restore.fill import Room
from cachetier.restore.knowledge import Knowledge
from cachetier.restore.mounted import MountedObjects
from cachetier.restore.replica_choice import PassedOverCopies, Replicas
from cachetier.restore.restore import Restore
from cachetier.service.objects import ask_time_of, objects_of, ordering_of, unmounted_warnings
from cachetier.service.peers import peers_of
from cachetier.service.signals import ending_signals
from cachetier.service.wiring import (
    knowledge_of,
    locked,
    memory_of,
    mount_opener,
    open_drains,
    opener_of,
    refuse_own_door,
    remotes_of,
    restore_listener,
    restore_pace,
    s3_offer,
    tls_of,
    who_may,
)
from cachetier.status.prometheus import points_of_catalog, points_of_service
from cachetier.status.report import Addresses, Door, NodeReport
from cachetier.status.warnings import Machine
from cachetier.steps.incidents import Incidents
from cachetier.steps.leaving import Course, Leaving
from cachetier.steps.operations import Checkpoints, Replication
from cachetier.steps.unflushed import UnflushedNotes
from cachetier.steps.waits import Waits
from cachetier.steps.whole_steps import WholeSteps
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell
from cachetier.telemetry.metrics import Metrics
from cachetier.telemetry.recent_events import RecentEvents
from cachetier.telemetry.tracing import open_tracing

if TYPE_CHECKING:
    from cachetier.doors.http.door import HttpDoor
    from cachetier.doors.http.server import HttpServer
    from cachetier.doors.s3.door import S3Door

log = logging.getLogger(__name__)

MEND_SECONDS = 60.0
ROUND_SECONDS = 0.5  # for the rest of what is under way at a stop


class Service:
    """One node's service. ``start``, then ``run`` or ``stop``."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        bucket: Bucket | None = None,
        open_drain: Callable[[Store, Changes, Incidents, Metrics], Drains] | None = None,
        nursery: Nursery | None = None,
    ) -> None:
        """Prepare a service; ``bucket`` and ``open_drain`` stand in for the real ones in tests.

        ``nursery`` forks the processes that restores come through.
        """
        self._settings = settings
        self._clock = clock or SystemClock()
        self._remote, *self._replica_settings = remotes_of(settings)
        self._store_clock = StoreClock()
        names = [DURABLE, *(each.name for each in self._replica_settings)]
        self._answers = {name: Answers(self._clock.now) for name in names}
        self._server = scheme_of(self._remote).server(self._remote, self._store_clock)
        self._open_remote = opener_of(settings, self._remote, nursery)
        self._opened = bucket or self._open_remote(self._remote, server=self._server)
        self._bucket = self._answers[DURABLE].of(self._opened)
        refuse_own_door(settings, (self._remote, *self._replica_settings))
        self._neighbours = NeighbourServer(found) if (found := settings.neighbours) else None
        self._replicas = [
            Remote(each.name, self._answers[each.name].of(self._opened_replica(each)))
            for each in self._replica_settings
        ]
        self._open_drain = open_drain or self._supervisor
        self._changes = Changes(self._clock)
        self._waits = Waits(self._changes, self._clock)
        self._events = RecentEvents()
        self._course = Course()
        self.metrics = Metrics(
            {
                "service": lambda: points_of_service(self.report.service()),
                "catalog": lambda: points_of_catalog(self.report.node()),
            },
            names,
            version=__version__,
        )
        self.health_url: str | None = None
        self._grace = Countdown(settings.grace, self._clock)
        self._closing = ExitStack()

    def _opened_replica(self, remote: RemoteSettings) -> Bucket:
        if remote.neighbours is None:
            return self._open_remote(remote)
        return open_remote(remote, server=self._neighbours)

    # --- start -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover the cache directory and open the doors.

        Raises:
            ConfigError: The directory, the socket or the address cannot be used.
            DirectoryInUseError: Another service has the directory.
            CatalogDamagedError: The catalog may have lost acknowledged shards; a person decides.
        """
        with ExitStack() as undo:
            undo.callback(self._events.listen())
            self._open_store(undo)
            self._audit = Audit(self._settings.audit, now=self._clock.now)
            undo.callback(self._audit.close)
            self._build()
            self._drain.start()
            undo.callback(lambda: self._drain.stop(self._grace.left()))
            for each in (
                *(self._pending_seals, self._housekeeping, self._ordering, self._notes),
                self._write_back,
            ):
                each.start()
                undo.callback(each.stop, ROUND_SECONDS)
            self.store.open_files.start()
            self._waits.start()
            undo.callback(self._waits.stop)
            self._open_doors(undo)
            self._closing = undo.pop_all()
        self._tell_ready()
        if self.objects.mounts:  # a client takes a while to make, for which no start waits
            ask_time_of(self._bucket.objects)

    def _open_store(self, undo: ExitStack) -> None:
        settings = self._settings
        cache_dir = settings.cache_dir
        mount = checked_mount(cache_dir, allow_volatile=settings.allow_volatile)
        undo.callback(os.close, locked(settings))
        memory_bytes = memory_of(settings, undo)
        connection.lend_reserve(cache_dir)
        disk = data_files.probe(cache_dir, known=cache_dir / STORE_ID_NAME)
        status = os.statvfs(cache_dir)
        capacity_bytes = settings.capacity_bytes(status.f_blocks * status.f_frsize)
        self._room_bytes = settings.room_bytes(capacity_bytes)  # is taken from it for good
        recovered = open_store(
            cache_dir,
            capacity_bytes - self._room_bytes,
            self._clock,
            policy=settings.policy,
            on_fence=self._fenced,
            on_disk_error=self.metrics.write_failed,
            memory_bytes=memory_bytes,
        )
        self.store = recovered.store
        undo.callback(self.store.close)
        self.store.configure_replicas({each.name: each.required for each in self._replica_settings})
        undo.callback(open_tracing(self.store.store_id, cache_dir))
        _tell_recovered(recovered, cache_dir)
        self._machine = Machine(
            cache_dir=str(cache_dir),
            filesystem=mount.kind,
            disk=disk,
            sqlite_version=sqlite_version(),
            remotes=(self._remote, *self._replica_settings),
            when_full=settings.when_full,
            policy=settings.policy,
            started_at=self._clock.now(),
            exposure_objective_seconds=float(settings.exposure_objective),
        )

    def _build(self) -> None:
        settings, store, clock = self._settings, self.store, self._clock
        self._access = who_may(settings, store, clock, self._audit)
        self._incidents = Incidents(store)
        self._drain = self._open_drain(store, self._changes, self._incidents, self.metrics)
        knowledge = knowledge_of(store, self._bucket, clock, self._drain, self._announce)
        opener = mount_opener(
            self._remote,
            partial(self._open_remote, server=self._server),
            self._opened,
            self._answers[DURABLE],
        )
        buckets = MountBuckets(self._settings.s3_mounts, opener, self._store_clock)
        mounted = MountedObjects(store, buckets, clock)
        self._ordering = ordering_of(mounted.buckets, store, self._changes, clock)
        self._unmounted = unmounted_warnings(store, self._settings.s3_mounts)
        self._settling = Settling(store, mounted.buckets, self._ordering, self._changes.ring)
        evictor = Evictor(
            *(store, clock, self._still_remote),
            look_into=lambda of: (mounted if is_mount(of.run) else knowledge).look_into(of),
            watermarks=Watermarks(settings.high_watermark, settings.low_watermark),
        )
        self._garbage = self._collector()
        ingest = self._ingest(knowledge)
        self._pending_seals = PendingSeals(store, self._bucket, clock, on_sealed=self._changes.ring)
        self._passed_over = PassedOverCopies(self.metrics.passed_over)
        pace = restore_pace(settings, self._drain.queue.phases, clock)
        self._peers = peers_of(
            *(self._neighbours, settings, self._bucket, pace, self._room_bytes, self._replicas)
        )
        self._restore = Restore(
            store,
            self._bucket,
            clock,
            remote=DURABLE,
            replicas=Replicas(self._replicas, self._passed_over),
            room=Room(self._changes.ring, self._keeps_restored),
            knowledge=knowledge,
            mounted=mounted,
            listener=restore_listener(evictor, self.metrics),
            one_fetch=None if self._peers is None else self._peers.one_fetch,
            pace=pace,
        )
        self.objects = objects_of(
            mounted,
            store,
            self._restore,
            self._ordering,
            admission=Admission(store, settings.when_full, self._make_room),
            shares=self._shares,
            changes=self._changes,
            clock=clock,
            hurry=self._drain.hurry,
        )
        self._notes = UnflushedNotes(store, self._bucket, self._changes, clock)
        self._write_back = self._copier(evictor)
        self._housekeeping = self._keeper(evictor)
        self.report = self._reporter()
        ingest = InstrumentedIngest(ingest, self.metrics, clock, self._course)
        self.operations = self._operations(ingest)

    def _copier(self, evictor: Evictor) -> WriteBack:
        return WriteBack(
            self.store,
            self._changes,
            make_room=self._make_room,
            evict=evictor.evict,
            on_damage=self._restore.report_damage,
        )

    def _reporter(self) -> NodeReport:
        return NodeReport(
            self.store,
            self._clock,
            self._machine,
            self._drain,
            self._course,
            warnings=self._warnings,
            flow=self.metrics.flow,
            access=self._access,
            answers=self._answers,
            restore=self._restore.pace.figures,
            markers=self._ordering.waiting,
            kept_for_peers_bytes=self._kept_for_peers_bytes,
        )

    def _kept_for_peers_bytes(self) -> int:
        keeper = self._peers.keeper if self._peers is not None else None
        return keeper.used_bytes if keeper is not None else 0

    def _keeps_restored(self) -> bool:
        settings, space = self._settings, self.store.space
        low_bytes = int(space.capacity_bytes * settings.low_watermark)
        scarce = space.disk_is_full or space.wanted_bytes > 0
        return stays(settings.restore_keep, space.used_bytes, low_bytes, scarce=scarce)

    def _ingest(self, knowledge: Knowledge) -> Ingest:
        settings = self._settings
        ingest = NodeIngest(
            self.store,
            when_full=settings.when_full,
            make_room=self._make_room,
            open_remote_stage=self._write_through(),
            on_committed=self._changes.ring,
            knowledge=knowledge,
        )
        quotas = self._access.quotas
        waits = settings.when_full is WhenFull.WAIT
        self._shares = Shares(quotas, waits=waits, ring=self._changes.ring)
        if not quotas:
            return ingest
        self._changes.listen(quotas.changed)
        self._drain.queue.starved = quotas.starves
        return SharedIngest(ingest, self._shares)

    def _operations(self, ingest: Ingest) -> Operations:
        store, drain, checkpoints = self.store, self._drain, self._checkpoints()
        self._leaving = Leaving(self._course, store, checkpoints)
        return Operations(
            store_id=store.store_id,
            access=self._access,
            ingest=ingest,
            restore=self._restore,
            whole_steps=WholeSteps(store, self._restore, self._clock, self._changes.ring),
            checkpoints=checkpoints,
            waits=self._waits,
            incidents=self._incidents,
            phases=self._drain.queue.phases,
            garbage=self._garbage,
            status=self.report.status,
            refuse_when_stopping=self._course.refuse_when_stopping,
            refuse_when_leaving=self._course.refuse_when_leaving,
            putting=self._course.putting,
            leave=self._leaving.leave,
            fell_back=self._fell_back,
            failed=self.metrics.answered_with_error,
            http_url=lambda: self.url,
            s3=s3_offer(self._settings, lambda: self.s3_url, self.objects, store),
            settle=self._settling.settle,
            steer=Steering(drain.retry, drain.limit_rate, lambda: drain.queue.rate_limit),
            recent_events=self._events.newest_first,
            greeting={"remote": scheme_of(self._remote).for_clients(self._remote)},
        )

    def _collector(self) -> Garbage:
        remotes = (Remote(DURABLE, self._bucket), *self._replicas)
        return Garbage(
            self.store,
            self._settings.cache_dir,
            remotes,
            self._clock,
            on_deleted=self._drain.nudge,
        )

    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(
            self.store,
            self._bucket,
            self._changes,
            self._clock,
            hurry=self._drain.hurry,
            replication=Replication(
                self._drain.hurry_replicas,
                self._drain.refusals,
                self._settings.when_full is WhenFull.REJECT and self._settings.copies > 0,
            ),
            published=self._restore.published,
        )

    def _keeper(self, evictor: Evictor) -> Housekeeping:
        retention = Retention(
            self.store,
            self._settings.keep_local,
            evictor.evict,
            on_removed=lambda _save, _bytes: self.metrics.removed_local_only.inc(),
            on_wanted=self._drain.nudge,
        )
        return Housekeeping(
            evictor,
            self.store.space,
            self._changes,
            self._clock,
            high_watermark=self._settings.high_watermark,
            on_evicted=self.metrics.evicted_bytes.inc,
            retention=retention,
            others=(
                lambda: self._restore.mend(MEND_SECONDS),
                lambda: prune_catalog(self.store, self._clock.now()),
                self._garbage.purge_lost_and_found,
                self.objects.expire_uploads,
                self._restore.knowledge.sweep,
            ),
        )

    def _open_doors(self, undo: ExitStack) -> None:
        settings = self._settings
        undo.callback(self._restore.close)
        undo.callback(self.operations.checkpoints.unflushed.close)
        undo.callback(self.operations.whole_steps.close)
        shared = UnixDoor(settings.socket_path, self.operations, mode=settings.socket_permissions)
        own = self.operations.access.sockets().items()
        self._sockets = [
            shared,
            *(UnixDoor(path, self.operations, mode=mode, own=path) for path, mode in own),
        ]
        self._tls = tls_of(settings)
        self._http = self._http_door()
        self._s3 = self._s3_door()
        self._open_health_door(undo)
        if self._peers is not None:
            undo.callback(self._peers.stop)
            self._peers.start(self.store, self.operations, self._changes)
        undo.callback(self._close_doors)  # first of all
        for door in self._sockets:
            door.start()
        for opened in self._by_address:
            opened.start()
        doors: list[Door] = [*self._sockets, *self._by_address]
        self.report.doors_are_open(doors, Addresses(self.socket, self.url, self.s3_url))

    def _http_door(self) -> HttpDoor | None:
        address, token = self._settings.http_address, self._settings.scrape_token
        if address is None:
            return None
        # Its web framework takes a third of the start: meanwhile the drain's process starts too.
        from cachetier.doors.http.door import HttpDoor

        return HttpDoor(
            address,
            self.operations,
            tls=self._tls,
            clear_text=self._settings.http.startswith(CLEAR_TEXT),
            cluster=Cluster(self._settings.cluster, token.reveal() if token else None),
            not_ready=self.report.not_ready,
            exposition=self.metrics.exposition,
        )

    def _s3_door(self) -> S3Door | None:
        address = self._settings.s3_address
        if address is None:
            return None
        from cachetier.doors.s3.door import S3Door

        return S3Door(
            address,
            self.operations,
            self.objects,
            hosts=self._settings.hosts,
            tls=self._tls,
            answered=self.metrics.s3_answered,
        )

    @property
    def _by_address(self) -> list[HttpServer]:
        """The doors that have an address, those that are open."""
        return [each for each in (self._http, self._s3) if each is not None]

    def _open_health_door(self, undo: ExitStack) -> None:
        """Open the port for probes: the last to close, so that they see the service stop."""
        address = self._settings.health_address
        if address is None:
            return
        from cachetier.doors.http.door import HealthDoor

        health = HealthDoor(address, self.report.not_ready)
        undo.callback(lambda: health.stop(0.0))
        health.start()
        self.health_url = health.url

    def _supervisor(
        self, store: Store, changes: Changes, incidents: Incidents, metrics: Metrics
    ) -> Drains:
        remotes = (self._remote, *self._replica_settings)
        shared = store, changes, incidents, self._clock, metrics, self._store_clock
        return open_drains(self._settings, remotes, *shared)

    def _write_through(self) -> OpenRemoteStage:
        return WriteThrough(
            self.store,
            self._bucket,
            self._drain.queue,
            self._clock,
            remote=DURABLE,
            on_drained=self._drain.passed_by,
        ).open

    # --- run and stop ----------------------------------------------------------------------------

    @property
    def socket(self) -> str:
        return str(self._settings.socket_path)

    @property
    def url(self) -> str | None:
        """The address of the HTTP door, or None."""
        return self._http.url if self._http is not None else None

    @property
    def s3_url(self) -> str | None:
        """The address of the S3 door, or None."""
        return self._s3.url if self._s3 is not None else None

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until SIGTERM or SIGINT, then stop; a second signal ends the process at once.

        SIGTERM leaves the node first: see ``leave``. What ``on_ready`` informs may send signals.
        """
        with ending_signals() as first_signal:
            on_ready()
            number = first_signal()
            try:
                if number == signal.SIGTERM:
                    self.leave()
            finally:
                self.stop()

    def leave(self) -> None:
        """Take no more puts, and flush for up to ``notice``, if they are set.

        Source: docs/operations.md.
        """
        notice_seconds = self._settings.notice
        if not notice_seconds or self._course.stopping or self.store.fenced:
            return
        left = self._leaving.leave().answer(self._changes, notice_seconds)
        if left:
            shards, size_bytes = left.shards, left.size_bytes
            tell(log, events.NODE_BEHIND, left=str(left), shards=shards, size_bytes=size_bytes)
        else:
            tell(log, events.NODE_LEFT)

    def stop(self) -> None:
        """Take no new work, let what is in flight end within the grace time, and close in order.

        The doors and the drain have the same grace time, not one after the other. Whatever hangs
        then, it takes no longer than ten seconds more: see docs/operations.md.
        """
        if not self._course.stopping:
            tell(log, events.SERVICE_STOPPING, grace_seconds=self._settings.grace)
            self._course.stopping = True
            self._changes.close()
            self._waits.stop()
            self._closing.close()
            tell(log, events.SERVICE_STOPPED)

    def _close_doors(self) -> None:
        self._drain.ask_to_end()
        for opened in self._by_address:
            opened.stop(self._grace.left())
        for door in self._sockets:
            door.stop(self._grace.left())

    # --- what happens ----------------------------------------------------------------------------

    def _tell_ready(self) -> None:
        what = {"version": __version__, "store_id": self.store.store_id}
        where = {"socket": self.socket, "http": self.url, "s3": self.s3_url}
        directory = str(self._settings.cache_dir)
        tell(log, events.SERVICE_READY, **what, directory=directory, **where)

    def _fenced(self, reason: str) -> None:
        tell(log, events.SERVICE_FENCED, reason=reason)
        self._changes.ring()

    def _fell_back(self, shards: int, size_bytes: int) -> None:
        self._course.refuse_when_leaving()  # to the client it is as good as away still
        self.metrics.fallback_shards.inc(shards)
        self.metrics.fallback_bytes.inc(size_bytes)
        self._pending_seals.look_soon()

    def _make_room(self) -> None:
        """Make room for a put: who can wait is helped by housekeeping, others evict themselves."""
        if self._settings.when_full is WhenFull.WAIT:
            self._changes.ring()
            self._drain.nudge()
        else:
            self._housekeeping.make_room()

    def _announce(self) -> None:
        self._incidents.refresh()
        self._changes.ring()

    def _warnings(self) -> list[str]:
        of_tls = self._tls.warnings(self._clock.now()) if self._tls is not None else []
        late = self._notes.warnings()
        of_peers = self._peers.membership.problems if self._peers is not None else ()
        return [*self._passed_over.warnings(), *of_tls, *self._unmounted, *late, *of_peers]

    def _still_remote(self, shard: Shard) -> bool:
        return self._restore.sources.still_there(shard)


def _tell_recovered(recovered: Recovered, directory: Path) -> None:
    """Tell what start-up had to put right."""
    found = {
        "rubbish_files": recovered.rubbish_files,
        "set_aside_files": recovered.set_aside_files,
        "lost_shards": recovered.lost_shards,
    }
    where = {"directory": str(directory), "store_id": recovered.store.store_id}
    tell(log, events.SERVICE_RECOVERED, **where, **found)
    for _, each in groupby(recovered.forgotten, key=lambda shard: shard.save):
        shards = list(each)
        what = {"shards": len(shards), "size_bytes": sum(s.content.size_bytes for s in shards)}
        tell(log, events.MEMORY_LOST, **of(shards[0]), **what)
