"""Complete the pending seals of clients that went straight to the bucket meanwhile.

A client whose part of a save lies partly here and partly, put directly, in the bucket cannot seal
it. It leaves a *pending seal* beside the parts: which shards are in the bucket, and which it knows
to be here. This thread looks for one wherever a part is not sealed here: at the start, when a
client says that it went past us, and from time to time. It takes the shards in the bucket over,
evicted here from birth, and seals; the drain then does the rest, as for any part. Where a client
has sealed such a part by itself, what it wrote counts, not what is left of it here.

A pending seal that names a shard which is not here is another node's, or of a cache that was lost.

Source: docs/guarantees.md; docs/design/0012-fallback.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from cachetier_client.bucket_format.documents import PendingSeal, ShardEntry, decode, read_part
from cachetier_client.bucket_format.stored import Codec, Stored
from cachetier_client.clock import Clock
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import from_hex

from cachetier.errors import CachetierError, IntegrityError, ObjectMissingError, RemoteError
from cachetier.local.catalog import copies, parts, shards
from cachetier.local.catalog.rows import NewShard
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.names import DURABLE
from cachetier.remote.bucket import Bucket
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 15.0
LONGEST_PAUSE_SECONDS = 300.0

Rank = tuple[int, int]  # the number of its save, and the rank


class PendingSeals:
    """Looks for pending seals, and completes them."""

    def __init__(
        self,
        store: Store,
        bucket: Bucket,
        clock: Clock,
        *,
        on_sealed: Callable[[], object] = lambda: None,
        remote: str = DURABLE,
    ) -> None:
        """Seals of one bucket, ``remote`` in rows; ``on_sealed`` is called after each part."""
        self._store = store
        self._bucket = bucket
        self._clock = clock
        self._on_sealed = on_sealed
        self._remote = remote
        self._due: dict[Rank, tuple[float, float]] = {}
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="pending-seals", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End the thread; one that hangs in the remote is left to die with the process."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def look_soon(self) -> None:
        """Look at every part again now: a client was past us."""
        self._due.clear()
        self._wake.set()

    def look(self) -> int:
        """Look where it is due, and complete what is found; return how many parts were sealed."""
        now, sealed = self._clock.monotonic(), 0
        found = self._store.read(parts.unsealed_parts)
        known = {(save.number, rank) for save, rank in found}
        self._due = {rank: due for rank, due in list(self._due.items()) if rank in known}
        for save, rank in found:
            if self._stopping:
                break
            at, pause = self._due.get((save.number, rank), (now, FIRST_PAUSE_SECONDS))
            if at > now:
                continue
            longer = min(2 * pause, LONGEST_PAUSE_SECONDS)
            self._due[save.number, rank] = (now + pause, longer)
            if self._complete(save, rank):
                sealed += 1
        return sealed

    def tidy(self) -> None:
        """Remove pending seals of parts that are sealed: a crash came between seal and removal."""
        for save, rank in self._store.read(parts.sealed_parts):
            if save.location is None:
                continue
            key = self._bucket.layout.pending_key(save.run, save.location, rank)
            with suppress(RemoteError):
                if self._bucket.objects.head(key) is not None:
                    self._bucket.objects.delete(key)

    def _work(self) -> None:
        try:
            self.tidy()
        except Exception as error:
            tell(log, events.PENDING_SEALS_LEFT, error=error)
        while not self._stopping:
            try:
                self.look()
            except Exception as error:
                tell(log, events.PENDING_SEALS_FAILED, error=error)
            self._wake.wait(FIRST_PAUSE_SECONDS)
            self._wake.clear()

    # --- one part --------------------------------------------------------------------------------

    def _complete(self, save: Save, rank: int) -> bool:
        try:
            location = save.location
            if location is None:
                seen = self._bucket.manifest(save.run, save.step)
                if seen is None or seen.manifest.save_id != save.save_id:
                    return False
                location = seen.manifest.location
            if self._follow_document(save, location, rank):
                return True
            key = self._bucket.layout.pending_key(save.run, location, rank)
            body = self._get(key)
            if body is None:
                return False
            pending = decode(PendingSeal, body, key)
            ids = _ids_of(pending, save, rank, key)
            if not self._holds(save, pending) or not self._has_all(save, location, pending):
                return False
            self._seal(ids, pending, save, location)
            self._bucket.objects.delete(key)
        except RemoteError as error:
            tell(log, events.PENDING_SEAL_LATER, reason=error.message)
            return False
        except CachetierError as error:
            tell(log, events.PENDING_SEAL_REFUSED, rank=rank, reason=error.message, **of(save))
            return False
        return True

    def _follow_document(self, save: Save, location: str, rank: int) -> bool:
        """Make the part what its document in the bucket says, if it has one; return whether so.

        A client has then sealed past us a part of which we have shards: of a put whose answer it
        never got, or of a try that it gave up. What the document does not name goes.
        """
        key = self._bucket.layout.part_key(save.run, location, rank)
        body = self._get(key)
        if body is None:
            return False
        part, _ = read_part(body, save.run, rank, key)
        if any(shard.codec is not Codec.RAW or shard.pack is not None for shard in part.shards):
            return False  # a drain's, of an earlier life of this cache
        sealed = PendingSeal(
            run=part.run,
            step=part.step,
            rank=part.rank,
            world_size=part.world_size,
            save_id=part.save_id,
            overwrite=save.overwrite,
            ranks_on_node=None,
            shards=part.shards,
            held=(),
        )
        ids = _ids_of(sealed, save, rank, key)
        if not self._has_all(save, location, sealed):
            return False
        named = {shard.name for shard in part.shards}
        here = self._store.read(shards.shards_of, save.number)
        given_up = [s.name for s in here if s.rank == rank and s.name not in named]
        if given_up:
            listed = ", ".join(sorted(given_up)[:5])
            tell(log, events.PART_TAKEN_BACK, rank=rank, names=listed, **of(save))
            self._store.drop(self._store.write(parts.take_back, ids, given_up))
        self._seal(ids, sealed, save, location)
        return True

    def _get(self, key: str) -> bytes | None:
        try:
            return self._bucket.objects.get(key)
        except ObjectMissingError:
            return None

    def _holds(self, save: Save, pending: PendingSeal) -> bool:
        """Return whether all that the client knows to be here is."""
        for held in pending.held:
            shard = self._store.read(shards.shard_named, save.number, held.name)
            described = (held.size_bytes, from_hex(held.digest))
            if (
                shard is None
                or shard.rank != pending.rank
                or (shard.content.size_bytes, shard.content.digest) != described
            ):
                tell(log, events.PART_WAITS, rank=pending.rank, name=held.name, **of(save))
                return False
        return True

    def _has_all(self, save: Save, location: str, pending: PendingSeal) -> bool:
        """Return whether the shards that went directly are in the bucket as they were verified."""
        for entry in pending.shards:
            key = self._bucket.layout.shard_key(save.run, location, entry.name)
            digest, stored = entry.content().digest, entry.stored()
            if not self._bucket.has(key, save.save_id, digest, stored):
                tell(log, events.PENDING_SEAL_UNSOUND, key=key)
                return False
        return True

    def _seal(self, ids: SaveIds, pending: PendingSeal, save: Save, location: str) -> None:
        # What is nowhere but in the bucket must be found there before the drain has claimed, too.
        self._store.write(copies.record_location, save.number, location)
        for entry in pending.shards:
            self._take_over(ids, entry)
        self._store.write(
            parts.seal,
            self._store.policy,
            ids,
            pending.ranks_on_node,
            self._clock.now(),
            follows=pending.follows,
        )
        tell(log, events.PART_MENDED, rank=ids.rank, shards=len(pending.shards), **of(ids))
        self._on_sealed()

    def _take_over(self, ids: SaveIds, entry: ShardEntry) -> None:
        store, now, remote = self._store, self._clock.now(), self._remote
        content = entry.content()
        new = NewShard.at_remote(remote, entry.name, entry.rank, content, entry.known_facts())
        taken = store.write(parts.commit_remote, store.policy, ids, new, now, replaces=True)
        store.drop(taken.replaced)
        if taken.repeated:
            version, stored = taken.shard.version, Stored.raw(content)
            store.write(copies.record_verified, version, remote, [remote], now, stored)


def _ids_of(pending: PendingSeal, save: Save, rank: int, key: str) -> SaveIds:
    """Return who seals; a lie in the bucket is an IntegrityError."""
    known = (save.run, save.step, save.save_id, save.world_size, rank)
    claimed = (pending.run, pending.step, pending.save_id, pending.world_size, pending.rank)
    if known != claimed:
        raise IntegrityError(f"{key} is the pending seal of another part: {claimed}")
    for entry in pending.shards:
        if entry.codec is not Codec.RAW or entry.rank != rank or entry.pack is not None:
            raise IntegrityError(f"{key} describes {entry.name} in a form that no client writes")
        try:
            entry.content().checked()
        except CachetierError as error:
            raise IntegrityError(f"{key} is wrong about {entry.name}: {error.message}") from None
    ids = (save.run, save.step, save.save_id, rank, save.world_size, pending.overwrite)
    return SaveIds(*ids)
