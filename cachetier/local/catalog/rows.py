"""Rows of the catalog to the model's objects and back, and records beyond the model.

Every shard row carries a digest of its identity.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass
from typing import Any

import apsw
from cachetier_client.bucket_format import strict_json
from cachetier_client.bucket_format.stored import (
    FACT_NAMES,
    NO_FACTS,
    Codec,
    Content,
    InPack,
    ShardFacts,
    Stored,
    pack_frames,
    unpack_frames,
)
from cachetier_client.bucket_format.uploads import UploadedPart
from cachetier_client.io import digests

from cachetier.errors import CatalogDamagedError
from cachetier.model.checkpoint import RankPart, Save
from cachetier.model.lifecycle import ObjectState, PartState, SaveState, ShardState
from cachetier.model.names import DURABLE
from cachetier.model.objects import Head, ObjectVersion
from cachetier.model.shard import Shard

Row = tuple[Any, ...]
# Saves, with what each has reached at the durable remote; a condition follows.
FROM_SAVES = f"FROM saves_at AS saves WHERE remote = '{DURABLE}' AND"
SAVE_COLUMNS = (
    "saves.number, saves.run, saves.step, saves.save_id, saves.state, saves.world_size, "
    "saves.overwrite, saves.started_at, saves.location, saves.published_at, saves.local_only_at, "
    "saves.wanted, saves.replaces"
)
PART_COLUMNS = (
    "rank, state, ranks_on_node, sealed_at, EXISTS (SELECT 1 FROM copied_parts AS copy "
    "WHERE copy.save = parts.save AND copy.rank = parts.rank AND copy.remote = ?), follows"
)
UPLOADED_PART_COLUMNS = "number, etag, size_bytes, digest, raw_start, raw_bytes, frames"
STORED_COLUMNS = (
    "codec, element_size, stored_bytes, stored_digest, frames, "
    "pack, pack_start, pack_bytes, pack_digest"
)
SHARD_COLUMNS = (
    "shards.version, shards.save, saves.run, saves.step, saves.save_id, shards.name, shards.rank, "
    "shards.size_bytes, shards.digest, shards.block_digests, shards.state, "
    "shards.file_id, shards.inline, shards.committed_at, shards.row_digest, "
    f"{', '.join(f'shards.{name}' for name in FACT_NAMES)}"
)
OBJECT_COLUMNS = (
    "objects.version, objects.save, saves.run, objects.key, objects.deleted, objects.size_bytes, "
    "objects.digest, objects.etag, objects.head, objects.part_sizes, objects.committed_at, "
    "objects.follows, objects.state, objects.base, objects.remote_etag, objects.epoch, "
    "objects.waits, objects.acknowledged_at, objects.conditional, objects.stamped, "
    "objects.request, objects.row_digest"
)
# What a put says of a shard, in the order of ``row_of_new_shard``.
PUT_COLUMNS = ("name", "rank", "size_bytes", "digest", "block_digests", "row_digest", *FACT_NAMES)
# Conditions on one state; for those on several ``model.lifecycle`` has sets of states.
IS_DIRTY, IS_CLEAN, IS_EVICTED, IS_QUARANTINED = (s.sql("shards.state") for s in ShardState)
NOT_EVICTED = ShardState.EVICTED.sql_not("shards.state")
IS_SEALED = PartState.SEALED.sql("parts.state")
IS_UNSHOWN = ObjectState.CLEAN.sql_not("objects.state")
IS_DISPUTED = ObjectState.CONFLICT.sql("objects.state")
NOT_DELETED = SaveState.DELETED.sql_not("saves.state")
LOG_LOST = "log_lost"  # of an incident that ``fsck`` records
LOST_WITH_LOG = (
    "shards of up to 64 KiB, evicted ones, and seals, of steps that were not durable may be lost"
)


@dataclass(frozen=True, slots=True)
class Replaced:
    """The leftovers of replaced shards at a remote, under the key of the new one.

    Attributes:
        uploads: Unfinished ones, by id: the completion of one may be under way still.
        shards: Version and digest of each.
    """

    uploads: tuple[str, ...] = ()
    shards: tuple[tuple[int, int], ...] = ()


NOTHING_REPLACED = Replaced()


@dataclass(frozen=True, slots=True)
class IncidentRecord:
    """Something that went wrong behind a caller's back; raised at its next call."""

    code: str
    message: str
    hint: str
    run: str
    step: int
    name: str | None = None
    rank: int | None = None
    number: int = 0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """A multipart upload of one shard to one remote, if one was begun, and its finished parts.

    Attributes:
        part_bytes: The size of its parts; of compressed ones, the room for each.
        codec: How its parts are encoded: all of them the same way.
        element_size: The size of the elements whose planes its parts hold, or 0.
    """

    upload_id: str | None = None
    part_bytes: int | None = None
    codec: Codec = Codec.RAW
    element_size: int = 0
    parts: tuple[UploadedPart, ...] = ()


