"""The shape of a link: how much it lets through, all together and each connection, and how late."""

from __future__ import annotations

import random
import sys
import threading
import time
from dataclasses import dataclass

PIECE_BYTES = 64 << 10
PIECE_SECONDS = 0.02  # a connection with a limit of its own gets pieces of so much time
LATE_SECONDS = 0.005  # shorter waits are made up for later


class Link:
    """Lets so many bytes a second through; 0 for as many as come. Thread-safe."""

    def __init__(self, bytes_per_second: float = 0.0, piece_bytes: int = PIECE_BYTES) -> None:
        self._bytes_per_second = bytes_per_second
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.piece_bytes = piece_bytes if bytes_per_second else sys.maxsize

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


@dataclass(frozen=True, slots=True)
class Shape:
    """What each connection meets; speeds in bytes per second, 0 without a limit.

    Args:
        each: What one connection gets.
        latency: Seconds until an answer begins.
        jitter: How much of the latency comes or goes, at random.
        outliers: The share of requests that get a tenth of the speed.
        whole: A body is taken as fast as it comes, and worked through before the answer.
    """

    each: float = 0.0
    latency: float = 0.0
    jitter: float = 0.0
    outliers: float = 0.0
    whole: bool = False

    def way(self) -> Link:
        """Return what the next request goes through."""
        each = self.each / 10 if random.random() < self.outliers else self.each
        return Link(each, max(PIECE_BYTES, int(each * PIECE_SECONDS)))

    def wait(self) -> None:
        """Be late."""
        time.sleep(self.latency * (1.0 + self.jitter * random.uniform(-1.0, 1.0)))
