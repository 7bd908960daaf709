"""Whether there is room for a put, and who has begun too much already.

Room is reserved before a byte is written, of the capacity and on the disk. When there is none,
clean shards go first; when only dirty bytes remain, ``when_full`` decides.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from cachetier_client.bucket_format.stored import SHARD_LIMIT_BYTES
from cachetier_client.units import shown_size

from cachetier import callers
from cachetier.errors import BackpressureError, DiskFullError, InvalidRequestError
from cachetier.local.store import DISK_IS_FULL, Staged, Store
from cachetier.model.backpressure import WhenFull
from cachetier.model.shard import in_memory

GROWTH_BYTES = 64 << 20

Kept = TypeVar("Kept")


class MustWaitError(Exception):
    """A put has to wait for room, and the caller cannot: ask again with time to wait."""


class Admission:
    """Reserves room for puts on this node. Thread-safe."""

    def __init__(self, store: Store, when_full: WhenFull, make_room: Callable[[], None]) -> None:
        self._store = store
        self._when_full = when_full
        self._make_room = make_room

    def stage(self, size_bytes: int | None, timeout_seconds: float) -> Staged | None:
        """Reserve room and create its file, or return None where there is no room in time.

        None for ``size_bytes`` reserves a first step.
        """
        needed = GROWTH_BYTES if size_bytes is None else size_bytes
        return self.in_room(needed, timeout_seconds, lambda: self._store.stage(needed))

    def extend(self, staged: Staged, total_bytes: int, timeout_seconds: float) -> int:
        """Reserve room for ``total_bytes`` of a put of unknown length; return what is reserved.

        Raises:
            InvalidRequestError: Fewer than are reserved, or more than a shard has.
            BackpressureError: No room before the deadline.
        """
        if not staged.reserved_bytes <= total_bytes <= SHARD_LIMIT_BYTES:
            raise InvalidRequestError(
                f"cannot extend {staged.reserved_bytes} reserved bytes to {total_bytes}"
            )
        if in_memory(staged.file_id):
            raise InvalidRequestError("a put in memory cannot grow")
        more = total_bytes - staged.reserved_bytes
        extended = self.in_room(
            more, timeout_seconds, lambda: self._store.extend(staged, total_bytes)
        )
        if extended is None:
            raise self.full(more)
        return extended

    def in_room(
        self, size_bytes: int, timeout_seconds: float | None, put: Callable[[], Kept]
    ) -> Kept | None:
        """Run ``put`` once there is room; return None if there is none, as ``when_full`` waits.

        Raises:
            MustWaitError: There is none now, and ``timeout_seconds`` is None.
        """
        if timeout_seconds is None:
            return self._at_once(size_bytes, put)
        if size_bytes > self._store.space.capacity_bytes:
            return None
        patience = timeout_seconds if self._when_full is WhenFull.WAIT else 0.0
        return self._store.in_room(size_bytes, patience, self._make_room, put)

    def _at_once(self, size_bytes: int, put: Callable[[], Kept]) -> Kept:
        space = self._store.space
        if not space.disk_is_full and space.try_reserve(size_bytes):
            with suppress(DiskFullError):
                return put()
        raise MustWaitError

    def refuse_who_has_too_much(self) -> None:
        """Refuse a caller who left too many puts open that went past what they had reserved.

        Raises:
            BackpressureError: It is so.
        """
        holder = callers.holder()
        refusal = self._store.open_files.refusal_of(holder)
        if refusal is not None:
            raise BackpressureError(
                f"no new put is accepted for {holder or 'anybody'}: {refusal}",
                hint="Close the open file, or end the process that has it open; then put again.",
            )

    def full(self, size_bytes: int) -> BackpressureError:
        """Return what a put says for which there is no room."""
        space = self._store.space
        wanted, used = shown_size(size_bytes), shown_size(space.used_bytes)
        if space.disk_is_full:
            return DiskFullError(f"no room for {wanted}: {DISK_IS_FULL}, at {used}")
        return BackpressureError(
            f"no room for {wanted}: {used} of {shown_size(space.capacity_bytes)} in use"
        )
