"""What lies in the bucket of one shard: its raw bytes, or zstd frames with a seek table behind.

One frame holds one block, so the digest of a block verifies a frame, and a range of blocks is a
range of frames. The table is the one of zstd's seekable format: a skippable frame, so that any zstd
tool decodes the whole object.

Source: docs/compression.md.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from cachetier.model.shard import BLOCK_BYTES, Content, blocks_of

# zstd's own bound for a block that does not compress.
FRAME_LIMIT_BYTES = BLOCK_BYTES + (BLOCK_BYTES >> 8)
LEVELS = range(1, 20)
# Below this a request costs more than the bytes saved.
COMPRESSED_FROM_BYTES = 1 << 20
# What stays above this share of its size is stored raw.
WORTHWHILE_RATIO = 0.97

_TABLE_ENTRY_BYTES = 8
_TABLE_FRAME_BYTES = 17  # a skippable frame's header, and the table's footer
_LEVEL = re.compile(r"zstd:([0-9]{1,4})", re.ASCII)


class Codec(StrEnum):
    RAW = "raw"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True)
class Stored:
    """The object of one shard: size and digest as stored; of zstd also the size of each frame."""

    codec: Codec
    size_bytes: int
    digest: int
    frame_sizes: tuple[int, ...] = ()

    @classmethod
    def raw(cls, content: Content) -> Stored:
        return cls(Codec.RAW, content.size_bytes, content.digest)

    def check(self, raw_bytes: int) -> None:
        """Refuse frames that cannot hold a shard of ``raw_bytes``.

        Raises:
            ValueError: They contradict it, or themselves.
        """
        if self.codec is Codec.RAW:
            if self.frame_sizes or self.size_bytes != raw_bytes:
                raise ValueError(f"{self.size_bytes} raw bytes are not a shard of {raw_bytes}")
            return
        if len(self.frame_sizes) != blocks_of(raw_bytes):
            raise ValueError(f"{len(self.frame_sizes)} frames are not a shard of {raw_bytes} bytes")
        if not all(0 < size <= FRAME_LIMIT_BYTES for size in self.frame_sizes):
            raise ValueError(f"a frame has more than {FRAME_LIMIT_BYTES} bytes, or none")
        if sum(self.frame_sizes) + table_bytes(len(self.frame_sizes)) != self.size_bytes:
            raise ValueError(f"the frames and their table do not add up to {self.size_bytes} bytes")


def table_bytes(frames: int) -> int:
    """Return the size of the seek table of so many frames, with its frame."""
    return frames * _TABLE_ENTRY_BYTES + _TABLE_FRAME_BYTES


def limit_bytes(raw_bytes: int) -> int:
    """Return what a shard of ``raw_bytes`` takes at most when compressed."""
    frames = blocks_of(raw_bytes)
    return frames * FRAME_LIMIT_BYTES + table_bytes(frames)


def is_worthwhile(stored_bytes: int, raw_bytes: int) -> bool:
    return stored_bytes <= raw_bytes * WORTHWHILE_RATIO


def parsed_level(text: str) -> int | None:
    """Return the level that the setting ``compression`` names, or None for ``off``.

    Raises:
        ValueError: It names none.
    """
    lowered = text.strip().lower()
    if lowered in ("off", "false"):
        return None
    if lowered == "auto":
        raise ValueError("'auto' comes with a later version: give 'off', or a level as in 'zstd:3'")
    match = _LEVEL.fullmatch(lowered)
    if match is None or int(match.group(1)) not in LEVELS:
        least, most = LEVELS[0], LEVELS[-1]
        raise ValueError(f"{text!r} is neither 'off' nor 'zstd:{least}' to 'zstd:{most}'")
    return int(match.group(1))


def pack_sizes(sizes: Iterable[int]) -> bytes:
    """Pack frame sizes as big-endian 32-bit words."""
    packed = tuple(sizes)
    return struct.pack(f"!{len(packed)}I", *packed)


def unpack_sizes(packed: bytes) -> tuple[int, ...]:
    """Undo ``pack_sizes``.

    Raises:
        ValueError: The length is not a multiple of four.
    """
    if len(packed) % 4:
        raise ValueError(f"packed frame sizes are {len(packed)} bytes, not a multiple of four")
    return struct.unpack(f"!{len(packed) // 4}I", packed)
