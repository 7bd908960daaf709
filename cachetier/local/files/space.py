"""The byte budget of the node: room is reserved before a byte is written.

Bytes are counted from reservation to removal, so that accounted bytes are never below the bytes on
disk. A disk that others fill below the capacity has a limit of its own, which is learned when it
refuses bytes: whoever makes room or waits for it does so by ``limit_bytes``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cachetier import callers


class Space:
    """A hard budget of ``capacity_bytes``, shared by every thread that stages or removes files."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._disk_bytes: int | None = None
        self._used_bytes = 0
        self._changed = threading.Condition()
        self._wanted_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def limit_bytes(self) -> int:
        """How much may be used now: the capacity, or what the disk takes if that is less."""
        disk_bytes = self._disk_bytes
        return self.capacity_bytes if disk_bytes is None else min(self.capacity_bytes, disk_bytes)

    @property
    def disk_is_full(self) -> bool:
        """Return whether the disk takes less than the capacity, as far as is known."""
        return self._disk_bytes is not None

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
            if self._used_bytes + size_bytes > self.limit_bytes:
                return False
            self._used_bytes += size_bytes
            return True

    def reserve(self, size_bytes: int, timeout_seconds: float, on_wait: Callable[[], None]) -> bool:
        """Take ``size_bytes``, waiting up to ``timeout_seconds``.

        ``on_wait`` asks for room to be made.

        Raises:
            CallerGoneError: Whoever wants it hung up while it waited.
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
            fits = callers.wait_for(
                self._changed,
                lambda: self._used_bytes + size_bytes <= self.limit_bytes,
                timeout_seconds,
            )
            if fits:
                self._used_bytes += size_bytes
            return fits

    def release(self, size_bytes: int) -> None:
        """Give ``size_bytes`` back."""
        with self._changed:
            self._used_bytes -= size_bytes
            self._changed.notify_all()

    def refuse(self, size_bytes: int, free_bytes: int) -> None:
        """Give ``size_bytes`` back that the disk did not take, though it says ``free_bytes``."""
        with self._changed:
            self._used_bytes -= size_bytes
            self._disk_bytes = self._used_bytes + min(free_bytes, size_bytes - 1)
            self._changed.notify_all()

    def look(self, free_bytes: int) -> None:
        """Learn what a disk that was full takes now."""
        with self._changed:
            disk_bytes = self._used_bytes + free_bytes
            self._disk_bytes = disk_bytes if disk_bytes < self.capacity_bytes else None
            self._changed.notify_all()
