"""One rank's part of one save: put its shards, then seal; or take everything back."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Self, SupportsIndex

from cachetier_client.bucket_format.stored import ShardFacts
from cachetier_client.calls.caller import ServiceCalls, reaches
from cachetier_client.errors import CachetierClientError, InvalidRequestError, inherited
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.buffers import ShardData
from cachetier_client.io.ring import Ring
from cachetier_client.results import Receipt
from cachetier_client.streams.writer import ShardWriter
from cachetier_client.transport.base import PutRequest
from cachetier_client.units import counted

ABORT_SECONDS = 5.0


class Checkpoint:
    """A rank's part of a save, as a context: left normally it seals, by an exception it aborts.

    The step becomes visible when all ranks have sealed; no rank waits for another. With
    ``ack="durable"`` or ``"replicated"`` leaving waits until this rank's shards are. Puts may come
    from several threads.

    Attributes:
        run, step, rank, world_size, save_id: What is being saved.
        receipts: The shards stored so far, by name.
        sealed_ranks: After sealing, the ranks of this save that have sealed on this node.
    """

    def __init__(
        self,
        caller: ServiceCalls,
        part: SaveIds,
        *,
        ranks_on_node: int | None,
        ack: str,
        timeout_seconds: float,
        on_end: Callable[[], None],
    ) -> None:
        self.run = part.run
        self.step = part.step
        self.rank = part.rank
        self.world_size = part.world_size
        self.save_id = part.save_id
        self.receipts: dict[str, Receipt] = {}
        self.sealed_ranks: tuple[int, ...] = ()
        self._caller = caller
        self._part = part
        self._ranks_on_node = ranks_on_node
        self._ack = ack
        self._timeout_seconds = timeout_seconds
        self._on_end = on_end
        self._writers: list[ShardWriter] = []
        self._ended = False
        self._process = os.getpid()
        self._began = caller.clock.monotonic()

    def put(
        self,
        data: ShardData,
        name: str,
        *,
        timeout_seconds: float | None = None,
        element_size: SupportsIndex | None = None,
    ) -> Receipt:
        """Store one shard of this rank on the node; see ``Client.put_shard``.

        Raises:
            TypeError: The name came first, as in an earlier order; nothing was stored.
        """
        if isinstance(data, str):
            raise TypeError(f"put(data, name) takes the data first, and got {data!r}")
        with self._calling("put_shard", name=name):
            seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
            ack = self._first_ack
            receipt = self._caller.put(self._part, name, data, ack, seconds, element_size)
        self._keep(receipt)
        return receipt

    def open(
        self,
        name: str,
        *,
        timeout_seconds: float | None = None,
        element_size: SupportsIndex | None = None,
        size_bytes: int | None = None,
        ring: Ring | None = None,
    ) -> ShardWriter:
        """Open a stream that becomes a shard of this rank when it is closed.

        The options are those of ``Client.open_shard``.
        """
        with self._calling("open_shard", name=name):
            seconds = self._timeout_seconds if timeout_seconds is None else timeout_seconds
            facts = ShardFacts.of_put(element_size)
            ack = self._first_ack
            request = PutRequest(self._part, name, size_bytes, facts, ack == "memory")
            writer = self._caller.open_writer(
                request, ack, seconds, ring=ring, on_receipt=self._keep
            )
        self._writers.append(writer)
        return writer

    def seal(self) -> tuple[int, ...]:
        """Say that this rank's part is whole; return the ranks that have sealed on this node.

        Raises:
            InvalidRequestError: A stream of it is still open.
            NotDurableError: Sealed, but not at the level of ``ack`` in time.
        """
        with self._calling("seal"):
            unfinished = [writer for writer in self._writers if not writer.closed]
            if unfinished:
                are = "is" if len(unfinished) == 1 else "are"
                raise InvalidRequestError(
                    f"{counted(len(unfinished), 'shard')} of the checkpoint {are} still being "
                    "written",
                    hint="Close every stream before the checkpoint ends.",
                )
            seconds = self._timeout_seconds
            self.sealed_ranks = self._caller.seal(self._part, self._ranks_on_node, seconds)
            self._end()
            if self._ack != self._first_ack:
                self._wait()
        self._caller.note_blocked(self.run, self._caller.clock.monotonic() - self._began)
        return self.sealed_ranks

    def abort(self) -> None:
        """Take back what this rank put, for at most a few seconds; does nothing once ended."""
        if self._ended or self._process != os.getpid():
            return
        self._end()
        for writer in self._writers:
            writer.abort()
        with self._calling("abort_rank", ends=True):
            self._caller.abort_rank(self._part, min(ABORT_SECONDS, self._timeout_seconds))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self._process != os.getpid():
            return  # a forked child that leaves ends nothing of its parent's
        if error is None:
            try:
                self.seal()
                return
            except BaseException as failed:
                self._abort_after(failed)
                raise
        self._abort_after(error)

    def _abort_after(self, error: BaseException) -> None:
        """Abort, and let what made us do so be what is raised."""
        try:
            self.abort()
        except CachetierClientError as failed:
            error.add_note(f"and aborting the checkpoint failed too: {failed}")

    def _calling(
        self, operation: str, *, name: str | None = None, ends: bool = False
    ) -> AbstractContextManager[object]:
        """Do a call of this part. Failures of older saves do not break into this one."""
        if self._process != os.getpid():
            raise inherited()
        if self._ended and not ends:
            raise InvalidRequestError(
                "the checkpoint has ended", hint="Begin another: client.checkpoint(...)."
            )
        ids = {"run": self.run, "step": self.step, "rank": self.rank, "name": name}
        return self._caller.calling(operation, tells=False, **ids)

    @property
    def _first_ack(self) -> str:
        """The level each put waits for; for a level of remotes the seal does."""
        return "memory" if self._ack == "memory" else "local"

    def _wait(self) -> None:
        deadline = self._caller.deadline(self._timeout_seconds)
        for name, receipt in self.receipts.items():
            if not reaches(receipt.level, self._ack):
                self._caller.wait(self.run, self.step, name, self._ack, deadline.remaining())

    def _keep(self, receipt: Receipt) -> None:
        self.receipts[receipt.name] = receipt

    def _end(self) -> None:
        self._ended = True
        self._on_end()