NOTHING_BEGUN = UploadRecord()


@dataclass(frozen=True, slots=True)
class Summary:
    """The shards of one save, counted."""

    shards: int
    size_bytes: int
    dirty_shards: int
    dirty_bytes: int
    quarantined_shards: int
    evicted_shards: int
    memory_shards: int = 0


@dataclass(frozen=True, slots=True)
class Backlog:
    """The work that the drain owes an unfinished save; ``whole``: sealed by all its ranks, here."""

    save: Save
    shards: int
    size_bytes: int
    dirty_shards: int
    dirty_bytes: int
    sealed: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class RemoteCopy:
    """A verified object of a shard at one remote."""

    remote: str
    stored: Stored


@dataclass(frozen=True, slots=True)
class RemoteSave:
    """A save that is published at a replica, and where its objects are there."""

    remote: str
    location: str
    published_at: float


@dataclass(frozen=True, slots=True)
class NewShard:
    """A shard about to get its row: its bytes in a file, in ``body``, or only in ``copies``."""

    name: str
    rank: int
    content: Content
    file_id: str | None = None
    body: bytes | None = None
    state: ShardState = ShardState.DIRTY
    copies: tuple[RemoteCopy, ...] = ()
    facts: ShardFacts = NO_FACTS

    @classmethod
    def at_remote(
        cls, remote: str, name: str, rank: int, content: Content, facts: ShardFacts
    ) -> NewShard:
        """Return a shard whose bytes are verified at ``remote``, raw, and not here."""
        copies = (RemoteCopy(remote, Stored.raw(content)),)
        return cls(name, rank, content, state=ShardState.EVICTED, copies=copies, facts=facts)


def exists(sql: apsw.Connection, query: str, *values: object) -> bool:
    """Return whether ``query`` finds a row."""
    return sql.execute(query, values).fetchone() is not None


def column(sql: apsw.Connection, query: str, *values: object) -> list[Any]:
    """Return the first column of all rows that ``query`` finds."""
    return [row[0] for row in sql.execute(query, values)]


def packed(digest: int) -> bytes:
    return digest.to_bytes(8, "big")


def unpacked(digest: bytes) -> int:
    return int.from_bytes(digest, "big")


def row_digest(
    save_id: str, name: str, rank: int, content: Content, facts: ShardFacts = NO_FACTS
) -> bytes:
    """Return the digest of a shard row's identity; its state, place and hints may change."""
    identity = f"{save_id}\0{name}\0{rank}\0{content.size_bytes}\0{content.digest}\0".encode()
    identity += digests.pack(content.block_digests)
    if facts := facts.without_hints():
        identity += strict_json.written(facts)
    return packed(digests.digest_of(identity))


def row_of_new_shard(save_id: str, new: NewShard) -> tuple[object, ...]:
    """Return the values of ``PUT_COLUMNS``."""
    content, facts = new.content, new.facts
    blocks = digests.pack(content.block_digests)
    described = new.name, new.rank, content.size_bytes, packed(content.digest), blocks
    checked = row_digest(save_id, new.name, new.rank, content, facts)
    return *described, checked, *(getattr(facts, each) for each in FACT_NAMES)


@functools.lru_cache(1024)
def facts_of(*values: Any) -> ShardFacts:
    """Read the columns of the facts, in the order of ``FACT_NAMES``: most shards share theirs."""
    return ShardFacts(**dict(zip(FACT_NAMES, values, strict=True)))


def row_of_upload_part(part: UploadedPart) -> tuple[object, ...]:
    sent = part.number, part.etag, part.size_bytes, packed(part.digest)
    return *sent, part.raw_start, part.raw_bytes, pack_frames(part.frames)


