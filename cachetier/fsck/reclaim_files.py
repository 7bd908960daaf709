"""Give shards their own files back that start-up set aside, as no row named them."""

from __future__ import annotations

import os
from pathlib import Path

from cachetier.errors import IntegrityError
from cachetier.fsck.resend import content_of
from cachetier.local.lost_and_found import LostAndFound
from cachetier.local.store import Store
from cachetier.model.shard import Shard

Key = tuple[str, int, str, str, int, int]


class Reclaiming:
    """Looks for lost bytes of one store's shards in ``lost+found``, which it reads once."""

    def __init__(self, store: Store, cache_dir: Path) -> None:
        self._store = store
        self._lost = LostAndFound(cache_dir)
        self._files: dict[Key, list[str]] | None = None

    def reclaim(self, shard: Shard) -> bool:
        """Give ``shard`` a file that says it holds it, and does; return whether there was one."""
        return any(self._take(shard, file_id) for file_id in self._found(shard))

    def _found(self, shard: Shard) -> list[str]:
        if self._files is None:
            self._files = {}
            for file in self._lost.all():
                if file.identity is not None:
                    of, ids = file.identity, file.identity.ids
                    key = ids.run, ids.step, ids.save_id, of.name, of.size_bytes, of.digest
                    self._files.setdefault(key, []).append(file.file_id)
        content = shard.content
        key = shard.run, shard.step, shard.save_id, shard.name, content.size_bytes, content.digest
        return self._files.pop(key, [])

    def _take(self, shard: Shard, file_id: str) -> bool:
        size_bytes = shard.content.size_bytes
        if not self._is_sound(shard, file_id) or not self._store.space.try_reserve(size_bytes):
            return False
        try:
            self._lost.take_back(file_id)
            self._store.files.sync_name(file_id)
            durable = self._store.replica_log.durable
            before = self._store.catalog.attach(shard.version, file_id, durable)
        except BaseException:
            self._store.space.release(size_bytes)
            raise
        self._store.drop([before])
        return True

    def _is_sound(self, shard: Shard, file_id: str) -> bool:
        descriptor = os.open(self._lost.path(file_id), os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = content_of(descriptor, shard.content.size_bytes)
        except IntegrityError:
            return False
        finally:
            os.close(descriptor)
        return found.block_digests == shard.content.block_digests
