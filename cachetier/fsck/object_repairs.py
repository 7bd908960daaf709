"""Repair the objects of shards at the remotes, and the catalog's rows about them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from cachetier_client.bucket_format.stored import Codec, Content, InPack, Stored
from cachetier_client.bucket_format.uploads import (
    SAVE_KEY,
    SINGLE_PUT_BYTES,
    UploadedPart,
    object_metadata,
    upload_part_bytes_for,
)
from cachetier_client.io.digests import digest_of

from cachetier.errors import CachetierError
from cachetier.fsck.catalog_lookup import CatalogLookup
from cachetier.fsck.findings import Finding, FindingKind, LeftError, Repair
from cachetier.fsck.local import LocalRepairs, doubtful_copies
from cachetier.fsck.remote_index import RemoteIndex
from cachetier.local.catalog import copies
from cachetier.local.local_copy import LocalCopy
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard
from cachetier.remote.base import IF_ABSENT, Condition, if_match
from cachetier.remote.bucket import Remote

ANOTHERS = "another node put it: run fsck --repair there"
RIGHT = "its row is as it should be"


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
            raise LeftError("nobody knows as what it was stored: save the step again")
        return "the object is there: the catalog knows again as what"

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
            raise LeftError("nobody knows as what it was stored: save the step again")
        if self._remote_index.learn(shard, save, remote):
            return "the object is there, as the step says: the catalog was wrong, and is right now"
        key = remote.bucket.layout.object_key(save.run, location, shard.name, stored.pack_name)
        shards = self._remote_index.together(shard, save, remote, stored)
        sound = [self._local.made_sound(each) for each in shards]
        Resender(self._store, remote).resend(sound, stored, key)
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


# --- sending again -------------------------------------------------------------------------------


class CannotResendError(LeftError):
    """The bytes here do not make the object that is described."""


class Resender:
    """Sends objects of one store to one remote again, exactly as the published documents say.

    What a part document names may not change any more, so another way of storing the same shard
    would not do. The local bytes are read and checked first; an object that is somebody else's is
    left alone.
    """

    def __init__(self, store: Store, remote: Remote) -> None:
        self._store = store
        self._remote = remote

    def resend(self, shards: Sequence[Shard], stored: Stored, key: str) -> None:
        """Put the object of a shard (or the pack of several) back, and see that it is there.

        Args:
            shards: Whose bytes are here; of a pack all that it held, in the order of its bytes.
            stored: As what the remote held one of them.
            key: The object's.

        Raises:
            CannotResendError: It was compressed, its bytes are not all here, or not sound.
            RemoteError: The remote does not take it.
        """
        condition = self._condition(shards[0], key)
        if stored.pack is not None:
            self._put_pack(shards, stored.pack, key, condition)
        elif stored.codec is not Codec.RAW:
            raise CannotResendError("it was stored compressed: save the step again to replace it")
        else:
            self._put_raw(shards[0], key, condition)
        expected = stored.pack or stored
        info = self._remote.bucket.objects.head(key)
        if info is None or info.size_bytes != expected.size_bytes:
            raise CannotResendError("it was sent, and is not there")
        if info.digest not in (None, expected.digest):
            raise CannotResendError("it was sent, and arrived as something else")

    def _condition(self, shard: Shard, key: str) -> Condition:
        found = self._remote.bucket.objects.head(key)
        if found is None:
            return IF_ABSENT
        if found.metadata.get(SAVE_KEY) != shard.save_id:
            raise CannotResendError(f"{key} is somebody else's object")
        return if_match(found.etag)

    def _put_raw(self, shard: Shard, key: str, condition: Condition) -> None:
        content = shard.content
        metadata = object_metadata(shard.save_id, self._store.store_id, shard.version, content)
        objects = self._remote.bucket.objects
        with self._opened(shard) as copy:
            if content.size_bytes <= SINGLE_PUT_BYTES:
                body = _read(copy, 0, content.size_bytes)
                objects.put(
                    key, body, digest=content.digest, metadata=metadata, condition=condition
                )
                return
            upload_id = objects.create_upload(key, metadata)
            try:
                parts = [
                    self._send_part(copy, key, upload_id, at) for at in _starts(content.size_bytes)
                ]
                objects.complete_upload(key, upload_id, parts, digest=content.digest)
            except CachetierError:
                objects.abort_upload(key, upload_id)
                raise

    def _send_part(self, copy: LocalCopy, key: str, upload_id: str, start: int) -> UploadedPart:
        size_bytes = copy.shard.content.size_bytes
        part_bytes = upload_part_bytes_for(size_bytes)
        body = _read(copy, start, min(part_bytes, size_bytes - start))
        return self._remote.bucket.objects.upload_part(
            key, upload_id, start // part_bytes + 1, body, digest=digest_of(body)
        )

    def _put_pack(
        self, shards: Sequence[Shard], pack: InPack, key: str, condition: Condition
    ) -> None:
        body = bytearray()
        for shard in shards:
            with self._opened(shard) as copy:
                body += _read(copy, 0, shard.content.size_bytes)
        digest = digest_of(body)
        if (len(body), digest) != (pack.size_bytes, pack.digest):
            raise CannotResendError("other shards of its pack are not here")
        content = Content(len(body), digest, ())
        metadata = object_metadata(shards[0].save_id, self._store.store_id, 0, content)
        self._remote.bucket.objects.put(
            key, bytes(body), digest=digest, metadata=metadata, condition=condition
        )

    @contextmanager
    def _opened(self, shard: Shard) -> Iterator[LocalCopy]:
        """Lend the local bytes of a shard, read and checked to the end."""
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            copy = None
        if copy is None:
            raise CannotResendError(f"the bytes of {shard.name} are not here")
        try:
            if not copy.reads_right():
                raise CannotResendError(f"the bytes of {shard.name} here are damaged")
            yield copy
        finally:
            copy.close()


def _starts(size_bytes: int) -> range:
    return range(0, size_bytes, upload_part_bytes_for(size_bytes))


def _read(copy: LocalCopy, start: int, length: int) -> bytes:
    if copy.descriptor is None:
        assert copy.body is not None
        return copy.body[start : start + length]
    pieces = []
    while length and (piece := os.pread(copy.descriptor, length, start)):
        pieces.append(piece)
        start, length = start + len(piece), length - len(piece)
    return b"".join(pieces)
