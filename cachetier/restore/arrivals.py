"""Shards that are on their way here: readers of one read along, block by block.

A rank need not wait until the last block has come and the file is synced. It gets the file that the
shard arrives in, and hears which of its blocks are there and sound; the rest of a restore happens
behind it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from cachetier import callers
from cachetier.errors import NotFoundError
from cachetier.model.shard import Shard

THREADS = 64


class Arriving:
    """One shard on its way. Thread-safe."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._changed = threading.Condition()
        self._came: set[int] = set()
        self._descriptor: int | None = None
        self._ended = False
        self._error: Exception | None = None

    # --- who brings it ---------------------------------------------------------------------------

    def begins(self, descriptor: int) -> None:
        """Take over a descriptor of the file, to be read only: blocks begin to come into it.

        It may be another file than before, in which none of them is yet.
        """
        with self._changed:
            before, self._descriptor = self._descriptor, descriptor
            self._came.clear()
            self._changed.notify_all()
        if before is not None:
            os.close(before)

    def came(self, block: int) -> None:
        """Count a block that is in the file, and sound."""
        with self._changed:
            self._came.add(block)
            self._changed.notify_all()

    def has(self, block: int) -> bool:
        """Return whether a block has come: nobody may write there again."""
        return block in self._came

    def is_kept(self) -> None:
        """The file is synced: training gets its page cache back."""
        with self._changed:
            if self._descriptor is not None:
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def ends(self, error: Exception | None = None) -> None:
        """Nothing more comes: all is here, or ``error`` happened."""
        with self._changed:
            self._ended, self._error = True, error
            descriptor, self._descriptor = self._descriptor, None
            self._changed.notify_all()
        if descriptor is not None:
            os.close(descriptor)

    # --- who reads along -------------------------------------------------------------------------

    def opened(self, timeout_seconds: float) -> int | None:
        """Return a descriptor of the file, the caller's to close; None where there is none (yet).

        Raises:
            CachetierError: It cannot be brought.
        """
        with self._changed:
            begun = callers.wait_for(
                self._changed, lambda: self._ended or self._descriptor is not None, timeout_seconds
            )
            if self._error is not None:
                raise self._error
            return os.dup(self._descriptor) if begun and self._descriptor is not None else None

    def blocks(self, more_than: int, timeout_seconds: float) -> set[int]:
        """Return the blocks that have come, once they are more than so many, or in time.

        Raises:
            CachetierError: No more come.
        """
        with self._changed:
            callers.wait_for(
                self._changed, lambda: self._ended or len(self._came) > more_than, timeout_seconds
            )
            if self._error is not None:
                raise self._error
            return set(self._came)


class Arrivals:
    """The shards on their way here, by version. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arriving: dict[int, Arriving] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="arriving")

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def of(self, version: int) -> Arriving | None:
        """Return the shard of that version, if it is on its way for somebody who reads along."""
        return self._arriving.get(version)

    def follow(self, shard: Shard, bring: Callable[[], None]) -> Arriving:
        """Return ``shard`` on its way; if it is not, ``bring`` brings it from now on."""
        with self._lock:
            arriving = self._arriving.get(shard.version)
            if arriving is not None:
                return arriving
            arriving = self._arriving[shard.version] = Arriving(shard)
        self._threads.submit(self._bring, arriving, bring)
        return arriving

    @contextmanager
    def shown(self, shard: Shard) -> Iterator[Arriving]:
        """Let others read along while ``shard`` is brought inside."""
        with self._lock:
            followed = self._arriving.get(shard.version)
            arriving = self._arriving.setdefault(shard.version, followed or Arriving(shard))
        if followed is not None:
            yield followed
            return
        error: Exception | None = None
        try:
            yield arriving
        except Exception as failure:
            error = failure
            raise
        finally:
            self._ended(arriving, error)

    def _bring(self, arriving: Arriving, bring: Callable[[], None]) -> None:
        error: Exception | None = None
        try:
            bring()
        except Exception as failure:
            error = failure
        self._ended(arriving, error)

    def _ended(self, arriving: Arriving, error: Exception | None) -> None:
        with self._lock:
            del self._arriving[arriving.shard.version]
        arriving.ends(error)


def arrives_no_longer(shard_name: str) -> NotFoundError:
    """Return what somebody hears who asks for blocks of what is not on its way."""
    return NotFoundError(f"shard {shard_name} is not on its way any more", hint="Open it again.")
