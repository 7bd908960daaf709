"""The decisions of a person about objects that cannot go on by themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cachetier_client.identity.names import MOUNT_MARK, shown

from cachetier.errors import InvalidRequestError, NotFoundError, RemoteRefusedError
from cachetier.local.catalog import objects
from cachetier.local.store import Store
from cachetier.model.objects import WHATEVER_IS_THERE
from cachetier.objects.cluster import ClusterOrdering
from cachetier.remote.mounted import MountBuckets


class Settling:
    """Settles conflicts, and lets markers go. Thread-safe; ``ring`` wakes the drain."""

    def __init__(
        self,
        store: Store,
        buckets: MountBuckets,
        ordering: ClusterOrdering,
        ring: Callable[[], None],
    ) -> None:
        self._store = store
        self._buckets = buckets
        self._ordering = ordering
        self._ring = ring

    def settle(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Do as ``settle`` of a request's header says about its ``key`` of the mount ``run``.

        ``ours``: the version in conflict replaces what is there by now. ``theirs``: it is dropped.
        Who waited for it to be durable heard of the conflict when it arose.
        ``release``: a marker waits no more for other nodes. Returns ``key``, and of a conflict
        ``replaces``, the bucket's ETag of what is there; empty for nothing.

        Raises:
            InvalidRequestError: It says nothing of the kind.
            NotFoundError: Nobody has to decide about this key.
            RemoteError: The bucket cannot say what is there; nothing changed.
        """
        mount, key, what = wish.get("run"), wish.get("key"), wish.get("settle")
        if not isinstance(mount, str) or not isinstance(key, str):
            raise InvalidRequestError(f"{shown(key)} is no key of a mount")
        if what == "release":
            self._ordering.release(mount, key)
            return {"key": key}
        if what not in ("ours", "theirs"):
            raise InvalidRequestError(
                f"cannot keep {shown(what)}", hint="Name one of: ours, theirs."
            )
        return {"key": key, "replaces": self._keep(mount, key, ours=what == "ours")}

    def _keep(self, mount: str, key: str, *, ours: bool) -> str:
        run = f"{MOUNT_MARK}{mount}"
        version = self._store.read(objects.conflict_of, run, key)
        if version is None:
            raise NotFoundError(f"no object {key} of mount {mount} is in conflict", name=key)
        bucket = self._buckets.of(run).objects
        try:
            info = bucket.head(key)
        except RemoteRefusedError:  # as it refuses a key that it does not take: ours may still go
            if ours:
                raise
            info = None
        there = info.etag if info is not None else ""
        if ours:
            base = there or WHATEVER_IS_THERE  # it may say that something is there all the same
            self._store.write(objects.keep_ours, version.version, base)
        else:
            removed = self._store.write(objects.keep_theirs, version.version, there)
            self._store.drop(removed)
        self._ring()
        return there
