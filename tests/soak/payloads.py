"""The bytes of every shard of the soak, from the names alone: nothing large is remembered."""

from __future__ import annotations

import hashlib
import random

BLOCK_BYTES = 4 << 20
MEGABYTE = 1_000_000
# Empty, in the catalog, just not in it, one request, several parts.
SIZES = {
    0: 4,
    1: 3,
    3_000: 20,
    65_536: 10,
    65_537: 10,
    700_000: 25,
    5 * MEGABYTE: 18,
    17 * MEGABYTE: 5,
    40 * MEGABYTE: 1.5,
    64 << 20: 0.8,
}


def some_size(dice: random.Random) -> int:
    return dice.choices(list(SIZES), list(SIZES.values()))[0]


def payload(run: str, step: int, save: str, name: str, version: int, size_bytes: int) -> bytes:
    """Return a shard: every other block of a large one is that of all other steps, too."""
    own = f"{run}/{step}/{save}/{name}/{version}"
    blocks = []
    for number, start in enumerate(range(0, size_bytes, BLOCK_BYTES)):
        unchanged = number % 2 == 1
        seed = f"{run}/{name}/{number}" if unchanged else f"{own}/{number}"
        blocks.append(random.Random(seed).randbytes(min(BLOCK_BYTES, size_bytes - start)))
    return b"".join(blocks)


def checksum(data: bytes | memoryview) -> str:
    """Return what the oracle knows bytes by; it is not one of the digests of cachetier."""
    return hashlib.blake2b(data, digest_size=12).hexdigest()
