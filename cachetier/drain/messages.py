"""Values that cross the channel between ``serve`` and its drain, beside those that both know.

They are what the calls of ``DrainService`` take and return; msgspec writes and reads them as JSON.
"""

from __future__ import annotations

from typing import Annotated

from cachetier_client.bucket_format.stored import Content, ShardFacts, Stored
from msgspec import Struct

from cachetier.drain.schedule.tasks import Task
from cachetier.drain.upload.buffers import BUDGET_BYTES, PIECE_BYTES
from cachetier.local.catalog.rows import NOTHING_BEGUN, NOTHING_REPLACED, Replaced, UploadRecord
from cachetier.model.objects import ObjectVersion
from cachetier.model.packs import Member
from cachetier.remote.settings import RemoteSettings

# What a call returns that the drain does not wait for.
NoReply = Annotated[None, "no reply"]

# --- the drain itself ----------------------------------------------------------------------------

PARTS = 128
PIECES_SHARE = 0.25


class Size(Struct, frozen=True):
    """The limits of the drain: what it may do, and how much of it at once.

    Small shards count as uploads, large ones as parts too; ``budget_bytes`` is the memory for parts
    that are not read while they are sent. ``threads`` is how many may compute, as in compressing.
    ``block_copies``: whether bytes may be copied inside the bucket. ``carriers``: how many
    processes may send for the drain; with none it sends everything itself.
    """

    uploads: int = 8
    parts: int = PARTS
    budget_bytes: int = BUDGET_BYTES
    threads: int = 2
    block_copies: bool = True
    carriers: int = 0

    @classmethod
    def within(
        cls, memory_bytes: int, uploads: int, threads: int, carriers: int, *, block_copies: bool
    ) -> Size:
        """Return the size of a drain that sends from so much memory: whole parts, and pieces."""
        pieces_bytes = min(PARTS * PIECE_BYTES, int(PIECES_SHARE * memory_bytes))
        parts = pieces_bytes // PIECE_BYTES
        budget_bytes = memory_bytes - pieces_bytes
        return cls(uploads, parts, budget_bytes, threads, block_copies, carriers)


class DrainOrders(Struct, frozen=True):
    """All that a drain has to know before it begins."""

    remote: RemoteSettings
    store_id: str
    lock: str
    size: Size
    max_rate: tuple[str, ...]
    log_level: str


class Handout(Struct, frozen=True):
    """Work, and in how many seconds time alone makes more due; whether somebody waits for it."""

    tasks: tuple[Task, ...] = ()
    due_in_seconds: float | None = None
    hurried: bool = False
    rate_limit: float | None = None


# --- shards --------------------------------------------------------------------------------------


class LocalShard(Struct, frozen=True):
    """A shard to read: its bytes, or a descriptor to close and the digests of its blocks.

    The rest is the ``upload`` to go on with, without its parts, and what it ``replaced``.
    """

    body: bytes | None
    block_digests: tuple[int, ...]
    descriptor: int | None
    upload: UploadRecord = NOTHING_BEGUN
    replaced: Replaced = NOTHING_REPLACED


# --- objects of the S3 door ----------------------------------------------------------------------


class LocalObject(Struct, frozen=True):
    """A version of an object to bring to its bucket, and its pieces, to be opened as shards.

    ``upload`` is the one to go on with, without its parts, ``prefix`` the mount's. ``from_before``:
    the version was acknowledged before this ``serve`` began. ``damaged``: its bytes are not all
    here, so it can only be looked for. ``deletions`` are what a record is to tell of, by their
    keys.
    """

    version: ObjectVersion
    pieces: list[Member]
    upload: UploadRecord
    prefix: str
    from_before: bool
    damaged: bool
    deletions: dict[str, int]


# --- saves ---------------------------------------------------------------------------------------


class PartPage(Struct, frozen=True):
    """Shards of a rank's part, each with its version; ``more`` come after the last of them."""

    shards: list[tuple[int, str, Content, Stored | None, ShardFacts]] = []
    more: bool = False
