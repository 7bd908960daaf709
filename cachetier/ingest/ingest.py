"""Take shards in: admit, stage, check, commit. Every door ends here.

When there is no room and only dirty bytes remain, ``when_full`` decides: ``wait`` for the drain
until the call's deadline, ``reject`` at once, or ``write_through``: send this one shard straight to
the remote.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from cachetier_client.bucket_format.stored import (
    NO_FACTS,
    SHARD_LIMIT_BYTES,
    Content,
    ShardFacts,
)
from cachetier_client.identity import names
from cachetier_client.identity.names import SaveIds
from cachetier_client.io import digests
from cachetier_client.results import Receipt

from cachetier.errors import CachetierError, DigestMismatchError, InvalidRequestError
from cachetier.ingest.admission import GROWTH_BYTES, Admission
from cachetier.local.catalog import saves
from cachetier.local.catalog.parts import Committed
from cachetier.local.store import Staged, Store
from cachetier.model.backpressure import WhenFull
from cachetier.model.checkpoint import admitted_save
from cachetier.model.levels import Level
from cachetier.model.shard import INLINE_BYTES, Shard
from cachetier.restore.knowledge import Knowledge

Result = TypeVar("Result")


class RemoteStage(Protocol):
    """A shard on its way straight to the remote, block by block; see ``Staged``."""

    begun_at: float

    def write(self, block: bytes | bytearray | memoryview) -> None:
        """Send the next block."""

    def commit(self, content: Content, facts: ShardFacts = NO_FACTS, /) -> Shard:
        """Finish, verify and record the shard; on error leave nothing behind."""

    def abort(self) -> None:
        """Leave nothing behind remotely."""


Finish = Callable[[], Receipt]


OpenRemoteStage = Callable[[SaveIds, str, int | None], RemoteStage]


class Ingest(Protocol):
    """The interface that takes shards in, as the doors see it.

    ``NodeIngest``, with or without wrappers.
    """

    def begin(
        self,
        ids: SaveIds,
        name: str,
        size_bytes: int | None,
        timeout_seconds: float,
        *,
        memory: bool = False,
    ) -> Staged | RemoteStage:
        """Reserve room for a shard and create its file; ``size_bytes`` None reserves a first step.

        With ``memory`` the file is in memory, if its size is known and there is room for it there.

        Raises:
            BackpressureError: No room before the deadline, or the caller still writes to a put that
                went past its reservation.
            InvalidNameError, InvalidRequestError: Refused up front.
        """

    def extend(self, staged: Staged, total_bytes: int, timeout_seconds: float) -> int:
        """Reserve room for ``total_bytes`` of a shard; see ``Admission.extend``."""

    def commit(
        self,
        staged: Staged | RemoteStage,
        ids: SaveIds,
        name: str,
        content: Content,
        facts: ShardFacts = NO_FACTS,
    ) -> Receipt:
        """Check what was declared, make the shard safe and promise so; on error nothing is kept."""

    def abort(self, staged: Staged | RemoteStage) -> None:
        """Leave nothing of a staged shard behind."""

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
        """Begin to commit a small shard inside the catalog; what is returned ends that, and must.

        Shards that were begun before the first of them ends share one sync.

        Raises:
            DigestMismatchError: ``body`` is not what ``digest`` says.
            MustWaitError: There is no room, and ``timeout_seconds`` is None.
        """


class NodeIngest:
    """Admission and commit of shards on this node. Thread-safe."""

    def __init__(
        self,
        store: Store,
        *,
        when_full: WhenFull,
        make_room: Callable[[], None],
        open_remote_stage: OpenRemoteStage | None = None,
        on_committed: Callable[[], None] = lambda: None,
        knowledge: Knowledge | None = None,
    ) -> None:
        """Take shards in; what ``knowledge`` refuses, the bucket is asked about first."""
        self._store = store
        self._knowledge = knowledge
        self._when_full = when_full
        self._admission = Admission(store, when_full, make_room)
        self._open_remote_stage = open_remote_stage
        self._on_committed = on_committed

    def begin(
        self,
        ids: SaveIds,
        name: str,
        size_bytes: int | None,
        timeout_seconds: float,
        *,
        memory: bool = False,
    ) -> Staged | RemoteStage:
        _check(name, size_bytes)
        self._admission.refuse_who_has_too_much()
        self._after_asking(
            ids, lambda: admitted_save(self._store.read(saves.saves_of, ids.run, ids.step), ids)
        )
        staged = None
        if memory and size_bytes is not None:
            staged = self._store.stage_in_memory(size_bytes)
        staged = staged or self._admission.stage(size_bytes, timeout_seconds)
        return staged or self._through(ids, name, size_bytes)

    def extend(self, staged: Staged, total_bytes: int, timeout_seconds: float) -> int:
        return self._admission.extend(staged, total_bytes, timeout_seconds)

    def commit(
        self,
        staged: Staged | RemoteStage,
        ids: SaveIds,
        name: str,
        content: Content,
        facts: ShardFacts = NO_FACTS,
    ) -> Receipt:
        try:
            content.checked()
            facts.check(content.size_bytes)
        except CachetierError:
            self.abort(staged)
            raise
        if isinstance(staged, Staged):
            shard = self._store.commit(staged, ids, name, content, facts).shard
            receipt = _receipt_of(shard)
        else:
            receipt = _receipt_of(staged.commit(content, facts), Level.DURABLE)
        self._on_committed()
        return receipt

    def abort(self, staged: Staged | RemoteStage) -> None:
        if isinstance(staged, Staged):
            self._store.discard(staged)
        else:
            staged.abort()

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
        _check(name, len(body))
        if len(body) > INLINE_BYTES:
            raise InvalidRequestError(f"{len(body)} bytes are too many for an inline shard")
        content = Content.of_block(body)
        if content.digest != digest:
            raise DigestMismatchError("the bytes do not match their digest", name=name)
        facts.check(len(body))
        self._admission.refuse_who_has_too_much()
        begin = partial(self._store.commit_inline, ids, name, content, body, facts)
        commit = self._admission.in_room(len(body), timeout_seconds, begin)
        if commit is None:
            stage = self._through(ids, name, len(body))
            stage.write(body)
            return partial(self.commit, stage, ids, name, content, facts)

        def again() -> Committed:
            begun = self._admission.in_room(len(body), timeout_seconds or 0.0, begin)
            if begun is None:
                raise self._admission.full(len(body))
            return begun()

        def finish() -> Receipt:
            shard = self._after_asking(ids, commit, again).shard
            self._on_committed()
            return _receipt_of(shard)

        return finish

    def _after_asking(
        self, ids: SaveIds, call: Callable[[], Result], again: Callable[[], Result] | None = None
    ) -> Result:
        if self._knowledge is None:
            return call()
        return self._knowledge.after_asking(ids.run, ids.step, call, again)

    def _through(self, ids: SaveIds, name: str, size_bytes: int | None) -> RemoteStage:
        """Open a stream to the remote for what has no room here, or say that it is full."""
        through = self._when_full is WhenFull.WRITE_THROUGH and self._store.takes_records()
        if not through or self._open_remote_stage is None:
            raise self._admission.full(GROWTH_BYTES if size_bytes is None else size_bytes)
        return self._open_remote_stage(ids, name, size_bytes)


def _receipt_of(shard: Shard, level: Level | None = None) -> Receipt:
    """Return what is promised of a shard: that it is safe at ``level``, else where its bytes are.

    The same bytes may have been put before, and be in memory still.
    """
    return Receipt(
        run=shard.run,
        step=shard.step,
        name=shard.name,
        save_id=shard.save_id,
        size_bytes=shard.content.size_bytes,
        digest=digests.to_hex(shard.content.digest),
        level=level or (Level.MEMORY if shard.in_memory else Level.LOCAL),
    )


def _check(name: str, size_bytes: int | None) -> None:
    names.checked_name(name)
    if size_bytes is not None and not 0 <= size_bytes <= SHARD_LIMIT_BYTES:
        raise InvalidRequestError(
            f"a shard has 0 to {SHARD_LIMIT_BYTES} bytes, not {size_bytes}",
            hint="Split the shard.",
            name=name,
        )
