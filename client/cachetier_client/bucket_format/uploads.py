"""How an object is cut into upload parts, and what an object under its key already means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf

from cachetier_client.bucket_format import stored
from cachetier_client.bucket_format.stored import (
    ELEMENT_SIZES_OF,
    FRAME_LIMIT_BYTES,
    Codec,
    Content,
    Stored,
    StoredFrame,
)
from cachetier_client.io.digests import BLOCK_BYTES, blocks_of, to_hex

PART_LIMIT = 10_000
MINIMUM_PART_BYTES = 5 << 20  # S3's, for all but the last
PART_BYTES = 16 << 20
SMALL_PART_BYTES, LARGE_PART_BYTES, LARGEST_PART_BYTES = 8 << 20, 32 << 20, 64 << 20
PART_SECONDS = 2.0  # for so long at most a part is under way, unless it is a small one
CONNECTIONS = 128  # of a drain, which all that waits should fill
SINGLE_PUT_BYTES = 16 << 20

# Metadata of every object: who wrote it, so that no version is overwritten blindly.
SAVE_KEY = "cachetier-save"
STORE_KEY = "cachetier-store"
VERSION_KEY = "cachetier-version"
DIGEST_KEY = "cachetier-digest"
# Of an object that the S3 door took in: as it is called there, under which key it was put (its
# CRC-64/NVME, as a copy inside the bucket keeps all metadata), and when, in the store's own clock.
ETAG_KEY = "cachetier-etag"
PLACE_KEY = "cachetier-key"
ACKNOWLEDGED_KEY = "cachetier-acknowledged-at"
# Of a compressed object too: the digest above and this size are those of the shard's raw bytes.
CODEC_KEY = "cachetier-codec"
RAW_BYTES_KEY = "cachetier-raw-bytes"
ELEMENT_SIZE_KEY = "cachetier-element-size"  # of planes
ENCODING_HEADER = "content-encoding"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The description that a store gives of one object.

    ``digest`` is None where the store keeps no CRC-64/NVME. ``headers`` are its content headers, by
    their names in lower case. ``complete_upload`` tells neither metadata nor headers, and only
    ``head`` when the object was written; objects are equal without them.
    """

    key: str
    size_bytes: int
    etag: str
    digest: int | None
    metadata: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)
    modified_at: float | None = field(default=None, compare=False)

    @property
    def encoding(self) -> str | None:
        return self.headers.get(ENCODING_HEADER)


@dataclass(frozen=True, slots=True)
class UploadPartRange:
    """One part of an upload: ``number`` from 1; the blocks that it touches at least in part."""

    number: int
    start: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.start + self.size_bytes

    @property
    def first_block(self) -> int:
        return self.start // BLOCK_BYTES

    @property
    def blocks(self) -> int:
        return blocks_of(self.end) - self.first_block

    def is_blocks_of(self, size_bytes: int) -> bool:
        """Return whether it begins and ends with blocks of a shard of ``size_bytes``."""
        ends = self.end % BLOCK_BYTES == 0 or self.end == size_bytes
        return self.start % BLOCK_BYTES == 0 and ends

    @property
    def room_bytes(self) -> int:
        """How much has to be read to verify it, whole blocks, as far as they are there."""
        if self.start % BLOCK_BYTES == 0 and self.size_bytes % BLOCK_BYTES == 0:
            return self.size_bytes
        return self.blocks * BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class UploadedPart:
    """A part of a multipart upload that the store acknowledged, and the raw bytes that it holds.

    Size and digest are those of the bytes as stored; compressed ones are whole frames. A store
    knows nothing of raw bytes and leaves them at 0.
    """

    number: int
    etag: str
    size_bytes: int
    digest: int
    raw_start: int = 0
    raw_bytes: int = 0
    frames: tuple[StoredFrame, ...] = ()


