"""Records of deletions in a mount's bucket: written before what they tell of, read by who is late.

A put that comes to the bucket some seconds after it was acknowledged may have been deleted by
another node meanwhile: nothing lies there that could say so, but a record does. What somebody
removed in the bucket itself has no record.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from cachetier_client.io.digests import digest_of

from cachetier.errors import IntegrityError, ObjectMissingError, RemoteRefusedError
from cachetier.model.superseding import (
    DELETED,
    MARGIN_SECONDS,
    RECORD_KEPT_SECONDS,
    DeletionRecord,
    Stamp,
    is_deleted,
    records_behind,
)
from cachetier.remote.base import ListedObject, ObjectStore
from cachetier.remote.store_clock import StoreClock

FRESH_SECONDS = 5.0
FORGOTTEN_SECONDS = 600.0
SWEPT_SECONDS = 3600.0
LISTED_AT_ONCE = 1000
READ_AT_ONCE = 8
RECORD_LIMIT_BYTES = 8 << 20


class MountDeletions:
    """The records of one mount, of the deletions since a time that was asked for. Thread-safe."""

    def __init__(self, store: ObjectStore, prefix: str, store_clock: StoreClock) -> None:
        self._store = store
        self._prefix = prefix
        self._clock = store_clock
        self._lock = threading.Lock()
        self._written: str | None = None
        self._swept_at = float("-inf")
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._since = float("inf")
        self._listed_at = float("-inf")
        self._read: set[str] = set()
        self._newest: dict[str, Stamp] = {}

    def record(self, record: DeletionRecord) -> None:
        """Write a record; one that was just written is there.

        Raises:
            RemoteError: It may not be there.
        """
        name, body = record.name(self._prefix), record.as_bytes()
        with self._lock:
            if name != self._written:
                self._store.put(name, body, digest=digest_of(body))
                self._written = name
            self._sweep()

    def covers(self, ours: Stamp, key: str, age_seconds: float) -> bool:
        """Return whether a put was acknowledged before a deletion of its key, as records tell.

        ``age_seconds`` is how long ago that was by the clock of this machine, which may have been
        set since: it stands in where nobody knew the store's time. It decides about nothing that
        lies in the bucket.

        Raises:
            RemoteError: They cannot be read.
        """
        now = self._clock.now()
        if now is None:
            return False
        if ours.acknowledged_at is None:
            ours = replace(ours, acknowledged_at=now - age_seconds)
        with self._lock:
            try:
                self._refresh((ours.acknowledged_at or 0.0) - MARGIN_SECONDS)
            except RemoteRefusedError as error:
                if error.context.get("remote_code") != "AccessDenied":
                    raise
                return False  # by a role that may not list: `doctor` says so
            deletion = self._newest.get(key)
        return deletion is not None and is_deleted(ours, deletion)

    def _refresh(self, since: float) -> None:
        age_seconds = self._clock.own() - self._listed_at
        if since >= self._since and age_seconds <= FRESH_SECONDS:
            return
        if age_seconds > FORGOTTEN_SECONDS:
            self._begin_anew()
        listed_at = self._clock.own()
        since = min(since, self._since)
        after: str | None = records_behind(self._prefix, since)
        while after is not None:
            page = self._store.list_page(f"{self._prefix}{DELETED}", "", after, LISTED_AT_ONCE)
            new = [each for each in page.objects if each.key not in self._read]
            with ThreadPoolExecutor(READ_AT_ONCE, thread_name_prefix="deletions") as threads:
                for each, record in zip(new, threads.map(self._found, new), strict=True):
                    self._learn(each.key, record)
            after = page.next_after
        self._since, self._listed_at = since, listed_at
        self._sweep()

    def _found(self, listed: ListedObject) -> DeletionRecord | None:
        """Return a record; None if it is gone or not ours: anybody may write there."""
        with suppress(ObjectMissingError, IntegrityError, ValueError, RecursionError):
            if listed.size_bytes <= RECORD_LIMIT_BYTES:
                return DeletionRecord.of_bytes(self._store.get(listed.key), listed.modified_at)
        return None

    def _learn(self, name: str, record: DeletionRecord | None) -> None:
        self._read.add(name)
        if record is None:
            return
        for key, version in record.versions.items():
            known = self._newest.get(key)
            if known is None or (known.acknowledged_at or 0.0) < record.acknowledged_at:
                self._newest[key] = Stamp(record.store_id, version, record.acknowledged_at)

    def _sweep(self) -> None:
        """Remove the oldest records that nobody needs any more, now and then."""
        own, now = self._clock.own(), self._clock.now()
        if now is None or own - self._swept_at < SWEPT_SECONDS:
            return
        old: list[ListedObject] = []
        with suppress(RemoteRefusedError):
            page = self._store.list_page(f"{self._prefix}{DELETED}", "", "", LISTED_AT_ONCE)
            old += (each for each in page.objects if now - each.modified_at > RECORD_KEPT_SECONDS)
            for each in old:
                self._store.delete(each.key)
        if len(old) < LISTED_AT_ONCE:  # else there may be more
            self._swept_at = own
