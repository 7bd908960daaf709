"""The shape of a link: how much it lets through, all together and each connection, and how late."""

from __future__ import annotations

import math
import random
import sys
import threading
import time
from dataclasses import dataclass

PIECE_BYTES = 64 << 10
PIECE_SECONDS = 0.02  # a connection with a limit of its own gets pieces of so much time
KNEE_FALLS = 1.5  # four times as many as at the knee bring half
LATE_SECONDS = 0.005  # shorter waits are made up for later


class Link:
    """Lets so many bytes a second through; 0 for as many as come. Thread-safe.

    Args:
        bytes_per_second: Its speed; half of it from ``halves_after`` bytes on, if any.
        piece_bytes: In what pieces it is to be used.
    """

    def __init__(
        self,
        bytes_per_second: float = 0.0,
        piece_bytes: int = PIECE_BYTES,
        halves_after: float = math.inf,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._bytes_left = halves_after
        self._lock = threading.Lock()
        self._free_at = 0.0
        self.piece_bytes = piece_bytes if bytes_per_second else sys.maxsize

    def carry(self, size_bytes: int, ahead_bytes: float = 0.0, slower: float = 1.0) -> None:
        """Return once the link has carried so many bytes more, but for ``ahead_bytes``."""
        if not self._bytes_per_second:
            return
        with self._lock:
            now = time.monotonic()
            self._bytes_left -= size_bytes
            speed = self._bytes_per_second / slower / (2 if self._bytes_left < 0 else 1)
            self._free_at = max(self._free_at, now) + size_bytes / speed
            wait = self._free_at - now - ahead_bytes / speed
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
        ahead: How many bytes of a body are taken faster than they are worked through, before the
            answer comes: what a kernel, or a proxy, has of buffers.
        knee: Bodies at once from which on more of them bring less in all; 0 for none.
        halves_after: Bytes, from which on the link of all has half of its speed.
    """

    each: float = 0.0
    latency: float = 0.0
    jitter: float = 0.0
    outliers: float = 0.0
    ahead: float = 0.0
    knee: int = 0
    halves_after: float = math.inf

    def way(self) -> Link:
        """Return what the next request goes through."""
        each = self.each / 10 if random.random() < self.outliers else self.each
        return Link(each, max(PIECE_BYTES, int(each * PIECE_SECONDS)))

    def slower(self, at_once: int) -> float:
        """Return how many times slower each of so many bodies is than one."""
        return max(1.0, at_once / self.knee) ** KNEE_FALLS if self.knee else 1.0

    def wait(self) -> None:
        """Be late."""
        time.sleep(self.latency * (1.0 + self.jitter * random.uniform(-1.0, 1.0)))
