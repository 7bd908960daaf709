"""One step of one kind of state, stored in each way, beside the step that lies before it.

Block by block with the drain's own encoder, each frame proven as the drain proves it: decoded, put
back together and compared by digest. In processor seconds of the one thread that works.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.codec import planes
from cachetier.codec.frames import FrameDecoder, FrameEncoder

Block = bytes | bytearray | memoryview
Words = np.ndarray[Any, np.dtype[Any]]
PRESENT = ("zstd:1", "zstd:3", "planes:1", "planes:3", "block copies")
XOR = ("xor:1", "xor:3")
MINUS = ("minus:1", "minus:3")


@dataclass(frozen=True, slots=True)
class Stored:
    """What a way stores of a shard, as a share of its size, and its seconds for each raw byte."""

    ratio: float
    seconds_per_byte: float

    def seconds(self, link_bytes_per_second: float) -> float:
        """Return the time to durable of a raw byte: encoding goes on beside sending."""
        return max(self.ratio / link_bytes_per_second, self.seconds_per_byte)


def xored(block: Block, before: Block, element_size: int) -> bytes:
    """Return the bits that differ."""
    del element_size
    mixed: Words = np.bitwise_xor(np.frombuffer(block, "u1"), np.frombuffer(before, "u1"))
    return mixed.tobytes()


def minus(block: Block, before: Block, element_size: int) -> bytes:
    """Return the differences of the values taken as integers, small ones as small numbers.

    Two's complement has the sign in all high bits, so it goes into the lowest.
    """
    signed, unsigned, bits = f"i{element_size}", f"u{element_size}", 8 * element_size
    less: Words = (np.frombuffer(block, unsigned) - np.frombuffer(before, unsigned)).view(signed)
    folded: Words = (less << 1) ^ (less >> (bits - 1))
    return folded.tobytes()


def plus(folded: Block, before: Block, element_size: int) -> bytes:
    """Undo ``minus``."""
    unsigned = f"u{element_size}"
    half: Words = np.frombuffer(folded, unsigned)
    less: Words = (half >> 1) ^ (0 - (half & 1))
    whole: Words = np.frombuffer(before, unsigned) + less
    return whole.tobytes()


def stored(after: bytes, before: bytes, element_size: int) -> dict[str, Stored]:
    """Return what each way makes of the step ``after``.

    Raises:
        ValueError: A frame did not come back as the block it was made of.
    """
    found: dict[str, Stored] = {}
    for level in (1, 3):
        found[f"zstd:{level}"] = _made(after, before, level, 0, None)
        found[f"planes:{level}"] = _made(after, before, level, element_size, None)
        found[f"xor:{level}"] = _made(after, before, level, element_size, (xored, xored))
        found[f"minus:{level}"] = _made(after, before, level, element_size, (minus, plus))
    pairs = _blocks(after, before)
    # Exact where all blocks or none changed; between, each counts as the average block.
    changed = sum(len(one) for one, other in pairs if one != other) / len(after)
    planes_1 = found["planes:1"]
    found["block copies"] = Stored(changed * planes_1.ratio, changed * planes_1.seconds_per_byte)
    return found


Turned = Callable[[Block, Block, int], bytes]


def _made(
    after: bytes,
    before: bytes,
    level: int,
    element_size: int,
    there_and_back: tuple[Turned, Turned] | None,
) -> Stored:
    encoder, decoder, frames_bytes = FrameEncoder(level), FrameDecoder(), 0
    pairs = _blocks(after, before)
    digests = [digest_of(block) for block, _ in pairs]
    began = time.thread_time()
    for (block, base), digest in zip(pairs, digests, strict=True):
        turned = there_and_back[0](block, base, element_size) if there_and_back else block
        frame = encoder.encode(planes.split(turned, element_size) if element_size else turned)
        back: Block = decoder.decode(frame, len(block), element_size)
        if there_and_back:
            back = there_and_back[1](back, base, element_size)
        if digest_of(back) != digest:
            raise ValueError(f"level {level}: a frame came back as another block")
        frames_bytes += len(frame)
    seconds = time.thread_time() - began
    return Stored(frames_bytes / len(after), seconds / len(after))


def _blocks(after: bytes, before: bytes) -> list[tuple[bytes, bytes]]:
    starts = range(0, len(after), BLOCK_BYTES)
    return [(after[at : at + BLOCK_BYTES], before[at : at + BLOCK_BYTES]) for at in starts]
