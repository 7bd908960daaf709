"""A drain without a process: the same calls on catalog and bucket, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from cachetier_client.bucket_format.documents import ShardEntry
from cachetier_client.bucket_format.layout import pack_name
from cachetier_client.bucket_format.publication import Claimant
from cachetier_client.bucket_format.stored import Codec, Content, InPack, Stored, StoredFrame
from cachetier_client.bucket_format.uploads import (
    Existing,
    UploadedPart,
    compressed_metadata,
    judge_existing,
    object_metadata,
)
from cachetier_client.clock import Clock
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.codec.frames import FrameEncoder
from cachetier.codec.seek_table import encode_table
from cachetier.drain.publish.publisher import Ended, Located, Publisher
from cachetier.errors import PreconditionFailedError, UploadGoneError
from cachetier.local.catalog import copies, saves, shards, uploads
from cachetier.local.catalog.rows import IncidentRecord, UploadRecord
from cachetier.local.catalog.shards import small_of
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.composing import pieces
from cachetier.model.lifecycle import PartState, SaveState, ShardState
from cachetier.model.names import DURABLE
from cachetier.model.packs import Member, is_packable, next_pack
from cachetier.model.shard import Shard
from cachetier.remote.base import IF_ABSENT, if_match
from cachetier.remote.bucket import Bucket
from tests.stateful.reading import bytes_of

REMOTE = DURABLE
SINGLE_PUT_BYTES = 1 << 20


class FakeDrain:
    """Makes shards clean and publishes steps, in the caller's thread."""

    def __init__(self, store: Store, bucket: Bucket, clock: Clock) -> None:
        self._store = store
        self._bucket = bucket
        self._clock = clock
        self._publisher = Publisher(bucket, clock)
        self._sent: dict[int, Stored] = {}
        self.packing: Callable[[Save], bool] = most_saves

    def drain_one(self) -> bool:
        """Drain the oldest dirty shard; return False when there is none.

        What was deleted goes first: a save that comes after it must find the step free.
        """
        self.delete_all()
        for save in self._unfinished():
            number = save.number
            if save.state is SaveState.OPEN:
                shards = self._undrained(number, 1)
                if shards:
                    self._drain(save, shards[0])
                    return True
        return False

    def drain_step(self, run: str, step: int) -> bool:
        """Drain the oldest dirty shard of a step, or publish it; return False when it is done."""
        for save in self._unfinished():
            number = save.number
            if (save.run, save.step, save.state) == (run, step, SaveState.OPEN):
                shards = self._undrained(number, 1)
                if shards:
                    self._drain(save, shards[0])
                else:
                    self._publish(save)
                return True
        return False

    def _unfinished(self) -> list[Save]:
        verify = self._store.read(copies.saves_to_verify, REMOTE)
        known = self._store.read(saves.unfinished_saves)
        return [*known, *(replace(save, state=SaveState.OPEN) for save in verify)]

    def _undrained(self, number: int, limit: int) -> list[Shard]:
        return self._store.read(lambda sql: shards.dirty_shards_of(sql, number, limit, REMOTE))

    def drain_all(self) -> None:
        """Drain and publish until nothing is left that can be done."""
        while self.drain_one():
            pass
        self.publish_all()

    def publish_all(self) -> None:
        """Write the parts that may be written, and publish what is whole."""
        self.delete_all()
        for save in self._unfinished():
            if save.state is SaveState.OPEN:
                self._publish(save)

    def publish_step(self, run: str, step: int) -> None:
        """Do the same for one step."""
        self.delete_all()
        for save in self._unfinished():
            if (save.run, save.step, save.state) == (run, step, SaveState.OPEN):
                self._publish(save)

    def delete_all(self) -> None:
        """Take what was deleted here off the bucket."""
        for save in self._unfinished():
            if save.state is SaveState.DELETED:
                assert save.location is not None
                self._publisher.delete(self._claimant(save), save.location, set)
                self._store.write(copies.forget_save, save.number)

    # --- shards ----------------------------------------------------------------------------------

    def _drain(self, save: Save, shard: Shard) -> None:
        self._store.write(uploads.count_attempt, shard.version, REMOTE)
        location = self._located(save)
        if location is None:
            return
        together = self._packed_with(save, shard)
        if len(together) > 1:
            self._pack(save, location, together)
            return
        body = bytes_of(self._store, shard)
        if body is None or digest_of(body) != shard.content.digest:
            self._quarantine(shard)
            return
        self._sent[shard.version] = encoded(shard, body)[0]
        self._make_clean(shard, self._bucket.layout.shard_key(save.run, location, shard.name), body)

    def _make_clean(self, shard: Shard, key: str, body: bytes) -> None:
        self._send(shard, key, body)
        self._confirm(shard, key)
        self._record(shard)

    def _packed_with(self, save: Save, shard: Shard) -> list[Shard]:
        """Return what goes in one pack with a small shard of a sealed rank; damage goes first."""
        number, rank = save.number, shard.rank
        parts = self._store.read(lambda sql: saves.parts_of(sql, number))
        sealed = any(part.rank == rank and part.state is PartState.SEALED for part in parts)
        if not (self.packing(save) and sealed and is_packable(shard.content.size_bytes)):
            return []
        small = self._store.read(
            lambda sql: shards.dirty_shards_of(sql, number, -1, REMOTE, small_of(rank))
        )
        by_version = {each.version: each for each in small}
        return [by_version[member.version] for member in next_pack(map(Member.of, small))]

    def _pack(self, save: Save, location: str, shards: list[Shard]) -> None:
        bodies = [bytes_of(self._store, shard) for shard in shards]
        for shard, body in zip(shards, bodies, strict=True):
            if body is None or digest_of(body) != shard.content.digest:
                self._quarantine(shard)
                return  # the others go without it next time
        whole = b"".join(body for body in bodies if body is not None)
        content = Content(len(whole), digest_of(whole), ())
        name = pack_name(shards[0].rank, content.digest)
        key = self._bucket.layout.pack_key(save.run, location, name)
        metadata = object_metadata(save.save_id, self._store.store_id, 0, content)
        with suppress(PreconditionFailedError):
            self._bucket.objects.put(
                key, whole, digest=content.digest, metadata=metadata, condition=IF_ABSENT
            )
        info = self._bucket.objects.head(key)
        assert info is not None, f"{key} is not there after it was sent"
        assert info.digest == content.digest, f"{key} is not what was sent"
        packs, start = {}, 0
        for shard in shards:
            packs[shard.version] = InPack(name, start, len(whole), content.digest)
            start += shard.content.size_bytes
        self._store.write(copies.record_packed, packs, REMOTE, [REMOTE], self._clock.now())

    def _confirm(self, shard: Shard, key: str) -> None:
        info = self._bucket.objects.head(key)
        assert info is not None, f"{key} is not there after it was sent"
        assert info.digest == self._stored(shard).digest, f"{key} is not what was sent"

    def _record(self, shard: Shard) -> None:
        now, stored = self._clock.now(), self._stored(shard)
        self._store.write(copies.record_verified, shard.version, REMOTE, [REMOTE], now, stored)

    def _stored(self, shard: Shard) -> Stored:
        return self._sent.get(shard.version) or Stored.raw(shard.content)

    def _send(self, shard: Shard, key: str, body: bytes) -> None:
        if len(body) > SINGLE_PUT_BYTES:
            self._send_in_parts(shard, key, body)
            return
        metadata = self._metadata(shard)
        stored, sent = encoded(shard, body)
        if stored.codec is Codec.ZSTD:
            metadata = compressed_metadata(metadata, len(body))
        try:
            self._bucket.objects.put(
                key, sent, digest=stored.digest, metadata=metadata, condition=IF_ABSENT
            )
        except PreconditionFailedError:
            found = self._bucket.objects.head(key)
            assert found is not None
            existing = judge_existing(found.metadata, found.size_bytes, metadata, len(body))
            assert existing in (Existing.OURS, Existing.OLDER), f"{key} is {existing}"
            if existing is Existing.OLDER:
                over = if_match(found.etag)
                self._bucket.objects.put(
                    key, sent, digest=stored.digest, metadata=metadata, condition=over
                )

    def _send_in_parts(self, shard: Shard, key: str, body: bytes) -> None:
        found = self._bucket.objects.head(key)
        if found is not None and found.digest == shard.content.digest:
            return  # an earlier completion whose record was lost
        upload_id, finished = self._upload(shard, key)
        for part in pieces(len(body), BLOCK_BYTES):
            if part.number not in finished:
                piece = body[part.start : part.start + part.size_bytes]
                digest = digest_of(piece)
                sent = self._bucket.objects.upload_part(
                    key, upload_id, part.number, piece, digest=digest
                )
                record = UploadedPart(
                    part.number, sent.etag, part.size_bytes, digest, part.start, part.size_bytes
                )
                self._store.write(uploads.record_parts, shard.version, REMOTE, [record])
                finished[part.number] = sent
        parts = [finished[number] for number in sorted(finished)]
        self._bucket.objects.complete_upload(key, upload_id, parts, digest=shard.content.digest)

    def _upload(self, shard: Shard, key: str) -> tuple[str, dict[int, UploadedPart]]:
        """Go on with the upload that was begun, or begin one."""
        progress = self._store.read(lambda sql: uploads.progress_of(sql, shard.version, REMOTE))
        if progress.upload_id is not None:
            try:
                self._bucket.objects.list_parts(key, progress.upload_id)
            except UploadGoneError:
                self._store.write(uploads.forget_upload, shard.version, REMOTE)
            else:
                done = {
                    p.number: UploadedPart(p.number, p.etag, p.size_bytes, p.digest)
                    for p in progress.parts
                }
                return progress.upload_id, done
        upload_id = self._bucket.objects.create_upload(key, self._metadata(shard))
        self._store.write(
            uploads.begin_upload, shard.version, REMOTE, UploadRecord(upload_id, BLOCK_BYTES)
        )
        return upload_id, {}

    def _held(self, shard: Shard) -> Stored | None:
        return self._store.read(lambda sql: shards.stored_of(sql, shard.version, REMOTE))

    def _metadata(self, shard: Shard) -> dict[str, str]:
        return object_metadata(shard.save_id, self._store.store_id, shard.version, shard.content)

    def _quarantine(self, shard: Shard) -> None:
        incident = IncidentRecord("integrity", "damaged", "", shard.run, shard.step, shard.name)
        self._store.write(shards.record_damage, shard.version, incident, self._clock.now())

    # --- saves -----------------------------------------------------------------------------------

    def _claimant(self, save: Save) -> Claimant:
        return self._store.read(saves.claimant, save)

    def _located(self, save: Save) -> str | None:
        if save.location is not None:
            return save.location
        found = self._publisher.claim(self._claimant(save))
        if isinstance(found, Located):
            self._store.write(copies.record_location, save.number, found.location)
            return found.location
        self._end(save, found)
        return None

    def _end(self, save: Save, ended: Ended) -> None:
        now = self._clock.now()
        self._store.drop(
            self._store.write(
                copies.record_outcome, self._store.policy, save.number, ended.state, None, now
            )
        )

    def _publish(self, save: Save) -> None:
        parts = self._store.read(lambda sql: saves.parts_of(sql, save.number))
        sealed = [part for part in parts if part.state is PartState.SEALED]
        location = self._located(save) if sealed else None
        if location is None:
            return
        if not all(part.final for part in sealed):
            return
        for part in sealed:
            if not part.uploaded and not self._write_part(save, location, part.rank):
                return
        ended = self._publisher.publish(self._claimant(save), location)
        if isinstance(ended, Ended):
            self._end(save, ended)

    def _write_part(self, save: Save, location: str, rank: int) -> bool:
        found = self._store.read(lambda sql: shards.shards_of_rank(sql, save.number, rank, 0, -1))
        if any(s.state in (ShardState.DIRTY, ShardState.QUARANTINED) for s in found):
            return False
        entries = [
            ShardEntry.of(shard.name, shard.rank, shard.content, self._held(shard))
            for shard in found
        ]
        self._publisher.write_part(self._claimant(save), location, rank, entries)
        self._store.write(copies.record_part, save.number, rank, uploaded=True)
        return True


def most_saves(save: Save) -> bool:
    """Return whether the small shards of ``save`` are packed."""
    return save.number % 3 != 0


def encoded(shard: Shard, body: bytes) -> tuple[Stored, bytes]:
    """Return what is stored of a shard: of every other file, zstd frames."""
    if shard.file_id is None or shard.version % 2 == 0 or len(body) > SINGLE_PUT_BYTES:
        return Stored.raw(shard.content), body
    frame = FrameEncoder(1).encode(body)
    sent = frame + encode_table([len(frame)], len(body))
    return Stored(
        Codec.ZSTD, len(sent), digest_of(sent), (StoredFrame(len(frame), digest_of(frame)),)
    ), sent
