"""Send a shard straight to the remote, when the cache is full of bytes that only this node has.

The blocks are uploaded as they come, from memory of one part for each stream, and the shard is
acknowledged once it is verified remotely: its row is evicted from birth. A shard that is committed
already is never replaced this way, so nothing acknowledged is overwritten remotely.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

from cachetier_client.bucket_format.stored import NO_FACTS, Content, ShardFacts
from cachetier_client.bucket_format.uploads import (
    DIGEST_KEY,
    PART_LIMIT,
    object_metadata,
    store_identity,
    upload_part_bytes_for,
)
from cachetier_client.clock import Clock
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.drain.publish.publisher import Ended, Publisher
from cachetier.drain.schedule.queue_state import QueueState
from cachetier.drain.upload.buffers import Buffers
from cachetier.drain.upload.journal import Journal
from cachetier.drain.upload.source import InlineSource
from cachetier.drain.upload.target import (
    ConflictError,
    StrayObjectError,
    UploadTarget,
    abort_replaced,
)
from cachetier.drain.upload.uploader import Span, Upload, UploadContext, Uploader
from cachetier.errors import (
    BackpressureError,
    CachetierError,
    DigestMismatchError,
    InvalidRequestError,
    RemoteDigestError,
    RemoteError,
    RemoteRefusedError,
    SizeMismatchError,
    StepPublishedError,
)
from cachetier.ingest.ingest import RemoteStage
from cachetier.local.catalog import copies, notes, parts, saves, shards, uploads
from cachetier.local.catalog.rows import NewShard
from cachetier.local.store import Store
from cachetier.model.checkpoint import END_ERRORS, Save, claimant_of
from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Bucket

STREAMS = 4
PATIENCE_SECONDS = 30.0


class WriteThrough:
    """Opens streams to the remote; ``open`` is an ``OpenRemoteStage``. Thread-safe.

    Args:
        store: Where the shards are recorded.
        bucket: Where their bytes go.
        queue: The drain's, to keep it off what is being written.
        clock: For the rows.
        remote: What the catalog calls ``bucket``.
        on_drained: Told the size of each shard that is verified there.
    """

    def __init__(
        self,
        store: Store,
        bucket: Bucket,
        queue: QueueState,
        clock: Clock,
        *,
        remote: str,
        on_drained: Callable[[int], None] = lambda _size_bytes: None,
    ) -> None:
        self.store = store
        self.bucket = bucket
        self.clock = clock
        self.remote = remote
        self.on_drained = on_drained
        self._queue = queue
        self._publisher = Publisher(bucket, clock)
        self._slots = threading.Semaphore(STREAMS)
        self.context = UploadContext(bucket.objects, Buffers())

    def open(self, ids: SaveIds, name: str, size_bytes: int | None) -> RemoteStage:
        """Begin to send one shard; ``size_bytes`` None when its size is not known yet.

        Raises:
            BackpressureError: The remote cannot be reached, or has enough streams already.
            RemoteRefusedError: A person has to mend the remote.
            SaveSupersededError, StepPublishedError, AbortedError: The save has no future.
        """
        save = self.store.write(parts.admit, self.store.policy, ids, self.clock.now())
        existing = self.store.read(shards.shard_named, save.number, name)
        if existing is not None:
            return _Repeat(existing)
        with ExitStack() as held:
            held.enter_context(self._slot())
            with _as_backpressure():
                location = self._location(save, ids)
            self._queue.hold(save.number, name, PATIENCE_SECONDS)
            held.callback(self._queue.release, save.number, name)
            key = self.bucket.layout.shard_key(ids.run, location, name)
            with _as_backpressure():
                replaced = self.store.read(uploads.replaced_by, save.number, name, self.remote)
                abort_replaced(self.bucket.objects, key, replaced.uploads)
            version = self.store.write(parts.reserve_version)
            target = partial(self._target, save, location, ids.rank, name, version)
            return _Stream(self, ids, name, target, size_bytes, held.pop_all())

    def _target(
        self, save: Save, location: str, rank: int, name: str, version: int, content: Content
    ) -> UploadTarget:
        """Return what is to lie there; only what was replaced here is replaced there."""
        which = claimant_of(save), location, rank, name, content.digest
        return UploadTarget(
            self.bucket.layout.shard_key(save.run, location, name),
            object_metadata(save.save_id, self._identity(), version, content),
            content,
            replaced=self.store.read(uploads.replaced_by, save.number, name, self.remote),
            is_fixed=partial(self._publisher.is_fixed, *which),
        )

    def _identity(self) -> str:
        epoch = self.store.read(notes.own_claim, self.remote).epoch
        return store_identity(self.store.store_id, epoch)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if not self._slots.acquire(timeout=PATIENCE_SECONDS):
            raise BackpressureError(f"{STREAMS} shards are on their way to the remote already")
        try:
            yield
        finally:
            self._slots.release()

    def _location(self, save: Save, ids: SaveIds) -> str:
        if save.location is not None:
            return save.location
        claimed = self._publisher.claim(self.store.read(saves.claimant, save))
        if isinstance(claimed, Ended):
            outcome = save.number, claimed.state, None, self.clock.now()
            write, policy = copies.record_outcome, self.store.policy
            self.store.drop(self.store.write(write, policy, *outcome))
            raise _ended(claimed, ids)
        if claimed.published:
            raise StepPublishedError(f"step {ids.step} is published already", **ids.context)
        self.store.write(copies.record_location, save.number, claimed.location)
        return claimed.location


class _Repeat:
    """A put of a name that is committed already: the same bytes, or they have to wait for room."""

    begun_at = 0.0

    def __init__(self, existing: Shard) -> None:
        self._existing = existing
        self._digests = _Digests()

    def write(self, block: bytes | bytearray | memoryview) -> None:
        self._digests.add(memoryview(block))

    def commit(self, content: Content, _facts: ShardFacts = NO_FACTS) -> Shard:
        self._digests.check(content)
        shard = self._existing
        remotely = shard.state in (ShardState.CLEAN, ShardState.EVICTED)
        if shard.content != content or not remotely:
            raise BackpressureError(
                f"shard {shard.name} can only be replaced once there is room", **shard.context
            )
        return shard

    def abort(self) -> None:
        """Nothing was sent."""


class _Stream:
    """One shard on its way. Used by one thread at a time."""

    begun_at = 0.0

    def __init__(
        self,
        through: WriteThrough,
        ids: SaveIds,
        name: str,
        target: Callable[[Content], UploadTarget],
        size_bytes: int | None,
        held: ExitStack,
    ) -> None:
        self._through = through
        self._ids = ids
        self._name = name
        self._target = target
        self._held = held
        self._buffer = memoryview(bytearray(upload_part_bytes_for(size_bytes or 0)))
        self._filled_bytes = 0
        self._digests = _Digests()
        self._journal = Journal()
        self._upload: Upload | None = None  # in parts, once it was begun
        self._may_be_there = False

    def write(self, block: bytes | bytearray | memoryview) -> None:
        rest = memoryview(block)
        while rest:
            if self._filled_bytes == len(self._buffer):
                with _as_backpressure():
                    self._send_part(self._begun())
            piece = rest[: len(self._buffer) - self._filled_bytes]
            self._buffer[self._filled_bytes : self._filled_bytes + len(piece)] = piece
            self._filled_bytes += len(piece)
            self._digests.add(piece)
            rest = rest[len(piece) :]

    def commit(self, content: Content, facts: ShardFacts = NO_FACTS) -> Shard:
        """Finish the object, verify it remotely, and record the shard; on error nothing is kept."""
        try:
            self._digests.check(content)
            with _as_backpressure():
                self._finish(content)
            through = self._through
            store, now = through.store, through.clock.now()
            new = NewShard.at_remote(through.remote, self._name, self._ids.rank, content, facts)
            committed = store.write(parts.commit_remote, store.policy, self._ids, new, now)
        except BaseException:
            self.abort()
            raise
        self._held.close()
        through.on_drained(content.size_bytes)
        return committed.shard

    def abort(self) -> None:
        """Leave nothing behind remotely; what the remote will not remove now goes at publishing."""
        with self._held, suppress(RemoteError):
            if self._may_be_there:
                self._may_be_there = False
                target = self._target(Content(0, 0, ()))
                uploader = Uploader(self._through.context)
                uploader.clear_away(target, self._journal.record.upload_id)

    # --- sending ---------------------------------------------------------------------------------

    def _finish(self, content: Content) -> None:
        target, journal, context = self._target(content), self._journal, self._through.context
        self._may_be_there = True
        if self._upload is None:
            body = self._buffer[: self._filled_bytes]
            span = Span.of(content.size_bytes, InlineSource(body, content.digest))
            Upload(context, target, [span]).put()
            return
        self._send_part(self._upload)
        if Upload(context, target, (), journal).complete(journal.parts()) is None:
            raise RemoteDigestError(
                f"the store returns other bytes for {target.key} than were sent", key=target.key
            )

    def _begun(self) -> Upload:
        if self._upload is None:
            target = self._target(Content(0, 0, ()))
            metadata = dict(target.metadata)
            del metadata[DIGEST_KEY]  # nobody knows it yet
            target = replace(target, metadata=metadata)
            upload = Upload(self._through.context, target, (), self._journal)
            upload.begin()
            self._upload, self._may_be_there = upload, True
        return self._upload

    def _send_part(self, upload: Upload) -> None:
        number = len(self._journal.parts()) + 1
        if number > PART_LIMIT:
            raise InvalidRequestError(
                f"a stream of unknown size has at most {PART_LIMIT * len(self._buffer)} bytes",
                hint="Declare the size up front.",
            )
        view = self._buffer[: self._filled_bytes]
        self._journal.part_done(upload.send_part(number, view, digest_of(view)))
        self._filled_bytes = 0


class _Digests:
    """Digests of the blocks as they come, to hold against what the rank declares."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._blocks: list[int] = []

    def add(self, data: memoryview) -> None:
        while data:
            reached = self._size_bytes % BLOCK_BYTES
            piece = data[: BLOCK_BYTES - reached]
            if reached:
                self._blocks[-1] = digest_of(piece, self._blocks[-1])
            else:
                self._blocks.append(digest_of(piece))
            self._size_bytes += len(piece)
            data = data[len(piece) :]

    def check(self, content: Content) -> None:
        """Refuse ``content`` if it does not describe what came."""
        if content.size_bytes != self._size_bytes:
            raise SizeMismatchError(
                f"{content.size_bytes} bytes were declared, {self._size_bytes} came"
            )
        if content.block_digests != tuple(self._blocks):
            raise DigestMismatchError("the bytes that came do not have the declared digests")


@contextmanager
def _as_backpressure() -> Iterator[None]:
    """A remote that is away is no room: the caller may come again, unless a person has to act."""
    try:
        yield
    except StrayObjectError as error:
        raise BackpressureError(
            "the cache is full, and the remote holds other bytes under the key of the shard"
        ) from error
    except ConflictError as error:
        raise RemoteRefusedError(
            str(error),
            hint="Move the foreign object away, unless a manifest names it, and save again.",
        ) from error
    except RemoteRefusedError:
        raise
    except RemoteError as error:
        raise BackpressureError(
            f"the cache is full, and the remote does not take the shard: {error.message}"
        ) from error


def _ended(ended: Ended, ids: SaveIds) -> CachetierError:
    message = ended.message or f"save {ids.save_id} of step {ids.step} is {ended.state}"
    return END_ERRORS[ended.state](message, **ids.context)
