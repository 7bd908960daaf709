"""Bodies of requests, moved slice by slice so that a slow link is not taken for a dead one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from cachetier.errors import TransientError

SLICE_BYTES = 256 << 10
# Below this a body counts as stuck, however regularly it drips.
SLOWEST_BYTES_PER_SECOND = 32 << 10


class ReadableView:
    """A request body that is a file to boto3, and to us a view that nobody copies.

    urllib3 reads and sends it in pieces of 16 KiB. ``taken_bytes`` are those read so far.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._view = memoryview(data).cast("B")
        self._position = 0
        self.taken_bytes = 0

    def __len__(self) -> int:
        return self._view.nbytes

    def read(self, size: int = -1) -> memoryview:
        start = self._position
        self._position = len(self) if size < 0 else min(start + size, len(self))
        self.taken_bytes += self._position - start
        return self._view[start : self._position]

    def seek(self, offset: int, whence: int = 0) -> int:
        base = (0, self._position, len(self))[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position


def read_slices(
    body: Any,
    size_bytes: int,
    patience_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[bytes]:
    """Yield the ``size_bytes`` of a botocore body, and give its connection back to the pool.

    Raises:
        TransientError: It ended early, or took longer than ``patience_seconds`` beyond what the
            slowest rate allows. The connection is closed.
    """
    give_up_at = clock() + patience_seconds + size_bytes / SLOWEST_BYTES_PER_SECOND
    missing = size_bytes
    with body as stream:
        while missing:
            piece = stream.read1(min(missing, SLICE_BYTES))
            if not piece:
                raise TransientError(f"the body broke off {missing} bytes before its end")
            if clock() > give_up_at:
                raise TransientError(f"the body came too slowly: {missing} bytes are missing")
            missing -= len(piece)
            yield piece
        stream.read(1)  # empty; only now does the connection count as free


def first_byte(content_range: str | None) -> int:
    """Return where ``bytes 5-9/20`` begins; an answer without a range begins at 0."""
    return int(content_range.split()[1].split("-")[0]) if content_range else 0
