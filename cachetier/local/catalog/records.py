"""What the catalog takes and tells beyond the model: incidents, upload parts, sums."""

from __future__ import annotations

from dataclasses import dataclass

from cachetier_client.bucket_format.stored import Codec, Content, Stored, StoredFrame

from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import ShardState

LOG_LOST = "log_lost"  # of an incident that ``fsck`` records
LOST_WITH_LOG = (
    "shards of up to 64 KiB, evicted ones, and seals, of steps that were not durable may be lost"
)


@dataclass(frozen=True, slots=True)
class Replaced:
    """What shards that were replaced here may have left at a remote under the key of the new one.

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
class FinishedUploadPart:
    """One part of a multipart upload that the store acknowledged, and the raw bytes it holds.

    Size and digest are those of the bytes as stored; compressed ones are whole frames.
    """

    number: int
    etag: str
    size_bytes: int
    digest: int
    raw_start: int
    raw_bytes: int
    frames: tuple[StoredFrame, ...] = ()


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """How far the drain of one shard to one remote got."""

    upload_id: str | None
    part_bytes: int | None
    attempts: int
    verified_at: float | None
    codec: Codec = Codec.RAW
    element_size: int = 0
    parts: tuple[FinishedUploadPart, ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """The shards of one save, counted."""

    shards: int
    size_bytes: int
    dirty_shards: int
    dirty_bytes: int
    quarantined_shards: int
    evicted_shards: int


@dataclass(frozen=True, slots=True)
class LocalOnly:
    """What policies keep from the remote; ``declared_steps`` counts every step they ever did."""

    steps: int = 0
    shards: int = 0
    size_bytes: int = 0
    declared_steps: int = 0


@dataclass(frozen=True, slots=True)
class Backlog:
    """What the drain owes an unfinished save; ``whole``: sealed by all its ranks, here."""

    save: Save
    shards: int
    size_bytes: int
    dirty_shards: int
    dirty_bytes: int
    sealed: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class Totals:
    """What lies on this node, in bytes and shards.

    ``dirty`` leaves out what is local-only, and what belongs to saves that were superseded or
    refused.
    """

    local_bytes: int
    dirty_bytes: int
    dirty_shards: int
    oldest_dirty_at: float | None
    quarantined_shards: int
    local_only: LocalOnly


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
