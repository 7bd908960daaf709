"""Parse a single ``Range`` of RFC 9110, and say which bytes the answer carries."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cachetier_client.io.digests import BLOCK_BYTES, blocks_of

from cachetier.doors.http.problems import RangeError

_ONE_RANGE = re.compile(r"\s*bytes\s*=\s*(\d*)\s*-\s*(\d*)\s*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes from ``start`` up to and without ``end``."""

    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    @property
    def blocks(self) -> range:
        """The numbers of the blocks that hold these bytes."""
        return range(self.start // BLOCK_BYTES, blocks_of(self.end))


def span_of(text: str | None, size_bytes: int) -> ByteRange | None:
    """Return what the header ``Range`` asks for, or None for the whole.

    What is not one range of bytes is ignored, as RFC 9110 wants.

    Raises:
        RangeError: No byte lies in the range.
    """
    match = _ONE_RANGE.fullmatch(text) if text is not None and len(text) < 100 else None
    if match is None:
        return None
    first, last = match.groups()
    if first:
        start, end = int(first), min(int(last) + 1, size_bytes) if last else size_bytes
        if last and int(last) < int(first):
            return None
    elif last:
        start, end = max(0, size_bytes - int(last)), size_bytes
    else:
        return None
    if start >= end:
        raise RangeError(f"{text!r} lies outside the shard's {size_bytes} bytes")
    return ByteRange(start, end)
