"""CRC-64/NVME of bytes, of blocks, and of the whole from its blocks.

The rank takes one digest for each block while it writes; the whole shard's digest is combined from
them, so every byte is read once. Blocks let a range, or a part of an upload, be verified alone.

Source: docs/protocol.md, "Frames".
"""

from __future__ import annotations

import base64
import functools
import re
import struct
from collections.abc import Iterable, Sequence
from typing import Any

BLOCK_BYTES = 4 << 20
_DIGEST = re.compile("[0-9a-f]{16}", re.ASCII)


def prepare() -> None:
    """Load what takes digests: now, and not when the first save waits for it."""
    _checksums()


def digest_of(data: bytes | bytearray | memoryview, previous: int = 0) -> int:
    """Return the digest of ``data``, or of ``previous``'s bytes followed by it."""
    return int(_checksums().crc64nvme(data, previous))


def blocks_of(size_bytes: int) -> int:
    """Return how many blocks so many bytes begin."""
    return -(-size_bytes // BLOCK_BYTES)


def block_lengths(size_bytes: int) -> list[int]:
    """Return the length of each block of a shard of ``size_bytes``."""
    whole, rest = divmod(size_bytes, BLOCK_BYTES)
    return [BLOCK_BYTES] * whole + ([rest] if rest else [])


def combine(digests: Sequence[int], size_bytes: int) -> int:
    """Return the digest of ``size_bytes`` whose blocks have ``digests``.

    Raises:
        ValueError: The number of digests is not the number of blocks.
    """
    blocks = blocks_of(size_bytes)  # before a list of so many is made
    if blocks != len(digests):
        raise ValueError(
            f"{size_bytes} bytes have {blocks} blocks, but {len(digests)} digests came"
        )
    return joined(zip(digests, block_lengths(size_bytes), strict=True))


def joined(pieces: Iterable[tuple[int, int]]) -> int:
    """Return the digest of pieces of any length, each given as (digest, length), in order."""
    whole = 0
    for digest, length in pieces:
        whole = int(_checksums().combine_crc64nvme(whole, digest, length))
    return whole


def pack(digests: Sequence[int]) -> bytes:
    """Pack block digests as big-endian 64-bit words."""
    return struct.pack(f"!{len(digests)}Q", *digests)


def unpack(packed: bytes | bytearray | memoryview) -> tuple[int, ...]:
    """Undo ``pack``.

    Raises:
        ValueError: The length is not a multiple of eight.
    """
    if len(packed) % 8:
        raise ValueError(f"packed block digests are {len(packed)} bytes, not a multiple of eight")
    return struct.unpack(f"!{len(packed) // 8}Q", packed)


def to_hex(digest: int) -> str:
    return f"{digest:016x}"


def from_hex(text: str) -> int:
    """Read 16 hex digits.

    Raises:
        ValueError: Not exactly 16 hex digits.
    """
    if not _DIGEST.fullmatch(text):
        raise ValueError(f"a digest is 16 lower-case hex digits, got {text!r}")
    return int(text, 16)


def to_base64(digest: int) -> str:
    """Write a digest as S3 does in a header: eight bytes, big-endian, in base64."""
    return base64.b64encode(digest.to_bytes(8, "big")).decode()


def from_base64(text: str) -> int | None:
    """Read what ``to_base64`` wrote; None for a composite, which is no digest of the bytes."""
    return None if "-" in text else int.from_bytes(base64.b64decode(text), "big")


@functools.cache
def _checksums() -> Any:
    """Load awscrt, once: a command that moves no bytes starts in half the time without it."""
    from awscrt import checksums

    return checksums
