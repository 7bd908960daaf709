"""The buckets under the mounts of the S3 door: opened once, under the service's credentials."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from cachetier.errors import RemoteRefusedError
from cachetier.model.objects import Mount
from cachetier.remote.bucket import Bucket
from cachetier.remote.store_clock import StoreClock


class MountBuckets:
    """Opens the buckets of ``mounts``. Thread-safe."""

    def __init__(
        self,
        mounts: Sequence[Mount],
        open_bucket: Callable[[str], Bucket],
        store_clock: StoreClock | None = None,
    ) -> None:
        """Open nothing yet; ``open_bucket`` gets a bucket's name, of the store of the clock."""
        self.store_clock = store_clock or StoreClock()
        self.mounts = tuple(mounts)
        self._by_run = {mount.run: mount for mount in mounts}
        self._open_bucket = open_bucket
        self._lock = threading.Lock()
        self._opened: dict[str, Bucket] = {}

    def mount(self, run: str) -> Mount:
        """Return the mount that the catalog calls ``run``.

        Raises:
            RemoteRefusedError: The settings do not name it any more.
        """
        mount = self._by_run.get(run)
        if mount is None:
            raise RemoteRefusedError(
                f"no [[s3_mount]] is {run}",
                hint="Add that [[s3_mount]] again: its objects on this node need it.",
            )
        return mount

    def of(self, run: str) -> Bucket:
        """Return the bucket of a mount; raises as ``mount``."""
        mount = self.mount(run)
        with self._lock:
            if mount.bucket not in self._opened:
                self._opened[mount.bucket] = self._open_bucket(mount.bucket)
            return self._opened[mount.bucket]
