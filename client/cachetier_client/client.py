"""The client: put shards, seal steps, find and get them back, over either door."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, Self, SupportsIndex, overload

from cachetier_client.bucket_format.stored import ShardFacts
from cachetier_client.calls.caller import ServiceCalls, checked_ack
from cachetier_client.calls.reads import GET_SECONDS, ReadCalls
from cachetier_client.calls.runs import PUT_SECONDS
from cachetier_client.checkpoints import Checkpoint
from cachetier_client.clock import Clock, SystemClock
from cachetier_client.errors import InvalidRequestError
from cachetier_client.fallback.policy import Fallback, lasting_transport
from cachetier_client.identity import save_ids
from cachetier_client.identity.names import SaveIds, checked_step
from cachetier_client.identity.ranks import place_of
from cachetier_client.io.block_file import BlockFiles
from cachetier_client.io.buffers import ShardData
from cachetier_client.io.ring import Ring
from cachetier_client.io.workers import Workers
from cachetier_client.results import AckLevel, Receipt
from cachetier_client.streams.reader import ShardReader
from cachetier_client.streams.writer import ShardWriter
from cachetier_client.transport.base import PutRequest
from cachetier_client.transport.connect import DEFAULT_URL, greeting, transport_for


class Client(ReadCalls):
    """Talks to this node's cachetier. Thread-safe, fork-safe, pickles; each call has a deadline.

    Nothing is connected before the first call. Idle, it keeps ``threads - 1`` threads, a few
    connections and up to ``threads`` blocks of 4 MiB.

    Args:
        url: ``unix:///path`` or ``http://host:port``; default ``CACHETIER_URL``, then
            ``unix:///run/cachetier/cachetier.sock``. Over HTTP, ``CACHETIER_TOKEN`` goes along.
            A socket must be served by user ``CACHETIER_SERVICE_UID``, if that is set.
        run: For calls that name none; default ``CACHETIER_RUN``.
        fallback: What to do while the service is away: ``wait`` and repeat until the call's
            deadline, ``fail`` at once, or ``s3``: save straight to the bucket (docs/guarantees.md).
            Default ``CACHETIER_FALLBACK``, then ``s3`` once the remote is known, else ``wait``.
        threads: How many write or read the blocks of a large shard, the caller's among them.
        clock: Seam for tests.
        files: Seam for tests.

    Raises:
        ValueError: An address or a fallback that there is not.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        run: str | None = None,
        fallback: Fallback | None = None,
        threads: int = 4,
        clock: Clock | None = None,
        files: BlockFiles | None = None,
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads={threads} leaves no thread to work")
        clock = clock or SystemClock()
        hello, workers = greeting(clock.now()), Workers(threads)
        single = transport_for(
            url or os.environ.get("CACHETIER_URL") or DEFAULT_URL,
            hello,
            workers=workers,
            token=os.environ.get("CACHETIER_TOKEN", ""),
            files=files,
        )
        lasting = lasting_transport(single, fallback, clock, workers)
        self.url = single.url
        self._again = functools.partial(
            Client, self.url, run=run, fallback=fallback, threads=threads
        )
        super().__init__(ServiceCalls(single, lasting, hello, clock, workers, run))

    def __reduce__(self) -> tuple[Callable[[], Client], tuple[()]]:
        """Pickle it by its settings: the other process connects again, with its own token."""
        return self._again, ()

    # --- shards ----------------------------------------------------------------------------------

    def put_shard(  # noqa: PLR0913 - the ids, fixed names all
        self,
        data: ShardData,
        *,
        step: SupportsIndex,
        name: str,
        run: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        ack: AckLevel = "local",
        timeout_seconds: float = PUT_SECONDS,
        save_id: str | None = None,
        overwrite: bool = False,
        element_size: SupportsIndex | None = None,
    ) -> Receipt:
        """Store one shard on the node and return once it is safe there.

        Args:
            data: C-contiguous memory (bytes, array, CPU tensor), or a list of such for one shard,
                whose raw bytes are stored uncopied, one after another, and which must not change
                before the return. Or a ``pathlib.Path`` or an open binary file, read once: a large
                one is not sent again if the service goes away.
            step: Training step.
            name: Unique in the step; ``/`` is allowed.
            run: Default: the client's.
            rank, world_size: Default: the environment's, see ``identity/ranks.py``.
            ack: ``memory`` survives the end of every process, ``local`` the loss of power too,
                ``replicated`` and ``durable`` that of the node.
            timeout_seconds: Whole call, including waits for room and for a service that is away.
            save_id: Equal on all ranks, new for every save; see ``identity/save_ids.py``.
            overwrite: Replace a step that is published already.
            element_size: Bytes of one value, 2, 4 or 8: a hint for compression that splits planes.
                Default: that of the arrays or tensors, if one; of bytes and files unknown.

        Returns:
            Receipt with ``size_bytes``, the CRC-64/NVME of the bytes and the level reached.

        Raises:
            BackpressureError: No room before the deadline, here or at peers; safe to call again.
            ServiceUnavailableError, DeadlineError: Not there, or not in time; safe to call again.
            NotDurableError: Safe on the node, not yet at the level of ``ack``.
            BackgroundError: Something put earlier failed since; this call has done nothing.
            CachetierClientError: See ``cachetier_client.errors``.

        Source: docs/protocol.md, "Put".
        """
        with self._caller.calling("put_shard", run=run, step=step, rank=rank, name=name) as ids:
            part, _ = self._part(run, step, rank, world_size, save_id, overwrite=overwrite)
            ids.update(run=part.run, rank=part.rank)
            level = checked_ack(ack)
            return self._caller.put(part, name, data, level, timeout_seconds, element_size)

    @overload
    def open_shard(
        self,
        run: str | None,
        step: SupportsIndex,
        name: str,
        mode: Literal["wb"] = "wb",
        *,
        rank: int | None = None,
        world_size: int | None = None,
        ack: AckLevel = "local",
        timeout_seconds: float = PUT_SECONDS,
        save_id: str | None = None,
        overwrite: bool = False,
        element_size: SupportsIndex | None = None,
        size_bytes: int | None = None,
        ring: Ring | None = None,
    ) -> ShardWriter: ...

    @overload
    def open_shard(
        self,
        run: str | None,
        step: SupportsIndex,
        name: str,
        mode: Literal["rb"],
        *,
        restore: bool = False,
        timeout_seconds: float = GET_SECONDS,
    ) -> ShardReader: ...

    def open_shard(
        self,
        run: str | None,
        step: SupportsIndex,
        name: str,
        mode: Literal["wb", "rb"] = "wb",
        **options: Any,
    ) -> ShardWriter | ShardReader:
        """Open a shard as a binary stream: ``wb`` for one of unknown length, ``rb`` to read parts.

        A written stream becomes a shard when it is closed, and leaves nothing when it is left by an
        exception. The options are those of ``put_shard``; ``timeout_seconds`` bounds each call on
        the stream. With ``size_bytes`` it must get as many; with ``ring`` its memory is that of a
        ``cachetier_client.Ring``. A shard that is only remote is left there until a quarter of
        it has been read; with ``restore=True`` (for ``rb``) it is brought back at once.
        """
        with self._caller.calling("open_shard", run=run, step=step, name=name):
            if mode == "wb":
                return self._open_writer(run, step, name, **options)
            if mode == "rb":
                return self._open_reader(run, step, name, **options)
            raise InvalidRequestError(f"mode {mode!r} is neither 'wb' nor 'rb'")

    # --- steps -----------------------------------------------------------------------------------

    def checkpoint(
        self,
        run: str | None,
        step: SupportsIndex,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        save_id: str | None = None,
        overwrite: bool = False,
        ack: AckLevel = "local",
        timeout_seconds: float = PUT_SECONDS,
    ) -> Checkpoint:
        """Begin this rank's part of a save, for a ``with``: sealed at its end, or aborted.

        Args:
            run: None: the client's.
            step: Training step.
            rank, world_size, save_id, overwrite: See ``put_shard``.
            ack: With ``durable`` the end of the ``with`` waits until this rank's shards are.
            timeout_seconds: Of each call inside, and of the end.
        """
        with self._caller.calling("checkpoint", run=run, step=step, rank=rank):
            part, ranks_on_node = self._part(
                run, step, rank, world_size, save_id, overwrite=overwrite
            )
            return Checkpoint(
                self._caller,
                part,
                ranks_on_node=ranks_on_node,
                ack=checked_ack(ack),
                timeout_seconds=timeout_seconds,
                on_end=self._counting(part),
            )

    def seal(
        self,
        run: str | None,
        step: SupportsIndex,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        save_id: str | None = None,
        overwrite: bool = False,
        follows: bool = False,
        timeout_seconds: float = PUT_SECONDS,
    ) -> tuple[int, ...]:
        """Say that this rank has put all its shards of a step; ``checkpoint`` does it by itself.

        With ``follows`` it holds as soon as rank 0 has sealed, and the part may grow until then: a
        save that overwrites then needs a ``save_id``, as nothing here tells when it ends.

        Returns:
            The ranks of this save that have sealed on this node.
        """
        with self._caller.calling("seal", run=run, step=step, rank=rank):
            part, ranks_on_node = self._part(
                run, step, rank, world_size, save_id, overwrite=overwrite
            )
            sealed = self._caller.seal(part, ranks_on_node, timeout_seconds, follows=follows)
            if not follows:
                self._counting(part)()
            return sealed

    def adopt(  # noqa: PLR0913 - the ids, fixed names all
        self,
        path: str | os.PathLike[str],
        *,
        run: str | None = None,
        step: SupportsIndex | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        save_id: str | None = None,
        overwrite: bool = False,
        origin: str | None = None,
        ack: AckLevel = "local",
        timeout_seconds: float = PUT_SECONDS,
    ) -> list[Receipt]:
        """Put a finished file, or the files of a finished folder, as a step, and seal it.

        Each file is a shard, called by its path in the folder. It is read in blocks of 4 MiB, past
        the page cache, and only while nobody can write to it. What this step has already is not
        sent again: the call may be repeated, by another process too.

        Args:
            path: What a trainer has written. It is only read.
            run, rank, world_size, overwrite, ack, timeout_seconds: See ``put_shard``.
            step: Default: the number in the name, as in ``checkpoint-500`` or ``step=16.ckpt``.
            save_id: Default: with a world size of one made of the files' names, sizes and times;
                else as for ``put_shard``.
            origin: What the folder is called, where ``path`` is another name of it: two origins
                never save one step in turns. Default: the last name in ``path``.

        Returns:
            The receipts of all files, those that were stored before among them.

        Raises:
            OpenForWritingError: Somebody writes to a file, or did meanwhile; nothing was kept.
            InvalidRequestError: There is no such file, or it cannot be read, or is a link.
            StepPublishedError: The step was saved before, and not from these files.
            WaitError: Not now. What was put stays; call again.
        """
        from cachetier_client.adopt.adopting import adopted

        with self._caller.calling("adopt", run=run, step=step, rank=rank):
            place = place_of(os.environ, rank, world_size)
            options = (place, save_id, overwrite, origin, ack, timeout_seconds)
            return adopted(self, self._caller, path, run, step, *options)

    # --- training --------------------------------------------------------------------------------

    def training_step(self) -> AbstractContextManager[None]:
        """Return a ``with`` for a training step: the drain holds back while any rank is in one.

        It costs microseconds, and neither waits nor raises, whether the service is there or not:
        what cannot be told is dropped, and ``lost_hints`` counts it. The hint ends with the
        ``with``, with this process, or after 60 s.
        """
        return self._caller.phases

    @contextmanager
    def blocking(self, run: str | None = None) -> Iterator[None]:
        """Time, for ``cadence``, what holds training up, in a ``with`` around ``async_save``, say.

        A ``checkpoint`` that the main thread begins and seals is timed without.
        """
        which_run, began = self._caller.run_of(run), self._caller.clock.monotonic()
        yield
        self._caller.note_blocked(which_run, self._caller.clock.monotonic() - began)

    @property
    def lost_hints(self) -> int:
        """How many hints of ``training_step`` could not be told to the service."""
        return self._caller.phases.lost

    @property
    def fallback_shards(self) -> int:
        """How many shards went straight to S3 because the service was away."""
        return self._caller.transport.fallbacks[0]

    @property
    def fallback_bytes(self) -> int:
        """How many bytes those shards have."""
        return self._caller.transport.fallbacks[1]

    # --- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Let connections and threads go.

        Raises:
            BackgroundError: Something failed in the background that no call has told of.
        """
        unraised = self._caller.close()
        if unraised is not None:
            raise unraised

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._caller.closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        unraised = self._caller.close()
        if unraised is not None and error is None:
            raise unraised
        if unraised is not None and error is not None:
            error.add_note(f"and before that: {unraised}")

    # --- what calls are about --------------------------------------------------------------------

    def _part(
        self,
        run: str | None,
        step: SupportsIndex,
        rank: int | None,
        world_size: int | None,
        save_id: str | None,
        *,
        overwrite: bool,
    ) -> tuple[SaveIds, int | None]:
        """Return the part that a put or a seal belongs to, and how many ranks this node has."""
        place = place_of(os.environ, rank, world_size)
        which_run, which_step = self._caller.run_of(run), checked_step(step)
        if save_id is None:
            save_id = save_ids.THIS_PROCESS.derive(os.environ, place)
            if overwrite:
                save_id = save_ids.THIS_PROCESS.overwriting(save_id, which_run, which_step)
        part = SaveIds(which_run, which_step, save_id, place.rank, place.world_size, overwrite)
        return part, place.ranks_on_node

    def _counting(self, part: SaveIds) -> Callable[[], None]:
        """Return what to do when a save ends: the next that overwrites is another."""

        def count() -> None:
            if part.overwrite:
                save_ids.THIS_PROCESS.ended(part.run, part.step)

        return count

    def _open_writer(  # noqa: PLR0913 - the ids, fixed names all
        self,
        run: str | None,
        step: SupportsIndex,
        name: str,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        ack: AckLevel = "local",
        timeout_seconds: float = PUT_SECONDS,
        save_id: str | None = None,
        overwrite: bool = False,
        element_size: SupportsIndex | None = None,
        size_bytes: int | None = None,
        ring: Ring | None = None,
    ) -> ShardWriter:
        part, _ = self._part(run, step, rank, world_size, save_id, overwrite=overwrite)
        facts = ShardFacts.of_put(element_size)
        request = PutRequest(part, name, size_bytes, facts, ack == "memory")
        return self._caller.open_writer(request, checked_ack(ack), timeout_seconds, ring=ring)
