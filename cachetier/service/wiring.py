"""Make the parts of the node from the settings; ``service`` composes them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import msgspec
from cachetier_client.clock import Clock
from cachetier_client.identity.remote_url import DEFAULT_REGION

from cachetier.access.access import Access
from cachetier.access.audit import Audit
from cachetier.access.principals import OWNER, SCRAPER, principals_of
from cachetier.access.quotas import Quotas
from cachetier.access.roles import Role
from cachetier.access.s3_keys import S3Keys
from cachetier.access.tokens import TOKENS_FILE, Tokens, owner_secret
from cachetier.carriers.pool import Carriers
from cachetier.carriers.process import Nursery
from cachetier.config.settings import Settings, memory_level_of
from cachetier.config.tables import check_own_door
from cachetier.cpus import default_carriers, parsed_cores
from cachetier.doors.operations import S3Offer
from cachetier.drain.messages import Size
from cachetier.drain.schedule.queue_state import Group, Weights
from cachetier.drain.serve.drains import Drains
from cachetier.drain.serve.supervisor import DrainSettings, Supervisor
from cachetier.errors import ConfigError
from cachetier.local.catalog.connection import created_at
from cachetier.local.catalog.figures import held_by_run
from cachetier.local.recovery import lock_directory, lock_memory
from cachetier.local.store import Store
from cachetier.model.bandwidth import parsed_rate
from cachetier.model.compression import Rules
from cachetier.model.names import DURABLE
from cachetier.notifier import Changes
from cachetier.objects.base import ReadableObjects
from cachetier.parsers import capacity_of, is_loopback
from cachetier.reclaim.evict import Evictor
from cachetier.remote.answers import Answers
from cachetier.remote.bucket import Bucket, Remote
from cachetier.remote.factory import open_remote
from cachetier.remote.fair_slots import AT_ONCE
from cachetier.remote.scheme import scheme_of
from cachetier.remote.settings import RemoteSettings
from cachetier.remote.stall_guard import Timeouts
from cachetier.remote.store_clock import StoreClock
from cachetier.restore.knowledge import Knowledge
from cachetier.restore.pace import RestorePace
from cachetier.restore.restore import RestoreListener
from cachetier.steps.incidents import Incidents
from cachetier.telemetry import events
from cachetier.telemetry.events import tell
from cachetier.telemetry.metrics import Metrics
from cachetier.tls import Tls
from cachetier.training_hints import Phases

log = logging.getLogger(__name__)


def remotes_of(settings: Settings) -> list[RemoteSettings]:
    """Return the remotes, the durable one first, each with what is found out before its calls."""
    return [scheme_of(each).resolved(each, settings.cache_dir) for each in settings.remotes]


def refuse_own_door(settings: Settings, remotes: Sequence[RemoteSettings]) -> None:
    """Refuse ``remotes``, as they were resolved, that would lead to our own S3 door.

    What settings and variables say is checked by then: it is the AWS configuration that does.

    Raises:
        ConfigError: Says which.
    """
    if settings.s3_address is None:
        return
    for remote in remotes:
        try:
            found = scheme_of(remote).endpoint(remote)
            check_own_door(f"`{remote.name}`", found, settings.s3_address, settings.hosts)
        except ValueError as error:
            hint = "It is the `endpoint_url` of a profile in the AWS configuration."
            raise ConfigError(str(error), hint=hint) from None


LEAST_DRAIN_BYTES, BYTES_OF_THREAD = 256 << 20, 128 << 20  # of memory for what is being sent


def drain_settings(settings: Settings, remote: RemoteSettings) -> DrainSettings:
    threads, cpus = parsed_cores(settings.drain_cores)
    size = Size.within(
        max(LEAST_DRAIN_BYTES, threads * BYTES_OF_THREAD),
        settings.drain_workers,
        threads,
        carriers_of(settings, cpus),
        block_copies="nocopy" not in remote.stated,
    )
    return DrainSettings(
        remote,
        settings.cache_dir,
        size,
        cpus,
        max_rate=settings.max_rate,
        weights=weights_of(settings),
        compression=settings.rules,
        packing=settings.pack,
        mounts=settings.s3_mounts,
    )


def carriers_of(settings: Settings, cpus: Collection[int] = ()) -> int:
    """Return how many processes may carry bytes on ``cpus``, or any."""
    return default_carriers(cpus) if settings.carriers is None else settings.carriers


def opener_of(
    settings: Settings, remote: RemoteSettings, nursery: Nursery | None
) -> Callable[..., Bucket]:
    """Return ``open_remote``, with restores in carriers of ``nursery`` if there are any."""
    limit = carriers_of(settings)
    if nursery is None or not limit:
        return open_remote
    carriers = Carriers(nursery, remote, limit, AT_ONCE, Timeouts())
    return partial(
        open_remote,
        carried=carriers.store,
        moved_bytes=nursery.counters.moved_bytes,
        cut=carriers.cut,
    )


def weights_of(settings: Settings) -> Weights:
    """Return how the drain is shared; a principal of all runs has no runs of its own."""
    owners = [each.principal() for each in settings.tenants]
    groups = (
        Group(each.name, each.runs, each.drain_weight)
        for each in owners
        if each.role.covers(Role.WRITE) and not each.sees_all
    )
    return Weights(tuple(settings.run_weights.items()), tuple(groups))


def replica_drain_settings(settings: Settings, remote: RemoteSettings) -> DrainSettings:
    """Return how a replica is drained to: ``max_rate`` is for the far link.

    Peers get each shard as it is: they are no store that anybody else reads.
    """
    durable = drain_settings(settings, remote)
    if remote.neighbours is not None:
        size = msgspec.structs.replace(durable.size, carriers=0, block_copies=False)
        return replace(
            durable, size=size, max_rate=(), compression=Rules(), packing=False, mounts=()
        )
    mode = settings.replicas[remote.name].compression
    # Objects of the S3 door are the bucket's own: no replica gets them.
    return replace(durable, max_rate=(), compression=Rules.parsed(mode, ()), mounts=())


def open_drains(
    settings: Settings,
    remotes: Sequence[RemoteSettings],
    store: Store,
    changes: Changes,
    incidents: Incidents,
    clock: Clock,
    metrics: Metrics,
    store_clock: StoreClock,
) -> Drains:
    """Return a drain to each of ``remotes``, of which the first is the durable one.

    ``store_clock`` is that one's.
    """

    def supervisor(drain: DrainSettings, phases: Phases | None = None) -> Supervisor:
        return Supervisor(store, changes, incidents, clock, drain, metrics=metrics, phases=phases)

    for as_set, resolved in zip(settings.remotes, remotes, strict=True):
        scheme_of(as_set).keep(as_set, resolved, settings.cache_dir)
    durable, *replicas = remotes
    first = supervisor(replace(drain_settings(settings, durable), store_clock=store_clock))
    phases = first.queue.phases
    others = [
        (supervisor(replica_drain_settings(settings, each), phases), each.required)
        for each in replicas
    ]
    return Drains(first, others)


def who_may(settings: Settings, store: Store, clock: Clock, audit: Audit) -> Access:
    """Return who may do what here; secrets of a door that have no file yet are made.

    Raises:
        ConfigError: A file of secrets is none.
    """
    http, token = settings.http_address, settings.token
    fixed = {}
    if http is not None:
        fixed[OWNER] = token.reveal() if token else owner_secret(settings.cache_dir)
    if settings.scrape_token:
        fixed[SCRAPER.name] = settings.scrape_token.reveal()
    tenants = [each.principal() for each in settings.tenants]
    tokens = Tokens(settings.cache_dir / TOKENS_FILE, fixed, now=clock.now)
    return Access(
        principals_of(tenants, settings.allowed_uids, settings.admin_socket),
        tokens,
        audit,
        s3_keys=S3Keys(settings.cache_dir, tokens) if settings.s3_address else None,
        quotas=Quotas(tenants, lambda: store.look(held_by_run), clock.monotonic),
        open_metrics=http is not None and is_loopback(http[0]) and not tenants,
        hosts=settings.hosts,
        monotonic=clock.monotonic,
    )


def tls_of(settings: Settings) -> Tls | None:
    """Return the certificate of the doors, told of in the log whenever it is read again."""

    def tell_of(problem: str | None) -> None:
        if problem is None:
            tell(log, events.TLS_READ)
        else:
            tell(log, events.TLS_REFUSED, reason=problem)

    files = settings.tls_files
    return Tls(files, tell_of) if files is not None else None


def knowledge_of(
    store: Store, bucket: Bucket, clock: Clock, drain: Drains, announce: Callable[[], None]
) -> Knowledge:
    """Return what is known of steps; nobody waits for it while the drain's circuit is open."""
    return Knowledge(
        store,
        Remote(DURABLE, bucket),
        clock,
        on_change=announce,
        on_published=drain.published,
        is_cut_off=lambda: drain.state()[0].remote.state in ("unreachable", "refused"),
    )


