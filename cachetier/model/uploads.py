"""How an object is cut into upload parts, and what to do about an object that is already there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from cachetier.model.shard import BLOCK_BYTES, Content

PART_LIMIT = 10_000
PART_BYTES = 16 << 20
SINGLE_PUT_BYTES = 16 << 20

# Metadata of every object: who wrote it, so that no version is overwritten blindly.
SAVE_KEY = "cachetier-save"
STORE_KEY = "cachetier-store"
VERSION_KEY = "cachetier-version"
DIGEST_KEY = "cachetier-digest"


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
        return -(-self.size_bytes // BLOCK_BYTES)


def part_bytes_for(size_bytes: int) -> int:
    """Return the part size: 16 MiB, or as many whole blocks as keep to 10,000 parts."""
    least = -(-size_bytes // PART_LIMIT)
    return max(PART_BYTES, -(-least // BLOCK_BYTES) * BLOCK_BYTES)


def part_ranges(size_bytes: int, part_bytes: int) -> Iterator[PartRange]:
    """Yield the parts of an object of ``size_bytes``."""
    for number, start in enumerate(range(0, size_bytes, part_bytes), start=1):
        yield PartRange(number, start, min(part_bytes, size_bytes - start))


def object_metadata(save_id: str, store_id: str, version: int, content: Content) -> dict[str, str]:
    """Return the metadata a shard's object carries."""
    return {
        SAVE_KEY: save_id,
        STORE_KEY: store_id,
        VERSION_KEY: str(version),
        DIGEST_KEY: f"{content.digest:016x}",
    }


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

    The same save and digest is our own write (its reply was lost, or another node put the same
    bytes). The same save from the same store under another version is a replaced put. Anything else
    is foreign: a conflict to report, never a victim.
    """
    if found.get(SAVE_KEY) != ours[SAVE_KEY]:
        return Existing.FOREIGN
    if found.get(DIGEST_KEY) == ours[DIGEST_KEY] and found_size_bytes == size_bytes:
        return Existing.OURS
    version = found.get(VERSION_KEY, "")
    if found.get(STORE_KEY) != ours[STORE_KEY] or not version.isascii() or not version.isdigit():
        return Existing.FOREIGN
    return Existing.OLDER if int(version) < int(ours[VERSION_KEY]) else Existing.NEWER