def upload_part_bytes_for(size_bytes: int, usual_bytes: int = PART_BYTES) -> int:
    """Return the part size: the usual one, or as many whole blocks as keep to 10,000 parts."""
    least = -(-size_bytes // PART_LIMIT)
    return max(usual_bytes, blocks_of(least) * BLOCK_BYTES)


def usual_upload_part_bytes(
    bytes_per_second: float | None, *, requests_are_scarce: bool, backlog_bytes: float = inf
) -> int:
    """Return the part size that suits the link as it is now.

    Args:
        bytes_per_second: What one part gets while it is sent; None when nothing is known yet. On a
            slow link parts are small: what has to be sent again is then soon sent. On a fast one
            they are large, as each costs some 3 ms of a processor.
        requests_are_scarce: The store throttles: larger parts need fewer requests.
        backlog_bytes: All that waits. Parts of little are small, so that it takes many connections.
    """
    wanted = PART_BYTES if bytes_per_second is None else int(PART_SECONDS * bytes_per_second) | 1
    shared = int(min(backlog_bytes / CONNECTIONS, LARGEST_PART_BYTES))
    suits = 1 << min(wanted.bit_length() - 1, max(0, shared - 1).bit_length())
    return max(suits, LARGE_PART_BYTES if requests_are_scarce else SMALL_PART_BYTES)


def packed_upload_part_bytes_for(size_bytes: int, usual_bytes: int = PART_BYTES) -> int:
    """Return the room for a part of frames: about the usual part; full once a frame may not fit.

    That keeps an object of ``size_bytes`` raw bytes to 10,000 parts, and each but the last above
    the 5 MiB that S3 wants.
    """
    least = -(-stored.limit_bytes(size_bytes) // PART_LIMIT) + FRAME_LIMIT_BYTES
    usual_bytes = min(usual_bytes, LARGE_PART_BYTES)  # it stays in memory until it is there
    return max(usual_bytes, MINIMUM_PART_BYTES + FRAME_LIMIT_BYTES, blocks_of(least) * BLOCK_BYTES)


def object_metadata(save_id: str, store_id: str, version: int, content: Content) -> dict[str, str]:
    """Return the metadata a shard's object carries."""
    return {
        SAVE_KEY: save_id,
        STORE_KEY: store_id,
        VERSION_KEY: str(version),
        DIGEST_KEY: to_hex(content.digest),
    }


def compressed_metadata(
    metadata: Mapping[str, str], size_bytes: int, codec: Codec = Codec.ZSTD, element_size: int = 0
) -> dict[str, str]:
    """Return the metadata of the same shard, of ``size_bytes``, stored as frames of ``codec``."""
    described = {**metadata, CODEC_KEY: str(codec), RAW_BYTES_KEY: str(size_bytes)}
    return described | ({ELEMENT_SIZE_KEY: str(element_size)} if element_size else {})


def codec_found(found: Mapping[str, str]) -> tuple[Codec, int] | None:
    """Return codec and element size of the object with metadata ``found``.

    None if this version does not know the codec, or not with elements of that size.
    """
    name, size = found.get(CODEC_KEY, Codec.RAW), found.get(ELEMENT_SIZE_KEY, "0")
    for codec, sizes in ELEMENT_SIZES_OF.items():
        if codec == name and size in map(str, sizes):
            return codec, int(size)
    return None


class Existing(Enum):
    """The kind of an object found under our key.

    STRAY: a put of this store that comes after ours, which nothing can but by a disk that went back
    in time, or was copied; or one from before that was noticed.
    UNKNOWN_CODEC: a put of this save that only another version of the service can decode.
    """

    OURS = auto()
    OLDER = auto()
    STRAY = auto()
    FOREIGN = auto()
    UNKNOWN_CODEC = auto()


def judge_existing(
    found: Mapping[str, str], found_size_bytes: int, ours: Mapping[str, str], size_bytes: int
) -> Existing:
    """Say what the object with metadata ``found`` is to the shard with metadata ``ours``.

    The same save, raw size and digest is our own write (its reply was lost, or another node put the
    same bytes), whichever way it is stored. The same save from the same store under another version
    is a replaced put, or a stray one. Anything else is foreign: a conflict to report, never a
    victim. So is an object of this save by a codec that nobody here knows.
    """
    if found.get(SAVE_KEY) != ours[SAVE_KEY]:
        return Existing.FOREIGN
    codec = codec_found(found)
    if codec is None:
        return Existing.UNKNOWN_CODEC
    raw_bytes = str(found_size_bytes) if codec[0] is Codec.RAW else found.get(RAW_BYTES_KEY)
    if found.get(DIGEST_KEY) == ours[DIGEST_KEY] and raw_bytes == str(size_bytes):
        return Existing.OURS
    if _version_of(found) is None or _store_of(found) != _store_of(ours):
        return Existing.FOREIGN
    version = own_version(found, ours)
    older = version is not None and version < int(ours[VERSION_KEY])
    return Existing.OLDER if older else Existing.STRAY


def own_version(found: Mapping[str, str], ours: Mapping[str, str]) -> int | None:
    """Return the version of a put by the same store of the same save; None if it is another's."""
    own = all(found.get(key) == ours[key] for key in (SAVE_KEY, STORE_KEY))
    return _version_of(found) if own else None


def store_identity(store_id: str, epoch: str) -> str:
    """Return what a store's objects say that they are of; an epoch is a life of its disk."""
    return f"{store_id}-{epoch}" if epoch else store_id


def _store_of(metadata: Mapping[str, str]) -> str:
    return metadata.get(STORE_KEY, "").partition("-")[0]


def _version_of(metadata: Mapping[str, str]) -> int | None:
    version = metadata.get(VERSION_KEY, "")
    return int(version) if version.isascii() and version.isdigit() else None


def is_object_of(found: ObjectInfo, save_id: str, digest: int, stored: Stored) -> bool:
    """Return whether ``found`` is, as far as HEAD can say, the object that was verified before.

    Where the store keeps no digest, the metadata that was written with the object stands in for it;
    a shard that was streamed straight to the remote has none there, as it was not known yet.
    """
    holds = stored.pack or stored
    if found.size_bytes != holds.size_bytes or found.digest not in (None, holds.digest):
        return False
    text = to_hex(stored.pack.digest if stored.pack is not None else digest)
    return found.metadata.get(SAVE_KEY) == save_id and found.metadata.get(DIGEST_KEY, text) == text
