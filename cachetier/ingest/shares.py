"""Puts within the share of a principal: a wrapper around whatever takes shards in.

Only nodes with quotas have it. Nobody waits in here: where ``when_full`` is ``wait``, a put whose
share is full is handed the question to wait for, which the doors do without a thread or a place.
The other modes refuse at once: who is beyond its share gets none of the node's few streams to the
remote either.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from cachetier_client.bucket_format.stored import Content
from cachetier_client.identity.names import SaveIds
from cachetier_client.results import Receipt

from cachetier import callers
from cachetier.access.quotas import Counts, Quotas, ShareFullError
from cachetier.errors import CachetierError
from cachetier.ingest.ingest import GROWTH_BYTES, Finish, Ingest, MustWaitError, RemoteStage
from cachetier.local.store import Staged
from cachetier.model.levels import Level
from cachetier.steps.waits import Question

RING_SECONDS = 1.0


class ShareAwaitedError(MustWaitError):
    """No answer yet: wait for ``room``, which is True, or False at the deadline; then try again."""

    def __init__(self, room: Question[bool]) -> None:
        super().__init__("a share is full")
        self.room = room


class SharedIngest:
    """Counts what is put for its principals, and takes no more than their quotas. Thread-safe.

    A put without time to wait hears ``ShareFullError``, one with time ``ShareAwaitedError``.
    """

    def __init__(
        self, ingest: Ingest, quotas: Quotas, *, waits: bool, ring: Callable[[], None]
    ) -> None:
        """Wrap ``ingest``; ``ring`` has the node look at what to drain, and at who waits."""
        self._ingest = ingest
        self._quotas = quotas
        self._waits = waits
        self._ring = ring
        self._rang_at = float("-inf")
        self._staged: dict[int, tuple[object, Counts]] = {}  # with the stage: its id stays its own

    def begin(
        self, ids: SaveIds, name: str, size_bytes: int | None, timeout_seconds: float
    ) -> Staged | RemoteStage:
        counts = self._taken(
            ids, GROWTH_BYTES if size_bytes is None else size_bytes, timeout_seconds
        )
        try:
            stage = self._ingest.begin(ids, name, size_bytes, timeout_seconds)
        except BaseException:
            self._end(counts)
            raise
        self._staged[id(stage)] = stage, counts
        return stage

    def extend(self, staged: Staged, total_bytes: int, timeout_seconds: float) -> int:
        _, before = self._staged[id(staged)]
        more_bytes = max(0, total_bytes - staged.reserved_bytes)
        more = {name: {"size_bytes": more_bytes} for name in before}
        self._take(more, timeout_seconds)
        try:
            extended = self._ingest.extend(staged, total_bytes, timeout_seconds)
        except BaseException:
            self._end(more)
            raise
        counts = {
            name: {**each, "size_bytes": each["size_bytes"] + more_bytes}
            for name, each in before.items()
        }
        self._staged[id(staged)] = staged, counts
        return extended

    def commit(
        self, staged: Staged | RemoteStage, ids: SaveIds, name: str, content: Content
    ) -> Receipt:
        _, counts = self._staged.pop(id(staged))
        return self._kept(counts, partial(self._ingest.commit, staged, ids, name, content))

    def refused_by_disk(self, error: OSError) -> CachetierError:
        return self._ingest.refused_by_disk(error)

    def abort(self, staged: Staged | RemoteStage) -> None:
        _, counts = self._staged.pop(id(staged))
        try:
            self._ingest.abort(staged)
        finally:
            self._end(counts)

    def begin_inline(
        self,
        ids: SaveIds,
        name: str,
        body: bytes,
        digest: int,
        timeout_seconds: float | None,
        *,
        element_size: int = 0,
    ) -> Finish:
        counts = self._taken(ids, len(body), timeout_seconds)
        try:
            finish = self._ingest.begin_inline(
                ids, name, body, digest, timeout_seconds, element_size=element_size
            )
        except BaseException:
            self._end(counts)
            raise
        return partial(self._kept, counts, finish)

    # --- counting --------------------------------------------------------------------------------

    def _taken(self, ids: SaveIds, size_bytes: int, timeout_seconds: float | None) -> Counts:
        counts = self._quotas.of_put(ids.run, callers.principal(), size_bytes)
        self._take(counts, timeout_seconds)
        return counts

    def _take(self, wanted: Counts, timeout_seconds: float | None) -> None:
        try:
            self._quotas.take(wanted, callers.principal())
        except ShareFullError as error:
            if time.monotonic() - self._rang_at > RING_SECONDS:  # whoever comes again and again
                self._rang_at = time.monotonic()
                self._ring()
            if error.for_ever or not self._waits or timeout_seconds == 0.0:
                raise
            look = partial(self._quotas.has_room, wanted)
            raise ShareAwaitedError(
                Question(repr(wanted), lambda: look() or None, lambda _seconds: False)
            ) from None

    def _kept(self, counts: Counts, put: Callable[[], Receipt]) -> Receipt:
        """End a put by ``put``; what it leaves here counts on."""
        kept_bytes = None
        try:
            receipt = put()
            kept_bytes = receipt.size_bytes if receipt.level is Level.LOCAL else None
            return receipt
        finally:
            self._end(counts, kept_bytes)

    def _end(self, counts: Counts, kept_bytes: int | None = None) -> None:
        if self._quotas.end(counts, kept_bytes):
            self._ring()
