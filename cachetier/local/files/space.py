"""The byte budget of the node: room is reserved before a byte is written.

Bytes are counted from reservation to removal, so that accounted bytes are never below the bytes on
disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Space:
    """A hard budget of ``capacity_bytes``, shared by every thread that stages or removes files."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._used_bytes = 0
        self._changed = threading.Condition()
        self._wanted_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def wanted_bytes(self) -> int:
        """How many bytes callers are waiting for now."""
        return self._wanted_bytes

    def account(self, size_bytes: int) -> None:
        """Count bytes that are there already, even beyond the capacity."""
        with self._changed:
            self._used_bytes += size_bytes

    def try_reserve(self, size_bytes: int) -> bool:
        """Take ``size_bytes`` if they fit; return whether they did."""
        with self._changed:
            if self._used_bytes + size_bytes > self.capacity_bytes:
                return False
            self._used_bytes += size_bytes
            return True

    def reserve(self, size_bytes: int, timeout_seconds: float, on_wait: Callable[[], None]) -> bool:
        """Take ``size_bytes``, waiting up to ``timeout_seconds``.

        ``on_wait`` asks for room to be made.
        """
        if self.try_reserve(size_bytes):
            return True
        with self._changed:
            self._wanted_bytes += size_bytes
        try:
            on_wait()
            return self._wait_and_take(size_bytes, timeout_seconds)
        finally:
            with self._changed:
                self._wanted_bytes -= size_bytes

    def _wait_and_take(self, size_bytes: int, timeout_seconds: float) -> bool:
        with self._changed:
            fits = self._changed.wait_for(
                lambda: self._used_bytes + size_bytes <= self.capacity_bytes, timeout_seconds
            )
            if fits:
                self._used_bytes += size_bytes
            return fits

    def release(self, size_bytes: int) -> None:
        """Give ``size_bytes`` back."""
        with self._changed:
            self._used_bytes -= size_bytes
            self._changed.notify_all()
