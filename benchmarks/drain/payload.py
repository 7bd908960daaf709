"""Bytes as checkpoints have them: float32 weights, of which zstd saves a little."""

from __future__ import annotations

import mmap

_PIECE_BYTES = 16 << 20


def weights(size_bytes: int) -> memoryview:
    """Return memory full of normally distributed float32, the same every time."""
    import numpy as np  # which the bare machine of ``benchmarks.scale`` need not have

    view = memoryview(mmap.mmap(-1, size_bytes))
    piece = np.random.default_rng(3).standard_normal(_PIECE_BYTES // 4, dtype=np.float32)
    pattern = piece.tobytes()
    for start in range(0, size_bytes, _PIECE_BYTES):
        part = view[start : start + _PIECE_BYTES]
        part[:] = pattern[: len(part)]
    return view
