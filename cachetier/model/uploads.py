"""How an object is cut into upload parts, and what to do about an object that is already there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from cachetier.model import stored
from cachetier.model.shard import BLOCK_BYTES, Content, blocks_of
from cachetier.model.stored import FRAME_LIMIT_BYTES, Codec

PART_LIMIT = 10_000
PART_BYTES = 16 << 20
SMALL_PART_BYTES, LARGE_PART_BYTES = 8 << 20, 32 << 20
SLOW_BYTES_PER_SECOND = 1 << 20
SINGLE_PUT_BYTES = 16 << 20

# Metadata of every object: who wrote it, so that no version is overwritten blindly.
SAVE_KEY = "cachetier-save"
STORE_KEY = "cachetier-store"
VERSION_KEY = "cachetier-version"
DIGEST_KEY = "cachetier-digest"
# Of a compressed object too: the digest above and this size are those of the shard's raw bytes.
CODEC_KEY = "cachetier-codec"
RAW_BYTES_KEY = "cachetier-raw-bytes"


@dataclass(frozen=True, slots=True)
class PartRange:
    """One part of an upload: ``number`` from 1, whole blocks but for the last."""

    number: int
    start: int
    size_bytes: int

    @property
    def first_block(self) -> int:
        return self.start // BLOCK_BYTES

    @property
    def blocks(self) -> int:
        return blocks_of(self.size_bytes)


def part_bytes_for(size_bytes: int, usual_bytes: int = PART_BYTES) -> int:
    """Return the part size: the usual one, or as many whole blocks as keep to 10,000 parts."""
    least = -(-size_bytes // PART_LIMIT)
    return max(usual_bytes, blocks_of(least) * BLOCK_BYTES)


def usual_part_bytes(bytes_per_second: float | None, *, requests_are_scarce: bool) -> int:
    """Return the part size that suits the link as it is now.

    Args:
        bytes_per_second: What one part gets while it is sent; None when nothing is known yet. On a
            slow link parts are small: what has to be sent again is then soon sent.
        requests_are_scarce: The store throttles: larger parts need fewer requests.
    """
    if requests_are_scarce:
        return LARGE_PART_BYTES
    slow = bytes_per_second is not None and bytes_per_second < SLOW_BYTES_PER_SECOND
    return SMALL_PART_BYTES if slow else PART_BYTES


def part_ranges(size_bytes: int, part_bytes: int) -> Iterator[PartRange]:
    """Yield the parts of an object of ``size_bytes``."""
    for number, start in enumerate(range(0, size_bytes, part_bytes), start=1):
        yield PartRange(number, start, min(part_bytes, size_bytes - start))


def packed_part_bytes_for(size_bytes: int, usual_bytes: int = PART_BYTES) -> int:
    """Return the room for a part of frames: about the usual part; full once a frame may not fit.

    That keeps an object of ``size_bytes`` raw bytes to 10,000 parts, and each but the last above
    the 5 MiB that S3 wants.
    """
    least = -(-stored.limit_bytes(size_bytes) // PART_LIMIT) + FRAME_LIMIT_BYTES
    return max(usual_bytes, 3 * BLOCK_BYTES, blocks_of(least) * BLOCK_BYTES)


def object_metadata(save_id: str, store_id: str, version: int, content: Content) -> dict[str, str]:
    """Return the metadata a shard's object carries."""
    return {
        SAVE_KEY: save_id,
        STORE_KEY: store_id,
        VERSION_KEY: str(version),
        DIGEST_KEY: f"{content.digest:016x}",
    }


def compressed_metadata(metadata: Mapping[str, str], size_bytes: int) -> dict[str, str]:
    """Return the metadata of the same shard, of ``size_bytes``, stored as zstd frames."""
    return {**metadata, CODEC_KEY: Codec.ZSTD, RAW_BYTES_KEY: str(size_bytes)}


def is_compressed(found: Mapping[str, str]) -> bool:
    """Return whether the object with metadata ``found`` holds zstd frames."""
    return found.get(CODEC_KEY) == Codec.ZSTD


class Existing(Enum):
    """What an object found under our key is."""

    OURS = auto()
    OLDER = auto()
    NEWER = auto()
    FOREIGN = auto()


def judge_existing(
    found: Mapping[str, str], found_size_bytes: int, ours: Mapping[str, str], size_bytes: int
) -> Existing:
    """Say what the object with metadata ``found`` is to the shard with metadata ``ours``.

    The same save, raw size and digest is our own write (its reply was lost, or another node put the
    same bytes), whichever way it is stored. The same save from the same store under another version
    is a replaced put. Anything else is foreign: a conflict to report, never a victim.
    """
    if found.get(SAVE_KEY) != ours[SAVE_KEY]:
        return Existing.FOREIGN
    raw_bytes = found.get(RAW_BYTES_KEY) if is_compressed(found) else str(found_size_bytes)
    if found.get(DIGEST_KEY) == ours[DIGEST_KEY] and raw_bytes == str(size_bytes):
        return Existing.OURS
    version = found.get(VERSION_KEY, "")
    if found.get(STORE_KEY) != ours[STORE_KEY] or not version.isascii() or not version.isdigit():
        return Existing.FOREIGN
    return Existing.OLDER if int(version) < int(ours[VERSION_KEY]) else Existing.NEWER
