"""Bodies of shards: the same for the same seed, made fast, and not kept for long.

A module-level constant of some MiB is held by every worker that collects the module, used or not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import ParamSpec

import numpy as np

KEPT_BYTES = 96 << 20
P = ParamSpec("P")
_kept: OrderedDict[object, bytes] = OrderedDict()  # the one used last comes last
_lock = Lock()


def kept(make: Callable[P, bytes]) -> Callable[P, bytes]:
    """Let ``make`` return the same bytes again while they are among the last used 96 MiB."""

    @wraps(make)
    def body(*args: P.args, **kwargs: P.kwargs) -> bytes:
        key = (make, args, *sorted(kwargs.items()))
        with _lock:
            made = _kept.pop(key, None)
        if made is None:
            made = make(*args, **kwargs)  # which may make others
        with _lock:
            _kept[key] = made
            while sum(map(len, _kept.values())) > KEPT_BYTES:
                _kept.popitem(last=False)
        return made

    return body


@kept
def noise(size_bytes: int, seed: int = 0) -> bytes:
    """Return bytes that do not compress; fewer of the same seed are the first of them."""
    return _words(size_bytes, seed).tobytes()[:size_bytes]


@kept
def compressible(size_bytes: int, seed: int = 0) -> bytes:
    """Return bytes of five random bits each: zstd makes about 0.64 of them."""
    return (_words(size_bytes, seed) & np.uint64(0x1F1F1F1F1F1F1F1F)).tobytes()[:size_bytes]


@kept
def mixed(size_bytes: int, noise_bytes: int = 512) -> bytes:
    """Return bytes of which each KiB is ``noise_bytes`` of noise, and zeros."""
    rows = _words(size_bytes, 0).reshape(-1, 128)
    rows[:, noise_bytes // 8 :] = 0
    return rows.tobytes()


def _words(size_bytes: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.random.SFC64(seed).random_raw(-(-size_bytes // 8))
