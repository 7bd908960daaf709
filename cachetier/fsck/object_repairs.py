"""Repair the objects of shards at the remotes, and the catalog's rows about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from cachetier_client.bucket_format.stored import Codec, Content, Stored
from cachetier_client.bucket_format.uploads import (
    SAVE_KEY,
    UploadPartRange,
    is_object_of,
    object_metadata,
)
from cachetier_client.io.digests import digest_of

from cachetier.carriers.checked_file import DamagedError
from cachetier.drain.messages import LocalShard
from cachetier.drain.upload.buffers import Buffers
from cachetier.drain.upload.journal import Journal
from cachetier.drain.upload.source import InlineSource, Lend, ShardSource, opened_source
from cachetier.drain.upload.target import ConflictError, UploadTarget, VerifiedObject, is_verified
from cachetier.drain.upload.uploader import Span, Upload, UploadContext
from cachetier.errors import CachetierError
from cachetier.fsck.catalog_lookup import CatalogLookup
from cachetier.fsck.findings import Finding, FindingKind, LeftError, Repair
from cachetier.fsck.local import LocalRepairs, doubtful_copies
from cachetier.fsck.remote_index import RemoteIndex
from cachetier.local.catalog import copies
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard
from cachetier.remote.base import IF_ABSENT, Condition, ObjectStore, if_match, pieces_of
from cachetier.remote.bucket import Remote

ANOTHERS = "another node put it: run fsck --repair there"
RIGHT = "its row is as it should be"


class CannotResendError(LeftError):
    """The bytes here do not make the object that is described."""


class _AsDescribed(UploadTarget):
    """An object that documents speak of: it goes over whatever else its save has under its key."""

    def look(
        self,
        store: ObjectStore,
        lend: Lend,
        _sent: Stored | None = None,
        _answered: str | None = None,
    ) -> VerifiedObject | Condition:
        raw, info = Stored.raw(self.content), store.head(self.key)
        if info is None:
            return IF_ABSENT
        save_id = self.metadata[SAVE_KEY]
        if info.metadata.get(SAVE_KEY) != save_id:
            raise CannotResendError(f"{self.key} is somebody else's object")
        described = is_object_of(info, save_id, raw.digest, raw)
        if described and is_verified(store, info, raw.size_bytes, raw.digest, lend):
            return VerifiedObject(info.etag, raw)
        return if_match(info.etag)


class ObjectRepairs:
    """Mends objects of one store at its remotes, and the rows that are wrong about them."""

    def __init__(
        self, store: Store, lookup: CatalogLookup, remote_index: RemoteIndex, local: LocalRepairs
    ) -> None:
        self._store = store
        self._lookup = lookup
        self._remote_index = remote_index
        self._local = local
        bring_there = Repair("bring it there again", self.bring_there)
        self.repairs: Mapping[FindingKind, Repair] = {
            FindingKind.OBJECT_MISSING: bring_there,
            FindingKind.OBJECT_DIFFERS: bring_there,
            FindingKind.UPLOAD_STALE: Repair("abort the upload", self.abort_upload),
        }

    def bring_there(self, finding: Finding) -> str:
        """Bring an object to its remote again that is missing there, or is another one."""
        remote = self._lookup.remote(finding.remote)
        if not finding.version:
            raise LeftError(ANOTHERS)
        shard, save = self._lookup.shard(finding.version), self._lookup.save(finding)
        described = self._lookup.at(remote.name).is_described(save, shard.rank)
        if finding.kind is FindingKind.OBJECT_MISSING and not described:
            return self._all_dirty_again(shard, save, remote)
        try:
            return self._as_described(shard, save, remote)
        except CannotResendError:
            raise
        except LeftError:
            if any(part.rank == shard.rank for part in self._lookup.at(remote.name).parts(save)):
                raise
            raise LeftError(ANOTHERS) from None  # what was read here of it does not suffice

    def put_right(self, finding: Finding) -> str:
        """Put a row right that says what cannot be."""
        save, row = self._lookup.save(finding), self._lookup.row(finding.version)
        outcome, doubtful = RIGHT, doubtful_copies(row, self._lookup.shard(finding.version))
        for name in [finding.remote] if finding.remote is not None else doubtful:
            outcome = self._copy_put_right(self._lookup.shard(finding.version), save, name)
        return self._bytes_put_right(self._lookup.shard(finding.version), outcome)

    def abort_upload(self, finding: Finding) -> str:
        """Abort a multipart upload, which its finding names."""
        assert finding.key is not None
        assert finding.file_id is not None
        objects = self._lookup.remote(finding.remote).bucket.objects
        objects.abort_upload(finding.key, finding.file_id)
        return "aborted"

    # --- rows ------------------------------------------------------------------------------------

    def _copy_put_right(self, shard: Shard, save: Save, name: str) -> str:
        """Find out how a remote stores a shard, where the catalog says what cannot be."""
        if self._lookup.at(name).is_described(save, shard.rank):
            return self._as_described(shard, save, self._lookup.remote(name))
        if shard.state is not ShardState.EVICTED:
            return self._dirty_again(shard, name)
        if self._lookup.at(name).location(save) is None:
            return RIGHT
        if not self._remote_index.learn(shard, save, self._lookup.remote(name)):
            raise LeftError("nothing records how it was stored: save the step again")
        return "the object is there: the catalog records again how it is stored"

    def _bytes_put_right(self, shard: Shard, outcome: str) -> str:
        row = self._lookup.row(shard.version)
        if shard.state is ShardState.EVICTED and not shard.here:
            if not row.remotes:
                raise LeftError("no copy is left anywhere: delete the step")
            return outcome
        if shard.state is ShardState.EVICTED and not self._local.is_elsewhere(shard):
            raise LeftError("no remote says that it has it: its bytes here stay as they are")
        wrong = (
            shard.state is ShardState.EVICTED or not shard.here or not self._local.are_there(shard)
        )
        return self._local.take_out_of_use(shard) if wrong else outcome

    # --- objects ---------------------------------------------------------------------------------

    def _as_described(self, shard: Shard, save: Save, remote: Remote) -> str:
        """See to it that a remote holds a shard as its documents say, and that its row says so."""
        location = self._lookup.at(remote.name).location(save)
        stored = self._remote_index.stored(shard, save, remote)
        if stored is None or location is None:
            raise LeftError("nothing records how it was stored: save the step again")
        if self._remote_index.learn(shard, save, remote):
            return "the object is there, as the step says: the catalog was wrong, and is right now"
        key = remote.bucket.layout.object_key(save.run, location, shard.name, stored.pack_name)
        shards = self._remote_index.together(shard, save, remote, stored)
        sound = [self._local.made_sound(each) for each in shards]
        self._resend(sound, stored, remote, key)
        for each in sound:
            self._remote_index.remember(each, remote, self._stored(each, save, remote, stored))
        return f"sent to {remote.name} as it was"

    def _stored(self, shard: Shard, save: Save, remote: Remote, stored: Stored) -> Stored:
        if stored.pack is None:
            return stored
        own = self._remote_index.stored(shard, save, remote)
        return own if own is not None else stored

    def _all_dirty_again(self, shard: Shard, save: Save, remote: Remote) -> str:
        """Let the drain send a shard again, of a packed one all that were in its pack."""
        stored = self._remote_index.stored(shard, save, remote)
        shards = [shard]
        if stored is not None:
            shards = self._remote_index.together(shard, save, remote, stored)
        outcome, lost = "", []
        for each in shards:
            try:
                outcome = self._dirty_again(self._local.made_sound(each), remote.name)
            except CachetierError as error:
                lost.append(f"{each.name}: {error.message}")
            except LeftError as error:
                lost.append(f"{each.name}: {error}")
        if lost:
            raise LeftError("; ".join(lost))
        others = len(shards) - 1
        return outcome if not others else f"{outcome}, and the {others} others of its pack"

    def _dirty_again(self, shard: Shard, remote: str) -> str:
        state = self._store.write(copies.record_lost, shard.version, remote)
        if state is ShardState.DIRTY:
            return "it is dirty again: the drain sends it"
        return f"the drain sends it to {remote} again"

    # --- sending again ---------------------------------------------------------------------------

    def _resend(self, shards: Sequence[Shard], stored: Stored, remote: Remote, key: str) -> None:
        """Put the object of a shard (or the pack of several) back, exactly as documents say.

        What a part document names may not change any more, so another way of storing the same
        shard would not do. An object that is somebody else's is left alone.

        Args:
            shards: Whose bytes are here; of a pack all that it held, in the order of its bytes.
            stored: As what the remote held one of them.
            remote: Where to.
            key: The object's.

        Raises:
            CannotResendError: It was compressed, its bytes are not all here, or not sound.
            RemoteError: The remote does not take it.
        """
        first, journal = shards[0], Journal()
        context = UploadContext(remote.bucket.objects, Buffers())
        if stored.pack is not None:
            version, content = 0, Content(stored.pack.size_bytes, stored.pack.digest, ())
            span = Span(content.size_bytes, partial(self._opened_pack, shards, content, context))
        elif stored.codec is Codec.RAW:
            version, content = first.version, first.content
            span = Span(content.size_bytes, partial(self._opened, first))
        else:
            raise CannotResendError("it was stored compressed: save the step again to replace it")
        metadata = object_metadata(first.save_id, self._store.store_id, version, content)
        upload = Upload(context, _AsDescribed(key, metadata, content), [span], journal)
        try:
            upload.put() if stored.pack is not None else upload.send()
        except Exception as error:
            if journal.record.upload_id is not None:
                context.store.abort_upload(key, journal.record.upload_id)
            if isinstance(error, ConflictError):
                raise CannotResendError(str(error)) from error
            raise

    @contextmanager
    def _opened_pack(
        self, shards: Sequence[Shard], content: Content, context: UploadContext
    ) -> Iterator[ShardSource]:
        """Lend the bytes of several shards in a row, which have to be ``content``."""
        joined = bytearray()
        for shard in shards:
            whole = UploadPartRange(1, 0, shard.content.size_bytes)
            with (
                self._opened(shard) as source,
                context.body(source, whole, whole.size_bytes) as (body, _),
            ):
                for piece in pieces_of(body):
                    joined += piece
        if (len(joined), digest_of(joined)) != (content.size_bytes, content.digest):
            raise CannotResendError("other shards of its pack are not here")
        yield InlineSource(joined, content.digest)

    @contextmanager
    def _opened(self, shard: Shard) -> Iterator[ShardSource]:
        """Lend the local bytes of a shard, which are checked as they are read."""
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            copy = None
        if copy is None:
            raise CannotResendError(f"the bytes of {shard.name} are not here")
        content = shard.content
        opened = LocalShard(copy.body, content.block_digests, copy.descriptor)
        try:
            with opened_source(opened, content.digest) as source:
                yield source
        except DamagedError as error:
            raise CannotResendError(f"the bytes of {shard.name} here are damaged") from error
