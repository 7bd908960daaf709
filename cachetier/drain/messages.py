"""Values that cross the channel between ``serve`` and its drain, beside those that both know.

They are what the calls of ``DrainService`` take and return; msgspec writes and reads them as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from cachetier_client.bucket_format.stored import Content, ShardFacts, Stored
from msgspec import Struct

from cachetier.drain.schedule.tasks import Task
from cachetier.drain.upload.buffers import BUDGET_BYTES, PIECE_BYTES
from cachetier.local.catalog.rows import NOTHING_BEGUN, NOTHING_REPLACED, Replaced, UploadRecord
from cachetier.remote.settings import RemoteSettings

# What a call returns that the drain does not wait for.
NoReply = Annotated[None, "no reply"]

# --- the drain itself ----------------------------------------------------------------------------

PARTS = 128
PIECES_SHARE = 0.25


class Size(Struct, frozen=True):
    """What the drain may do, and how much of it at once.

    Small shards count as uploads, large ones as parts too; ``budget_bytes`` is the memory for parts
    that are not read while they are sent. ``threads`` is how many may compute, as in compressing.
    ``block_copies``: whether bytes may be copied inside the bucket.
    """

    uploads: int = 8
    parts: int = PARTS
    budget_bytes: int = BUDGET_BYTES
    threads: int = 2
    block_copies: bool = True

    @classmethod
    def within(cls, memory_bytes: int, uploads: int, threads: int, *, block_copies: bool) -> Size:
        """Return the size of a drain that sends from so much memory: whole parts, and pieces."""
        pieces_bytes = min(PARTS * PIECE_BYTES, int(PIECES_SHARE * memory_bytes))
        parts = pieces_bytes // PIECE_BYTES
        return cls(uploads, parts, memory_bytes - pieces_bytes, threads, block_copies)


class DrainOrders(Struct, frozen=True):
    """All that a drain has to know before it begins."""

    remote: RemoteSettings
    store_id: str
    lock: str
    size: Size
    max_rate: str
    windows: tuple[str, ...]
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


class DonorShard(Struct, frozen=True):
    """A shard that was verified at the remote once, and where."""

    run: str
    location: str
    name: str
    save_id: str
    content: Content
    stored: Stored


# --- objects of the S3 door ----------------------------------------------------------------------


class LocalPiece(Struct, frozen=True):
    """A piece of an object, to be opened as the shard that it is."""

    version: int
    size_bytes: int
    digest: int


class LocalObject(Struct, frozen=True):
    """A version of an object to bring to its bucket: what it is, and what it may replace there.

    ``prefix`` is its mount's. ``version`` is what its stamp names, ``acknowledged_at`` is by the
    store's clock, ``committed_at`` by ours; ``from_before``: it was before this ``serve`` began.
    ``damaged``: its bytes are not all here, so it can only be looked for. ``deletions`` are what a
    record is to tell of, by their keys, and ``request`` is the first of them. ``upload`` is the one
    to go on with, without its parts.
    """

    deleted: bool
    etag: str
    headers: Mapping[str, str]
    metadata: Mapping[str, str]
    base: str | None
    pieces: tuple[LocalPiece, ...]
    upload: UploadRecord
    prefix: str
    version: int
    acknowledged_at: float | None
    committed_at: float
    from_before: bool = False
    conditional: bool = False
    damaged: bool = False
    request: int | None = None
    deletions: dict[str, int] = {}


# --- saves ---------------------------------------------------------------------------------------


class PartPage(Struct, frozen=True):
    """Shards of a rank's part, each with its version; ``more`` come after the last of them."""

    shards: list[tuple[int, str, Content, Stored | None, ShardFacts]] = []
    more: bool = False
