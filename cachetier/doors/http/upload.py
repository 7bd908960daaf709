"""Put one shard from a request's body: admit, write block by block, commit; or leave nothing."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cachetier_client.bucket_format.stored import Content
from cachetier_client.io import digests
from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.results import Receipt
from cachetier_client.transport.base import PutRequest

from cachetier.doors.http.body import Blocks, Body
from cachetier.doors.http.pools import Pools
from cachetier.errors import DigestMismatchError, SizeMismatchError
from cachetier.ingest.admission import GROWTH_BYTES
from cachetier.ingest.ingest import Ingest, RemoteStage
from cachetier.ingest.shares import ShareAwaitedError
from cachetier.local.files.data_files import ALIGNMENT_BYTES, write_all
from cachetier.local.store import Staged


@dataclass(frozen=True, slots=True)
class HttpPut:
    """A shard about to be put, the digest that it is to have if one is said, and the patience."""

    shard: PutRequest
    digest: int | None
    timeout_seconds: float


async def put_small(put: HttpPut, body: bytes, ingest: Ingest, pools: Pools) -> Receipt:
    """Put a shard that fits into the catalog."""
    _check_size(put, len(body))
    digest = digests.digest_of(body)
    _check_digest(put, digest)
    begin = partial(ingest.begin_inline, put.shard.ids, put.shard.name, body, digest)

    def store(timeout_seconds: float) -> Receipt:
        return begin(timeout_seconds, facts=put.shard.facts)()

    return await pools.patient(store, put.timeout_seconds)


async def put_large(
    put: HttpPut, body: Body, ingest: Ingest, pools: Pools, blocks: Blocks
) -> Receipt:
    """Put a shard into a data file, or straight to the remote when the cache is full."""
    shard = put.shard
    what = shard.ids, shard.name
    begin = partial(ingest.begin, memory=shard.memory)
    stage = await pools.owned(ingest.abort, begin, *what, shard.size_bytes, put.timeout_seconds)
    sink = (
        FileSink(stage, ingest.extend, pools, put.timeout_seconds, partial(_check_no_more, put))
        if isinstance(stage, Staged)
        else _RemoteSink(put, stage)
    )
    try:
        await body.into_blocks(blocks, pools, sink)
        _check_size(put, body.size_bytes)
        content = sink.content(body.size_bytes)
        _check_digest(put, content.digest)
        if isinstance(sink, FileSink):
            await sink.cut(content.size_bytes)
    except BaseException:
        await pools.quick(ingest.abort, stage)
        raise
    return await pools.quick(ingest.commit, stage, *what, content, shard.facts)


class _BlockDigests:
    """The digests of the blocks that came, in whatever order they were taken."""

    def __init__(self) -> None:
        self._by_number: dict[int, int] = {}

    def add(self, block: memoryview, number: int) -> None:
        self._by_number[number] = digests.digest_of(block)

    def content(self, size_bytes: int) -> Content:
        blocks = tuple(self._by_number[number] for number in range(len(self._by_number)))
        return Content(size_bytes, digests.combine(blocks, size_bytes), blocks)


class FileSink:
    """Blocks on their way into a data file, two at a time."""

    depth = 2

    def __init__(
        self,
        stage: Staged,
        extend: Callable[[Staged, int, float], int],
        pools: Pools,
        timeout_seconds: float,
        check_size: Callable[[int], None],
    ) -> None:
        """Write to ``stage``; ``check_size`` raises for more bytes than were declared.

        ``extend`` reserves more room for it, see ``Ingest.extend``.
        """
        assert stage.writer is not None
        self._stage = stage
        self._writer = stage.writer
        self._extend = extend
        self._pools = pools
        self._timeout_seconds = timeout_seconds
        self._check_size = check_size
        self._digests = _BlockDigests()
        self._direct = _went_direct(stage.writer)
        self.content = self._digests.content

    async def expect(self, total_bytes: int) -> None:
        """Refuse more than was declared; reserve more where nothing was."""
        self._check_size(total_bytes)
        if total_bytes > self._stage.reserved_bytes:
            reserve = self._stage.reserved_bytes + GROWTH_BYTES
            extend = partial(self._pools.patient, self._extend, self._stage, reserve)
            try:
                await self._pools.whole(extend(self._timeout_seconds))
            except ShareAwaitedError:  # nobody holds a place for uploads until then
                await self._pools.whole(extend(0.0))

    def write(self, block: memoryview, number: int, length: int) -> None:
        self._digests.add(block[:length], number)
        aligned = -(-length // ALIGNMENT_BYTES) * ALIGNMENT_BYTES if self._direct else length
        if aligned > length:
            block[length:aligned] = bytes(aligned - length)
        try:
            write_all(self._writer, block[:aligned], number * BLOCK_BYTES)
        except OSError as error:
            raise self._stage.refused_by_disk(error) from error

    async def cut(self, size_bytes: int) -> None:
        """Cut off what aligned writes added behind the bytes."""
        await self._pools.whole(self._pools.quick(os.ftruncate, self._writer, size_bytes))


class _RemoteSink:
    """Blocks on their way straight to the remote, one after the other."""

    depth = 1

    def __init__(self, put: HttpPut, stage: RemoteStage) -> None:
        self._put = put
        self._stage = stage
        self._digests = _BlockDigests()
        self.content = self._digests.content

    async def expect(self, total_bytes: int) -> None:
        _check_no_more(self._put, total_bytes)

    def write(self, block: memoryview, number: int, length: int) -> None:
        self._digests.add(block[:length], number)
        self._stage.write(block[:length])


def _check_no_more(put: HttpPut, total_bytes: int) -> None:
    declared = put.shard.size_bytes
    if declared is not None and total_bytes > declared:
        _check_size(put, total_bytes)


def _check_size(put: HttpPut, size_bytes: int) -> None:
    shard = put.shard
    if shard.size_bytes is not None and shard.size_bytes != size_bytes:
        raise SizeMismatchError(
            f"{shard.size_bytes} bytes were declared, {size_bytes} came",
            run=shard.ids.run,
            step=shard.ids.step,
            name=shard.name,
        )


def _check_digest(put: HttpPut, digest: int) -> None:
    if put.digest is not None and put.digest != digest:
        raise DigestMismatchError(
            f"the body's digest is {digests.to_hex(digest)}, not {digests.to_hex(put.digest)}",
            run=put.shard.ids.run,
            step=put.shard.ids.step,
            name=put.shard.name,
        )


def _went_direct(descriptor: int) -> bool:
    """Switch the page cache off for ``descriptor``; return whether the disk took it."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
    except OSError:
        return False
    return True
