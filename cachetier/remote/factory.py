"""Compose a remote: the only place that says which policy its calls follow."""

from __future__ import annotations

import random
from collections.abc import Callable

from cachetier_client.bucket_format.layout import Layout
from cachetier_client.clock import SystemClock

from cachetier.model.pace import Pace
from cachetier.remote.base import ObjectStore
from cachetier.remote.bucket import Bucket
from cachetier.remote.call_policy import (
    ASKING,
    DRAIN,
    CallPolicy,
    Cut,
    Observe,
    Pacer,
    Retries,
    RetryPolicy,
    Stragglers,
)
from cachetier.remote.fair_slots import AT_ONCE, FairSlots
from cachetier.remote.scheme import RemoteServer, scheme_of
from cachetier.remote.settings import RemoteSettings
from cachetier.remote.stall_guard import StallWatch, Timeouts


def open_store(
    settings: RemoteSettings,
    *,
    server: RemoteServer | None = None,
    timeouts: Timeouts | None = None,
) -> ObjectStore:
    """Return the store itself, without a policy: every call is made once.

    Nothing outside is looked at before the first call, which is refused where no client can be
    made: without the profile, say, or while a program that gives credentials fails. Without a
    ``server`` it gets one of its own.
    """
    timeouts = timeouts or Timeouts()
    return (server or scheme_of(settings).server(settings, timeouts=timeouts)).bucket(
        settings, timeouts
    )


def drained_bucket(
    settings: RemoteSettings,
    store: ObjectStore,
    pacer: Pacer,
    stragglers: Stragglers,
    observe: Observe,
    sleep: Callable[[float], object],
) -> Bucket:
    """Return the checkpoints in ``store`` for a drain, whose retries ``sleep`` in between.

    All buckets of the drain share its pacer and its stragglers, and each has retries of its own.
    """
    policy = CallPolicy(
        store,
        retries=Retries(DRAIN, sleep=sleep),
        pacer=pacer,
        stragglers=stragglers,
        observe=observe,
    )
    return Bucket(policy, Layout(settings.prefix, settings.spread))


def open_remote(
    settings: RemoteSettings,
    *,
    server: RemoteServer | None = None,
    policy: RetryPolicy = ASKING,
    carried: Callable[[RemoteSettings, ObjectStore], ObjectStore] = lambda _settings, store: store,
    moved_bytes: Callable[[], int] = lambda: 0,
    cut: Cut = lambda _thread: None,
) -> Bucket:
    """Return the checkpoints of a remote: paced, and retried as ``policy`` says.

    ``carried`` may let other processes do some of its calls, which move ``moved_bytes`` and which
    ``cut`` breaks off.
    """
    stalls = StallWatch()
    store = open_store(settings, server=server, timeouts=Timeouts(stalls=stalls))
    store = carried(settings, store)
    pace = Pace(AT_ONCE, moved=lambda: stalls.moved_bytes() + moved_bytes(), fraction=random.random)
    # Twice, so that those that wait let the concurrency be found; not all of them, as a call that
    # waits for its turn spends what time it has for being repeated.
    slots = FairSlots(lambda: min(AT_ONCE, 2 * pace.concurrency))
    layout = Layout(settings.prefix, settings.spread)
    pacer, stragglers = Pacer(pace, SystemClock()), Stragglers((stalls.cut, cut), pace.has_room)
    calls = CallPolicy(store, retries=Retries(policy), pacer=pacer, stragglers=stragglers)
    return Bucket(calls, layout, slots)
