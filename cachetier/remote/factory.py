"""Put a remote together: the only place that says which wrapper goes around which."""

from __future__ import annotations

import time
from collections.abc import Callable

from cachetier.model.layout import Layout
from cachetier.remote.base import ObjectStore
from cachetier.remote.bucket import Bucket
from cachetier.remote.measured import MeasuredObjectStore, Observe
from cachetier.remote.retrying import RetryingObjectStore, RetryPolicy
from cachetier.remote.s3 import S3ObjectStore
from cachetier.remote.settings import RemoteSettings

MAX_CONNECTIONS = 32


def open_store(
    settings: RemoteSettings,
    *,
    observe: Observe | None = None,
    max_connections: int = MAX_CONNECTIONS,
) -> ObjectStore:
    """Return the store itself: measured, and every call made once. It opens no connection yet.

    Raises:
        ConfigError: The endpoint is no URL, or the AWS profile does not exist.
    """
    store = S3ObjectStore(
        settings.bucket,
        endpoint=settings.endpoint,
        region=settings.region,
        verify=settings.verify,
        conditional_writes=settings.conditional_writes,
        max_connections=max_connections,
    )
    return store if observe is None else MeasuredObjectStore(store, observe)


def bucket_of(
    settings: RemoteSettings,
    store: ObjectStore,
    *,
    policy: RetryPolicy | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> Bucket:
    """Return the checkpoints in ``store``, whose throttled and transient calls are repeated."""
    return Bucket(RetryingObjectStore(store, policy, sleep=sleep), Layout(settings.prefix))


def open_remote(
    settings: RemoteSettings,
    *,
    observe: Observe | None = None,
    policy: RetryPolicy | None = None,
    max_connections: int = MAX_CONNECTIONS,
) -> Bucket:
    """Return the checkpoints of a remote: measured call by call, retried as ``policy`` says."""
    store = open_store(settings, observe=observe, max_connections=max_connections)
    return bucket_of(settings, store, policy=policy)
