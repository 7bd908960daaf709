"""Read an opened shard block by block, each verified before it is given out.

A local block that fails its digest takes the local copy out of use, and the same bytes come from
the remote instead. A shard that is on its way here is read as its blocks come.
"""

from __future__ import annotations

import os

from cachetier_client.io import digests
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.errors import DeadlineError, IntegrityError, NotFoundError
from cachetier.model.shard import Shard
from cachetier.restore.restore import Opened, Restore


class BlockReader:
    """Reads one opened shard, of one caller at a time; ``close`` it.

    With ``keep_cached`` the page cache keeps what was read, as somebody sends it from there.
    """

    def __init__(
        self,
        opened: Opened,
        restore: Restore,
        timeout_seconds: float,
        *,
        keep_cached: bool = False,
    ) -> None:
        self._opened = opened
        self._restore = restore
        self._timeout_seconds = timeout_seconds
        self._keep_cached = keep_cached
        self._there: set[int] = set()  # of what arrives

    @property
    def opened(self) -> Opened:
        return self._opened

    def close(self) -> None:
        if self._opened.descriptor is not None:
            os.close(self._opened.descriptor)

    def fill(self, number: int, block: memoryview) -> None:
        """Read one block, from the remote if the local one is damaged.

        Raises:
            IntegrityError: No sound copy is left.
            DeadlineError: No block came for as long as the caller waits.
            CachetierError: It cannot be brought.
        """
        if self._opened.arriving:
            self._await(number)
        if self._read(number, block):
            return
        shard = self._opened.shard
        self._restore.report_damage(shard)
        self._reopen(shard)
        if not self._read(number, block):
            raise _damaged(shard)

    def _await(self, number: int) -> None:
        """Return once a block of what arrives is there; open again what arrives no longer."""
        shard = self._opened.shard
        while number not in self._there:
            known = len(self._there)
            try:
                self._there = self._restore.arrived(
                    shard.run, shard.step, shard.name, shard.version, known, self._timeout_seconds
                )
            except NotFoundError:
                self._reopen(shard)
                return
            if len(self._there) <= known:
                raise DeadlineError(f"no block of shard {shard.name} came", **shard.context)

    def _reopen(self, shard: Shard) -> None:
        reopened = self._restore.open(shard.run, shard.step, shard.name, self._timeout_seconds)
        if reopened.shard.content != shard.content:
            if reopened.descriptor is not None:
                os.close(reopened.descriptor)
            raise _damaged(shard)
        self.close()
        self._opened = reopened

    def _read(self, number: int, block: memoryview) -> bool:
        """Fill ``block``; return False when the disk fails it, or it fails its digest."""
        opened, start = self._opened, number * BLOCK_BYTES
        length = min(BLOCK_BYTES, opened.shard.content.size_bytes - start)
        if opened.remote is not None:
            block[:length] = opened.remote.read(number)
            return True
        if opened.descriptor is None:
            assert opened.body is not None
            block[:length] = opened.body[start : start + length]
            return True
        try:
            count = os.preadv(opened.descriptor, [block[:length]], start)
        except OSError:
            return False
        if not opened.arriving and not self._keep_cached:  # of what arrives, who writes it does
            # What was read once is not read again: leave the page cache to training.
            os.posix_fadvise(opened.descriptor, start, length, os.POSIX_FADV_DONTNEED)
        digest = opened.shard.content.block_digests[number]
        return count == length and digests.digest_of(block[:length]) == digest


def _damaged(shard: Shard) -> IntegrityError:
    return IntegrityError(
        f"the local bytes of shard {shard.name} fail their digest", **shard.context
    )
