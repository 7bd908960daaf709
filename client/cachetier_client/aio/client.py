"""A client for asyncio: the calls of ``Client``, made on threads of its own and awaited.

It needs aiofiles, which the extra ``async`` brings: docs/install.md.

A call that is cancelled before a thread has begun it does nothing. One that a thread has begun is
waited for, and then the cancellation goes on: a put is acknowledged or has failed, and memory that
was lent is the caller's again. So ``timeout_seconds`` bounds how long a cancellation may take;
``wait`` and ``flush`` end within two seconds of it, and what is read from or written to a file
ends at the next piece and leaves nothing behind, neither a shard nor a file.
"""

from __future__ import annotations

import asyncio
import functools
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from typing import Concatenate, Self, SupportsIndex

import aiofiles
import aiofiles.threadpool

from cachetier_client.aio.threads import Given, OnThreads, Threads, awaited, in_pieces, waited_for
from cachetier_client.calls.reads import GET_SECONDS
from cachetier_client.calls.runs import PUT_SECONDS
from cachetier_client.checkpoints import Checkpoint
from cachetier_client.client import Client
from cachetier_client.fallback.policy import Fallback
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.io.ring import Ring
from cachetier_client.io.whole_file import whole_file
from cachetier_client.results import AckLevel, Receipt
from cachetier_client.streams.reader import ShardReader
from cachetier_client.streams.writer import ShardWriter


def _begun(
    method: Callable[Concatenate[Client, Given], Checkpoint],
) -> Callable[Concatenate[AsyncClient, Given], AbstractAsyncContextManager[AsyncCheckpoint]]:
    """Return ``Client.checkpoint`` for an ``async with``."""

    @functools.wraps(method)
    @asynccontextmanager
    async def begin(
        self: AsyncClient, /, *args: Given.args, **kwargs: Given.kwargs
    ) -> AsyncIterator[AsyncCheckpoint]:
        threads = self._threads
        part = await threads.run(method, self.blocking, *args, **kwargs)
        try:
            yield AsyncCheckpoint(part, threads)
        except BaseException as error:
            await threads.run(part.__exit__, type(error), error, None)
            raise
        await threads.run(part.__exit__, None, None, None)

    return begin


class AsyncCheckpoint(OnThreads[Checkpoint]):
    """A rank's part of a save: ``Checkpoint`` with calls to await, several at once if you like.

    ``blocking`` has its attributes. Left normally it seals, by an exception or a cancellation it
    aborts.
    """

    put = awaited(Checkpoint.put)
    seal = awaited(Checkpoint.seal)
    abort = awaited(Checkpoint.abort)

    async def put_file(
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        timeout_seconds: float | None = None,
        element_size: SupportsIndex | None = None,
        ring: Ring | None = None,
    ) -> Receipt:
        """Store a local file as one shard of this rank; the options are those of ``open``."""
        opened = partial(
            self.blocking.open,
            name,
            timeout_seconds=timeout_seconds,
            element_size=element_size,
            ring=ring,
        )
        return await _sent(self._threads, path, opened)


class AsyncShardReader(OnThreads[ShardReader]):
    """A shard read in parts; ``blocking`` has its ``size_bytes`` and ``digest``."""

    read = awaited(ShardReader.read)
    readinto = awaited(ShardReader.readinto)
    seek = awaited(ShardReader.seek)


