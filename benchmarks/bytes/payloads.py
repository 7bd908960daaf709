"""What is put: memory of any size, full of one kind of bytes, the same every time."""

from __future__ import annotations

import mmap
import random
import sysconfig
from pathlib import Path

import numpy as np

PIECE_BYTES = 64 << 20
_LINE_BYTES = 4096


def filled(pattern: bytes, size_bytes: int) -> memoryview:
    """Return memory in which ``pattern`` repeats."""
    view = memoryview(mmap.mmap(-1, size_bytes))
    for start in range(0, size_bytes, len(pattern)):
        part = view[start : start + len(pattern)]
        part[:] = pattern[: len(part)]
    return view


def gaussian_fp32(size_bytes: int = PIECE_BYTES) -> bytes:
    """Return normally distributed float32."""
    drawn = np.random.default_rng(3).standard_normal(size_bytes // 4, dtype=np.float32)
    return drawn.tobytes()


def gaussian_bf16(size_bytes: int = PIECE_BYTES) -> bytes:
    """Return normally distributed bfloat16: the upper halves of float32, rounded."""
    drawn = np.frombuffer(gaussian_fp32(2 * size_bytes), np.uint32).astype(np.uint64)
    rounded = (drawn + 0x7FFF + (drawn >> 16 & 1)) >> 16
    return rounded.astype(np.uint16).tobytes()


def compressible(size_bytes: int = PIECE_BYTES) -> bytes:
    """Return zeros and text in turns, as embeddings of words not yet seen and tokenizers have."""
    source = Path(sysconfig.get_paths()["stdlib"])
    text = b"".join(path.read_bytes() for path in sorted(source.glob("*.py")))
    lines = (text * (size_bytes // len(text) + 1))[: size_bytes // 2]
    zeros = bytes(_LINE_BYTES)
    pieces = (lines[at : at + _LINE_BYTES] + zeros for at in range(0, len(lines), _LINE_BYTES))
    return b"".join(pieces)


def noise(size_bytes: int = PIECE_BYTES, seed: int = 5) -> bytes:
    """Return bytes that nothing compresses."""
    return random.Random(seed).randbytes(size_bytes)
