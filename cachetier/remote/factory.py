"""Compose a remote: the only place that says which wrapper goes around which."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cachetier_client.bucket_format.layout import Layout
from cachetier_client.clock import Clock, SystemClock

from cachetier.model.pace import Pace
from cachetier.remote.addressing import found_style
from cachetier.remote.base import ObjectStore
from cachetier.remote.boto_client import Timeouts, connect_to
from cachetier.remote.bucket import Bucket
from cachetier.remote.hedging import HedgingObjectStore
from cachetier.remote.paced import Controller, PacedObjectStore
from cachetier.remote.reconnecting import Renewed, RenewedObjectStore
from cachetier.remote.retrying import ASKING, RetryingObjectStore, RetryPolicy
from cachetier.remote.s3 import S3ObjectStore
from cachetier.remote.settings import RemoteSettings
from cachetier.remote.stall_guard import StallWatch
from cachetier.remote.store_clock import StoreClock
from cachetier.remote.turns import AT_ONCE, Turns
from cachetier.remote.wrapped import MeasuredObjectStore, Observe

if TYPE_CHECKING:
    from types_boto3_s3.client import S3Client

MAX_CONNECTIONS = AT_ONCE


def client_of(
    settings: RemoteSettings,
    store_clock: StoreClock | None = None,
    *,
    max_connections: int = MAX_CONNECTIONS,
    timeouts: Timeouts | None = None,
) -> Renewed[S3Client]:
    """Return a client of a remote's server; buckets share one, as each takes 10 MB and more.

    ``store_clock`` hears the dates of its answers.
    """
    return Renewed(
        lambda: connect_to(
            settings,
            found_style(settings),
            max_connections=max_connections,
            timeouts=timeouts,
            store_clock=store_clock,
        )
    )


def open_store(
    settings: RemoteSettings,
    *,
    client: Renewed[S3Client] | None = None,
    observe: Observe | None = None,
    timeouts: Timeouts | None = None,
) -> ObjectStore:
    """Return the store itself: measured, and every call made once.

    Nothing outside is looked at before the first call, which is refused where no client can be
    made: without the profile, say, or while a program that gives credentials fails. Buckets of one
    server share a ``client``; without one it gets its own.
    """
    timeouts = timeouts or Timeouts()
    store = RenewedObjectStore(
        client or client_of(settings, timeouts=timeouts),
        lambda client: S3ObjectStore(
            settings.bucket,
            client,
            verify=settings.verify,
            conditional_writes=settings.conditional_writes,
            timeouts=timeouts,
            at_rest=settings.at_rest,
        ),
        keeps_digests=settings.verify == "checksum",
    )
    return store if observe is None else MeasuredObjectStore(store, observe)


@dataclass(frozen=True, slots=True)
class Steering:
    """How the calls of a drain go: when each may begin, on which threads parts, until when."""

    controller: Controller[Any]
    clock: Clock
    stalls: StallWatch
    part_threads: Executor
    has_room: Callable[[], bool]
    sleep: Callable[[float], object]
    stopping: Callable[[], bool]


def steered_bucket(settings: RemoteSettings, store: ObjectStore, steering: Steering) -> Bucket:
    """Return the checkpoints in ``store``, as a drain reaches them.

    A repeated call takes its turn again, and so does the second send of a slow part.
    """
    paced = PacedObjectStore(store, steering.controller, steering.clock, stopping=steering.stopping)
    hedging = HedgingObjectStore(
        paced, steering.stalls.cut, steering.part_threads, has_room=steering.has_room
    )
    layout = Layout(settings.prefix, settings.spread)
    return Bucket(RetryingObjectStore(hedging, sleep=steering.sleep), layout)


def open_remote(
    settings: RemoteSettings,
    *,
    client: Renewed[S3Client] | None = None,
    policy: RetryPolicy = ASKING,
) -> Bucket:
    """Return the checkpoints of a remote: paced, and retried as ``policy`` says."""
    stalls = StallWatch()
    store = open_store(settings, client=client, timeouts=Timeouts(stalls=stalls))
    pace = Pace(AT_ONCE, moved=stalls.moved_bytes, fraction=random.random)
    # Twice, so that those that wait let the concurrency be found; not all of them, as a call that
    # waits for its turn spends what time it has for being repeated.
    turns = Turns(lambda: min(AT_ONCE, 2 * pace.concurrency))
    layout = Layout(settings.prefix, settings.spread)
    paced = PacedObjectStore(store, pace, SystemClock())
    return Bucket(RetryingObjectStore(paced, policy), layout, turns)
