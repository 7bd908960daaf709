"""Copy shards from memory to the disk, behind the puts that were acknowledged in memory.

One thread takes them in the order in which they came. A row names the file on the disk only once
that is synced, and the file in memory goes after that: at any instant a shard is whole in one place
at least, and its row never says more than is true. Each block is checked on the way, so that bytes
that memory damaged do not become a sound file.

Source: docs/design/0055-memory-first.md.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.errors import CachetierError, IntegrityError, NotFoundError
from cachetier.local.catalog import shards
from cachetier.local.files.data_files import write_all
from cachetier.local.store import Staged, Store
from cachetier.model.lifecycle import SOUND_SHARDS, ShardState
from cachetier.model.shard import Shard
from cachetier.notifier import Changes
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

ROOM_SECONDS = 1.0  # to wait for room on the disk, before puts have their turn
LOOK_SECONDS = 60.0
FULL_FROM = 0.5  # of memory


class WriteBack:
    """Brings what is in memory to the disk, as room comes.

    Args:
        store: Whose shards these are.
        changes: Rung by puts, and for those who wait until a shard is local.
        make_room: Asks for room on the disk.
        evict: Drops the bytes of a clean shard; returns whether they went.
        on_damage: Called with a shard whose bytes in memory fail their digests.
    """

    def __init__(
        self,
        store: Store,
        changes: Changes,
        *,
        make_room: Callable[[], None],
        evict: Callable[[Shard], bool],
        on_damage: Callable[[Shard], object],
    ) -> None:
        self._store = store
        self._changes = changes
        self._make_room = make_room
        self._evict = evict
        self._on_damage = on_damage
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="write-back", daemon=True)

    def start(self) -> None:
        """Begin; a node without memory has nothing to copy, now or later."""
        if self._store.memory.capacity_bytes or self._store.in_memory:
            self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End the thread; what is half copied is copied again by the next start."""
        self._stopping.set()
        self._changes.ring()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def copy_next(self) -> bool:
        """Copy the oldest shard that is to be copied; return False if there is none, or no room.

        Those that may stay are due once memory is half full, so that the next step finds room
        there; of them, what is at every remote is evicted instead.
        """
        memory, queue = self._store.memory, self._store.in_memory or self._store.kept_in_memory
        is_full = memory.used_bytes > memory.capacity_bytes * FULL_FROM
        if not queue:
            return False
        shard = self._store.read(shards.shard_by_version, queue[0])
        if shard is not None and shard.in_memory and shard.state in SOUND_SHARDS:
            if queue is self._store.kept_in_memory and not is_full:
                return False
            may_go = is_full and self._store.policy.keeps_in_memory(shard.step)
            is_gone = may_go and shard.state is ShardState.CLEAN and self._evict(shard)
            if not (is_gone or self._copied(shard)):
                return False
        queue.popleft()  # also what has left memory by itself
        return True

    def _copied(self, shard: Shard) -> bool:
        """Return whether a shard is on the disk, or gone; there may be no room for it."""
        space = self._store.space
        if space.wanted_bytes:  # puts that wait go first
            return False
        copy, size_bytes = partial(self._copy, shard), shard.content.size_bytes
        return bool(self._store.in_room(size_bytes, ROOM_SECONDS, self._make_room, copy))

    def _copy(self, shard: Shard) -> bool:
        """Copy a shard into the room that is reserved for it; return False if that was cut short.

        One that was replaced meanwhile, or that memory damaged, is not copied.
        """
        staged = self._store.stage(shard.content.size_bytes)
        is_whole = False
        try:
            with suppress(FileNotFoundError):
                is_whole = self._fill(staged, shard)
        except IntegrityError:
            self._on_damage(shard)
        finally:
            if not is_whole:
                self._store.discard(staged)
        if is_whole:
            with suppress(NotFoundError):
                self._store.restored(staged, shard, shards.write_back)
            self._changes.ring()
        return not self._stopping.is_set()

    def _fill(self, staged: Staged, shard: Shard) -> bool:
        """Copy and check the bytes of a shard; return False if the service stops meanwhile."""
        assert staged.writer is not None
        assert shard.file_id is not None
        reader = self._store.files.open(shard.file_id)
        try:
            for number, expected in enumerate(shard.content.block_digests):
                if self._stopping.is_set():
                    return False
                at = number * BLOCK_BYTES
                block = os.pread(reader, BLOCK_BYTES, at)
                if digest_of(block) != expected:
                    raise IntegrityError("its bytes in memory fail their digest", **shard.context)
                write_all(staged.writer, memoryview(block), at)
                # Begins to write it out, so that the sync at the end has little left to wait for.
                os.posix_fadvise(staged.writer, at, BLOCK_BYTES, os.POSIX_FADV_DONTNEED)
            os.ftruncate(staged.writer, shard.content.size_bytes)
        finally:
            os.close(reader)
        return True

    def _work(self) -> None:
        rings = 0
        while not self._stopping.is_set():
            patience = ROOM_SECONDS if self._store.in_memory else LOOK_SECONDS
            rings = self._changes.next_ring(rings, patience)
            try:
                while not self._stopping.is_set() and self.copy_next():
                    pass
            except (CachetierError, OSError) as error:
                if not self._stopping.is_set():
                    tell(log, events.WRITE_BACK_FAILED, reason=str(error))
            if self._store.in_memory:
                self._stopping.wait(ROOM_SECONDS)  # also, as what asks for room rings