class AsyncClient(OnThreads[Client]):
    """Talks to this node's cachetier from asyncio. For any number of tasks, in one process.

    Args:
        url, run, fallback, threads: See ``Client``, which is ``blocking``.
        calls: How many calls are made at once, and how many waits beside them. Others queue, and
            their ``timeout_seconds`` begin when a thread takes them.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        run: str | None = None,
        fallback: Fallback | None = None,
        threads: int = 4,
        calls: int = 8,
    ) -> None:
        if calls < 1:
            raise ValueError(f"calls={calls} allows no call at all")
        client = Client(url, run=run, fallback=fallback, threads=threads)
        super().__init__(client, Threads(calls))

    put_shard = awaited(Client.put_shard)
    get_shard = awaited(Client.get_shard)
    read_ranges = awaited(Client.read_ranges)
    checkpoint = _begun(Client.checkpoint)
    seal = awaited(Client.seal)
    wait = waited_for(Client.wait)
    flush = waited_for(Client.flush)
    leave = waited_for(Client.leave)
    stay = awaited(Client.stay)
    runs = awaited(Client.runs)
    steps = awaited(Client.steps)
    branches = awaited(Client.branches)
    latest = awaited(Client.latest)
    unflushed = awaited(Client.unflushed)
    forget = awaited(Client.forget)
    step = awaited(Client.step)
    restore_step = awaited(Client.restore_step)
    steps_elsewhere = awaited(Client.steps_elsewhere)
    check_shard = awaited(Client.check_shard)
    delete_step = awaited(Client.delete_step)
    pin = awaited(Client.pin)
    unpin = awaited(Client.unpin)
    pins = awaited(Client.pins)
    collect = awaited(Client.collect)
    cadence = awaited(Client.cadence)
    adopt = awaited(Client.adopt)
    status = awaited(Client.status)
    whoami = awaited(Client.whoami)
    mounts = awaited(Client.mounts)
    objects = awaited(Client.objects)
    settle_object = awaited(Client.settle_object)
    link = awaited(Client.link)
    create_token = awaited(Client.create_token)
    create_s3_key = awaited(Client.create_s3_key)
    tokens = awaited(Client.tokens)
    revoke_token = awaited(Client.revoke_token)

    # --- files and streams -----------------------------------------------------------------------

    async def put_file(  # noqa: PLR0913 - the ids, fixed names all
        self,
        path: str | os.PathLike[str],
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
        """Store a local file as one shard, in bounded memory; the options are ``put_shard``'s.

        Raises:
            OSError: The file cannot be read; nothing was stored.
            SizeMismatchError: Its size changed meanwhile; nothing was stored.
            CachetierClientError: As ``put_shard``.
        """
        opened = partial(
            self.blocking.open_shard,
            run,
            step,
            name,
            "wb",
            rank=rank,
            world_size=world_size,
            ack=ack,
            timeout_seconds=timeout_seconds,
            save_id=save_id,
            overwrite=overwrite,
            element_size=element_size,
        )
        return await _sent(self._threads, path, opened)

    async def get_file(
        self,
        run: str | None,
        step: SupportsIndex,
        name: str,
        path: str | os.PathLike[str],
        *,
        timeout_seconds: float = GET_SECONDS,
    ) -> int:
        """Write one shard to a local file, in bounded memory; return how many bytes it has.

        A regular file appears whole and verified, or not at all: one that was there is replaced at
        the end. It is not synced. Links are followed; a device or a FIFO is written in place.

        Raises:
            OSError: The file cannot be written.
            CachetierClientError: As ``get_shard``, whose ``timeout_seconds`` is of each piece here.
        """
        files, loop = self._threads.calls, asyncio.get_running_loop()

        async def copy(stop: asyncio.Event) -> int:
            async with self.open_shard(
                run, step, name, restore=True, timeout_seconds=timeout_seconds
            ) as reader:
                writing = ExitStack()
                out = await loop.run_in_executor(files, writing.enter_context, whole_file(path))
                file = aiofiles.threadpool.wrap(out, executor=files)
                try:
                    while piece := await reader.read(BLOCK_BYTES):
                        await file.write(piece)
                        _check(stop)
                except BaseException as error:
                    end = type(error), error, error.__traceback__
                    await loop.run_in_executor(files, writing.__exit__, *end)
                    raise
                await loop.run_in_executor(files, writing.close)
                return reader.blocking.size_bytes

        return await in_pieces(copy)

    @asynccontextmanager
    async def open_shard(
        self,
        run: str | None,
        step: SupportsIndex,
        name: str,
        *,
        restore: bool = False,
        timeout_seconds: float = GET_SECONDS,
    ) -> AsyncIterator[AsyncShardReader]:
        """Open a shard to read parts of it, for an ``async with``; see ``Client.open_shard``."""
        client, threads, seconds = self.blocking, self._threads, timeout_seconds
        reader = await threads.run(
            lambda: client.open_shard(
                run, step, name, "rb", restore=restore, timeout_seconds=seconds
            )
        )
        try:
            yield AsyncShardReader(reader, threads)
        finally:
            await threads.run(reader.close)

    # --- the end ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Let connections and threads go; raises as ``Client.close`` does."""
        await self._end(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _: object) -> None:
        await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        if self.blocking.closed:
            return
        try:
            await self._threads.run(self.blocking.__exit__, None, error, None)
        finally:
            self._threads.close()


async def _sent(
    threads: Threads,
    path: str | os.PathLike[str],
    opened: Callable[..., ShardWriter],
) -> Receipt:
    """Store what a local file holds, read as it is written."""

    async def copy(stop: asyncio.Event) -> Receipt:
        async with aiofiles.open(path, "rb", executor=threads.calls) as file:
            about = os.fstat(file.fileno())
            size_bytes = about.st_size if stat.S_ISREG(about.st_mode) else None
            writer = await threads.run(opened, size_bytes=size_bytes)
            try:
                while piece := await file.read(BLOCK_BYTES):
                    await threads.run(writer.write, piece)
                    _check(stop)
                await threads.run(writer.close)
            except BaseException:
                await threads.run(writer.abort)
                raise
        assert writer.receipt is not None
        return writer.receipt

    return await in_pieces(copy)


def _check(stop: asyncio.Event) -> None:
    if stop.is_set():
        raise asyncio.CancelledError
