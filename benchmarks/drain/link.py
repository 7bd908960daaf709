"""A link of limited speed that all connections share."""

from __future__ import annotations

import sys
import threading
import time

PIECE_BYTES = 64 << 10
LATE_SECONDS = 0.005  # shorter waits are made up for later


class Link:
    """Lets so many bytes a second through; 0 for as many as come. Thread-safe."""

    def __init__(self, bytes_per_second: float = 0.0) -> None:
        self._bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.piece_bytes = PIECE_BYTES if bytes_per_second else sys.maxsize

    def carry(self, size_bytes: int) -> None:
        """Return once the link has carried so many bytes more."""
        if not self._bytes_per_second:
            return
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size_bytes / self._bytes_per_second
            wait = self._free_at - now
        if wait > LATE_SECONDS:
            time.sleep(wait)
