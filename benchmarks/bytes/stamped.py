"""Shards of which no two are alike, so that none is sent as a copy of another by mistake."""

from __future__ import annotations

import random

from cachetier_client.io.digests import BLOCK_BYTES

TURN_BYTES = 4104


def stamp(view: memoryview, mark: str) -> memoryview:
    """Mark each block of ``view`` with bytes that follow from ``mark``; return the view."""
    drawn = random.Random(mark)
    for start in range(0, len(view), BLOCK_BYTES):
        view[start : start + 8] = drawn.randbytes(8)
    return view


def change(view: memoryview, share: float, seed: int) -> int:
    """Fill ``share`` of the blocks of ``view`` with other bytes; return how many.

    Each holds the same values in another order, so that it compresses as before.
    """
    blocks = len(view) // BLOCK_BYTES
    drawn = random.Random(seed)
    chosen = drawn.sample(range(blocks), max(1, round(share * blocks)))
    for number in chosen:
        start = number * BLOCK_BYTES
        block = bytes(view[start : start + BLOCK_BYTES])
        view[start : start + BLOCK_BYTES] = block[TURN_BYTES:] + block[:TURN_BYTES]
    return len(chosen)