def upload_part_of(row: Row) -> UploadedPart:
    number, etag, size_bytes, digest, raw_start, raw_bytes, packed_frames = row
    frames = unpack_frames(packed_frames)
    return UploadedPart(number, etag, size_bytes, unpacked(digest), raw_start, raw_bytes, frames)


def stored_of(row: Row) -> Stored:
    """Read how a remote stores a shard.

    Raises:
        CatalogDamagedError: The row contradicts itself, or the shard's size.
    """
    raw_bytes, codec, element_size, stored_bytes, stored_digest, packed_frames, *in_pack = row
    name, start, size_bytes, digest = in_pack
    try:
        pack = None if None in in_pack else InPack(name, start, size_bytes, unpacked(digest))
        stored = Stored(
            Codec(codec),
            stored_bytes,
            unpacked(stored_digest),
            unpack_frames(packed_frames or b""),
            element_size,
            pack,
        )
        stored.check(raw_bytes)
    except ValueError as error:
        message = f"the catalog's row of a remote copy is damaged: {error}"
        raise CatalogDamagedError(message) from None
    return stored


def row_of_stored(stored: Stored) -> tuple[object, ...]:
    """Return the values of ``STORED_COLUMNS``."""
    pack = stored.pack
    return (
        stored.codec,
        stored.element_size,
        stored.size_bytes,
        packed(stored.digest),
        pack_frames(stored.frames) or None,
        *((pack.name, pack.start, pack.size_bytes, packed(pack.digest)) if pack else (None,) * 4),
    )


def save_of(row: Row) -> Save:
    number, run, step, save_id, state, world_size, overwrite, *rest = row
    started_at, location, published_at, local_only_at, wanted, replaces = rest
    which, when = (number, run, step, save_id), (started_at, location, published_at, local_only_at)
    what = SaveState(state), world_size, bool(overwrite)
    return Save(*which, *what, *when, bool(wanted), tuple(replaces.split()))


def part_of(row: Row) -> RankPart:
    rank, state, ranks_on_node, sealed_at, uploaded, follows = row
    return RankPart(rank, PartState(state), ranks_on_node, sealed_at, bool(uploaded), bool(follows))


def shard_of(row: Row) -> Shard:
    """Read a shard row.

    Raises:
        CatalogDamagedError: The row is not what was written.
    """
    version, save, run, step, save_id, name, rank, size, digest, blocks, *rest = row
    state, file_id, inline, committed_at, checked, *values = rest
    block_digests = struct.unpack(f"!{len(blocks) // 8}Q", blocks[: len(blocks) // 8 * 8])
    content, facts = Content(size, unpacked(digest), block_digests), facts_of(*values)
    if row_digest(save_id, name, rank, content, facts) != checked:
        raise CatalogDamagedError(
            f"the catalog's row of shard {name} does not match its own digest",
            run=run,
            step=step,
            name=name,
        )
    place = ShardState(state), file_id, bool(inline), committed_at
    return Shard(version, save, run, step, save_id, name, rank, content, *place, facts)


def object_of(row: Row) -> ObjectVersion:
    """Read a row of an object.

    Raises:
        CatalogDamagedError: The row is not what was written.
    """
    version, save, run, key, deleted, size, digest, etag, head, sizes, committed_at, *rest = row
    follows, state, base, remote_etag, epoch, waits, *stamp, request, checked = rest
    acknowledged_at, conditional, stamped = stamp
    identity = str(run), str(key), bool(deleted), int(size), unpacked(digest), str(etag)
    if object_row_digest(*identity, str(head), str(sizes), int(follows)) != checked:
        raise CatalogDamagedError(
            f"the catalog's row of object {key} does not match its own digest", run=run, name=key
        )
    of_bytes = identity[2:]
    return ObjectVersion(
        version,
        save,
        run,
        key,
        *of_bytes,
        Head.of_text(head),
        tuple(map(int, sizes.split(","))) if sizes else (),
        committed_at,
        follows,
        ObjectState(state),
        base,
        remote_etag,
        epoch,
        waits,
        acknowledged_at,
        bool(conditional),
        stamped,
        request,
    )


def object_row_digest(*identity: str | int) -> bytes:
    """Return the digest of an object row's identity; how far it got may change.

    ``identity`` are run, key, deleted, size, digest, ETag, head, part sizes and follows, in order.
    """
    return packed(digests.digest_of("\0".join(map(str, identity)).encode()))
