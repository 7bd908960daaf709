"""Put the objects of the mounts together: room and shares as shards have them, order, and reads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from cachetier_client.clock import Clock
from cachetier_client.units import counted

from cachetier.errors import CachetierError, RemoteRefusedError
from cachetier.ingest.admission import Admission
from cachetier.ingest.shares import Shares
from cachetier.local.catalog import objects
from cachetier.local.catalog.objects import InBucket
from cachetier.local.store import Store
from cachetier.model.objects import Mount
from cachetier.notifier import Changes
from cachetier.objects.base import ReadableObjects
from cachetier.objects.cluster import ClusterOrdering
from cachetier.objects.foreign import in_bucket
from cachetier.objects.intake import ObjectIntake
from cachetier.objects.puts import ObjectPuts
from cachetier.objects.reads import ObjectReads
from cachetier.objects.uploads import ObjectUploads
from cachetier.remote.base import ObjectStore
from cachetier.remote.mounted import MountBuckets
from cachetier.restore.mounted import MountedObjects
from cachetier.restore.restore import Restore


class NodeObjects:
    """``Objects`` of ``mounts``; each call is that of the part that knows it."""

    def __init__(
        self,
        mounts: Sequence[Mount],
        intake: ObjectIntake,
        puts: ObjectPuts,
        uploads: ObjectUploads,
        reads: ReadableObjects,
    ) -> None:
        self.mounts = tuple(mounts)
        self.begin, self.extend, self.abort = intake.begin, intake.extend, intake.abort
        self.watermark, self.wait = puts.watermark, puts.wait
        self.commit, self.delete = puts.commit, puts.delete
        self.create_upload, self.abort_upload = uploads.create_upload, uploads.abort_upload
        self.commit_part, self.complete_upload = uploads.commit_part, uploads.complete_upload
        self.upload, self.parts, self.uploads = uploads.upload, uploads.parts, uploads.uploads
        self.expire_uploads = uploads.expire
        self.head, self.open, self.open_piece = reads.head, reads.open, reads.open_piece
        self.list = reads.list


def ordering_of(
    buckets: MountBuckets, store: Store, changes: Changes, clock: Clock
) -> ClusterOrdering:
    """Return what knows the order across nodes, of the mounts that ask for one."""

    def opened(bucket: str) -> ObjectStore:
        for mount in buckets.mounts:
            if mount.bucket == bucket:
                return buckets.of(mount.run).objects
        raise RemoteRefusedError(f"no mount is in bucket {bucket}")

    return ClusterOrdering(buckets.mounts, opened, store, clock, changes.ring)


def objects_of(  # noqa: PLR0913 - what they are put together of
    mounted: MountedObjects,
    store: Store,
    restore: Restore,
    ordering: ClusterOrdering,
    *,
    admission: Admission,
    shares: Shares,
    changes: Changes,
    clock: Clock,
    hurry: Callable[[str, None], None],
) -> NodeObjects:
    """Return the objects of all mounts; ``hurry`` has the drain bring one first."""

    def look(mount: Mount, key: str) -> InBucket:
        info = mounted.look(mount.run, key)
        return InBucket() if info is None else in_bucket(info)

    store_clock = mounted.buckets.store_clock
    intake = ObjectIntake(store, admission, shares, changes, clock, store_clock)
    puts = ObjectPuts(intake, ordering, look, hurry)
    uploads = ObjectUploads(intake, ordering, puts)
    reads = ObjectReads(store, restore, mounted, restore.link, clock)
    return NodeObjects(mounted.buckets.mounts, intake, puts, uploads, reads)


def ask_time_of(bucket: ObjectStore) -> None:
    """Ask the store for its time, which its answers tell: the first put has to be stamped.

    Nobody waits for it, as the store may be away.
    """

    def ask() -> None:
        with suppress(CachetierError):
            bucket.check()

    threading.Thread(target=ask, name="store-time", daemon=True).start()


def unmounted_warnings(store: Store, mounts: Sequence[Mount]) -> list[str]:
    """Return what to say of objects that wait here for a mount that the settings have no more.

    While a service runs that stays as it is: nothing is put there, nor drained.
    """
    known = {mount.run for mount in mounts}
    waiting = (
        (run, len(store.look(objects.unshown_versions, save)))
        for run, save in store.look(objects.mount_saves).items()
        if run not in known
    )
    return [
        f"{counted(number, 'object')} of {run} cannot go to the bucket: no [[s3_mount]] has the "
        "name any more; set it again"
        for run, number in waiting
        if number
    ]