def mount_opener(
    remote: RemoteSettings,
    open_beside: Callable[[RemoteSettings], Bucket],
    bucket: Bucket,
    answers: Answers,
) -> Callable[[str], Bucket]:
    """Return what opens buckets of mounts, heard; the checkpoints' own is paced together."""

    def opened(name: str) -> Bucket:
        own = name == remote.bucket
        there = bucket if own else open_beside(remote.beside(name))
        return answers.of(there, shared=True)

    return opened


def restore_listener(evictor: Evictor, metrics: Metrics) -> RestoreListener:
    """Return who hears of what is read: what was used goes last, and all of it is counted."""
    return RestoreListener(
        on_used=evictor.touch,
        on_opened=metrics.get_seconds.observe,
        on_restored=lambda shard: metrics.restored_bytes.inc(shard.content.size_bytes),
        on_range_read=metrics.range_read_bytes.inc,
    )


def restore_pace(settings: Settings, phases: Phases, clock: Clock) -> RestorePace:
    """Return the pace of restores: they give way while ranks say that they train."""
    limit = settings.max_restore_rate
    rate = parsed_rate(limit) if limit else None
    return RestorePace(clock, rate, lambda: phases.hints().busy_ranks > 0)


def s3_offer(
    settings: Settings, url: Callable[[], str | None], objects: ReadableObjects, store: Store
) -> S3Offer:
    """Return what S3 clients learn of the door at ``url``; any machine's becomes this one's."""

    def here() -> str | None:
        found = url()
        return found and found.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")

    region = settings.remote.region or DEFAULT_REGION
    return S3Offer(here, region, settings.s3_mounts, objects, store.look(created_at))


def memory_of(settings: Settings, undo: ExitStack) -> int:
    """Lock the folder in memory, if there is one; return its budget.

    Raises:
        ConfigError: It cannot be used.
        DirectoryInUseError: Another service has it.
    """
    size, directory = memory_level_of(settings.memory)
    try:
        lock = lock_memory(settings.cache_dir, directory if size else None)
        if lock is not None:
            undo.callback(os.close, lock)
        status = os.statvfs(directory if size else settings.cache_dir)
    except OSError as error:
        raise ConfigError(
            f"cannot use {directory} of `memory`: {error.strerror}",
            hint="Name a tmpfs in which the service's user may create a directory.",
        ) from error
    return capacity_of(size, status.f_blocks * status.f_frsize) if size else 0


def locked(settings: Settings) -> int:
    """Lock the cache directory; return the descriptor that holds the lock.

    Raises:
        ConfigError: It cannot be used.
        DirectoryInUseError: Another service has it.
    """
    try:
        return lock_directory(settings.cache_dir)
    except OSError as error:
        raise ConfigError(
            f"cannot use cache_dir {settings.cache_dir}: {error.strerror}",
            hint="Choose a directory that the service's user may create and write.",
        ) from error
