"""Puts within the share of a principal: counted around whatever takes shards or objects in.

Only nodes with quotas have it. Nobody waits in here: where ``when_full`` is ``wait``, a put whose
share is full is handed the question to wait for, which the doors do without a thread or a place.
The other modes refuse at once: who is beyond its share gets none of the node's few streams to the
remote either.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from cachetier_client.bucket_format.stored import NO_FACTS, Content, ShardFacts
from cachetier_client.identity.names import SaveIds
from cachetier_client.results import Receipt

from cachetier import callers
from cachetier.access.quotas import Counts, Quotas, ShareFullError
from cachetier.ingest.admission import GROWTH_BYTES, MustWaitError
from cachetier.ingest.ingest import Finish, Ingest, RemoteStage
from cachetier.local.store import Staged
from cachetier.model.levels import HERE
from cachetier.steps.waits import Question

RING_SECONDS = 1.0

Stage = TypeVar("Stage")
Kept = TypeVar("Kept")
Begun = TypeVar("Begun")


class ShareAwaitedError(MustWaitError):
    """No answer yet: wait for ``room``, which is True, or False at the deadline; then try again."""

    def __init__(self, room: Question[bool]) -> None:
        super().__init__("a share is full")
        self.room = room


class Shares:
    """Counts puts under way for its principals, and takes no more than their quotas. Thread-safe.

    A put without time to wait hears ``ShareFullError``, one with time ``ShareAwaitedError``.
    """

    def __init__(self, quotas: Quotas, *, waits: bool, ring: Callable[[], None]) -> None:
        """Count for ``quotas``; ``ring`` has the node look at what to drain, and at who waits."""
        self._quotas = quotas
        self._waits = waits
        self._ring = ring
        self._rang_at = float("-inf")
        self._staged: dict[int, tuple[object, Counts]] = {}  # with the stage: its id stays its own

    def begin(
        self, run: str, size_bytes: int | None, timeout_seconds: float, begin: Callable[[], Stage]
    ) -> Stage:
        """Count a put from now on, and ``begin`` it."""
        size_bytes = GROWTH_BYTES if size_bytes is None else size_bytes
        stage, counts = self._begun(run, size_bytes, timeout_seconds, begin)
        self._staged[id(stage)] = stage, counts
        return stage

    def extend(
        self, staged: Staged, total_bytes: int, timeout_seconds: float, extend: Callable[[], int]
    ) -> int:
        """Count what a put grows by, and ``extend`` it."""
        _, before = self._staged[id(staged)]
        more_bytes = max(0, total_bytes - staged.reserved_bytes)
        more = {name: {"size_bytes": more_bytes} for name in before}
        self._take(more, timeout_seconds)
        try:
            extended = extend()
        except BaseException:
            self._end(more)
            raise
        counts = {
            name: {**each, "size_bytes": each["size_bytes"] + more_bytes}
            for name, each in before.items()
        }
        self._staged[id(staged)] = staged, counts
        return extended

    def end(
        self, staged: object, put: Callable[[], Kept], kept_bytes: Callable[[Kept], int | None]
    ) -> Kept:
        """End a put that was begun by ``put``; what it leaves here counts on."""
        _, counts = self._staged.pop(id(staged))
        return self._kept(counts, put, kept_bytes)

    def begin_inline(
        self,
        run: str,
        size_bytes: int,
        timeout_seconds: float | None,
        begin: Callable[[], Callable[[], Kept]],
        kept_bytes: Callable[[Kept], int | None],
    ) -> Callable[[], Kept]:
        """Count a put from now on, and ``begin`` it; what is returned ends it."""
        finish, counts = self._begun(run, size_bytes, timeout_seconds, begin)
        return partial(self._kept, counts, finish, kept_bytes)

    def record(self, run: str, number: int, size_bytes: int, write: Callable[[], Kept]) -> Kept:
        """Count so many rows of the catalog, which bring no shard, and ``write`` them.

        Raises:
            ShareFullError: There is no room for them; nobody waits for some.
        """
        counts = self._quotas.of_records(run, number, size_bytes)
        self._take(counts, 0.0)
        return self._kept(counts, write, lambda _kept: size_bytes)

    def _begun(
        self, run: str, size_bytes: int, timeout_seconds: float | None, begin: Callable[[], Begun]
    ) -> tuple[Begun, Counts]:
        counts = self._quotas.of_put(run, callers.principal(), size_bytes)
        self._take(counts, timeout_seconds)
        try:
            return begin(), counts
        except BaseException:
            self._end(counts)
            raise

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

    def _kept(
        self, counts: Counts, put: Callable[[], Kept], kept_bytes: Callable[[Kept], int | None]
    ) -> Kept:
        kept = None
        try:
            outcome = put()
            kept = kept_bytes(outcome)
            return outcome
        finally:
            self._end(counts, kept)

    def _end(self, counts: Counts, kept_bytes: int | None = None) -> None:
        if self._quotas.end(counts, kept_bytes):
            self._ring()


class SharedIngest:
    """Counts what is put in the shares of its principals."""

    def __init__(self, ingest: Ingest, shares: Shares) -> None:
        self._ingest = ingest
        self._shares = shares

    def begin(
        self,
        ids: SaveIds,
        name: str,
        size_bytes: int | None,
        timeout_seconds: float,
        *,
        memory: bool = False,
    ) -> Staged | RemoteStage:
        begin = partial(self._ingest.begin, ids, name, size_bytes, timeout_seconds, memory=memory)
        return self._shares.begin(ids.run, size_bytes, timeout_seconds, begin)

    def extend(self, staged: Staged, total_bytes: int, timeout_seconds: float) -> int:
        extend = partial(self._ingest.extend, staged, total_bytes, timeout_seconds)
        return self._shares.extend(staged, total_bytes, timeout_seconds, extend)

    def commit(
        self,
        staged: Staged | RemoteStage,
        ids: SaveIds,
        name: str,
        content: Content,
        facts: ShardFacts = NO_FACTS,
    ) -> Receipt:
        put = partial(self._ingest.commit, staged, ids, name, content, facts)
        return self._shares.end(staged, put, _kept_here)

    def abort(self, staged: Staged | RemoteStage) -> None:
        self._shares.end(staged, partial(self._ingest.abort, staged), lambda _nothing: None)

    def begin_inline(
        self,
        ids: SaveIds,
        name: str,
        body: bytes,
        digest: int,
        timeout_seconds: float | None,
        *,
        facts: ShardFacts = NO_FACTS,
    ) -> Finish:
        what = ids, name, body, digest, timeout_seconds
        begin = partial(self._ingest.begin_inline, *what, facts=facts)
        return self._shares.begin_inline(ids.run, len(body), timeout_seconds, begin, _kept_here)


def _kept_here(receipt: Receipt) -> int | None:
    return receipt.size_bytes if receipt.level in HERE else None
