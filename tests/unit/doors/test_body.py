"""A body becomes blocks: every byte once, in order, in bounded memory, however it comes."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable

import pytest
from cachetier_client.io.digests import BLOCK_BYTES
from starlette.types import Message

from cachetier.doors.http.body import BLOCKS_EACH, Blocks, Body, Feed
from cachetier.doors.http.limits import RequestLimits
from cachetier.doors.http.pools import Pools
from cachetier.errors import CachetierError

SIZES = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 77]
PIECES = [262_144 + 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 3]


class Connection:
    """Gives a body in pieces, by ``receive`` or straight into a feed."""

    def __init__(self, data: bytes, piece_bytes: int, *, cut: bool = False) -> None:
        self._pieces = [data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes)]
        self._cut = cut
        self._feed: Feed | None = None

    def feed(self, piece: bytes) -> bool:
        """Do what the parser does with bytes that still come."""
        assert self._feed is not None
        return self._feed(piece)

    def tap(self, feed: Feed) -> bytes:
        self._feed = feed
        return self._pieces.pop(0) if self._pieces else b""

    async def receive(self) -> Message:
        await asyncio.sleep(0)
        if self._feed is not None:
            while self._pieces:
                if self._feed(self._pieces.pop(0)):
                    return {"type": "http.request", "body": b"", "more_body": self._more()}
            return self._last(b"")
        return self._last(self._pieces.pop(0) if self._pieces else b"")

    def _more(self) -> bool:
        return self._cut or bool(self._pieces)

    def _last(self, body: bytes) -> Message:
        if not self._pieces and self._cut and not body:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": self._more()}


class Sink:
    """Keeps what it is given, and how much of it at once."""

    def __init__(self, depth: int = 2, *, fails_at: int | None = None) -> None:
        self.depth = depth
        self.blocks: dict[int, bytes] = {}
        self.expected: list[int] = []
        self.most_at_once = 0
        self._at_once = 0
        self._fails_at = fails_at
        self._lock = threading.Lock()

    async def expect(self, total_bytes: int) -> None:
        self.expected.append(total_bytes)

    def write(self, block: memoryview, number: int, length: int) -> None:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if number == self._fails_at:
                raise OSError("planned")
            self.blocks[number] = bytes(block[:length])
        finally:
            with self._lock:
                self._at_once -= 1

    def data(self) -> bytes:
        return b"".join(self.blocks[number] for number in sorted(self.blocks))


class CountedBlocks(Blocks):
    """Knows how many blocks are lent."""

    def __init__(self) -> None:
        super().__init__()
        self.lent = self.most_lent = 0

    def take(self) -> memoryview:
        self.lent += 1
        self.most_lent = max(self.most_lent, self.lent)
        return super().take()

    def give_back(self, block: memoryview) -> None:
        self.lent -= 1
        super().give_back(block)


def into(sink: Sink, body: Callable[[], Body], first: int | None = None) -> CountedBlocks:
    blocks, pools = CountedBlocks(), Pools()

    async def go() -> None:
        made = body()
        if first is not None:
            await made.first(first)
        await made.into_blocks(blocks, pools, sink)

    try:
        asyncio.run(go())
    finally:
        pools.close()
        assert blocks.lent == 0
        assert blocks.most_lent <= BLOCKS_EACH
    return blocks


@pytest.mark.parametrize("tapped", [False, True])
@pytest.mark.parametrize("piece_bytes", PIECES)
@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("first", [None, 65536])
def test_every_byte_arrives_once_and_in_order(
    size_bytes: int, piece_bytes: int, tapped: bool, first: int | None
) -> None:
    data = random.Random(size_bytes).randbytes(size_bytes)
    connection, sink = Connection(data, piece_bytes), Sink()
    tap = connection.tap if tapped else None
    into(sink, lambda: Body(connection.receive, RequestLimits(), tap), first)
    assert sink.data() == data
    lengths = [len(block) for _, block in sorted(sink.blocks.items())]
    assert lengths[:-1] == [BLOCK_BYTES] * (len(lengths) - 1)
    assert sink.expected == sorted(sink.expected)
    assert sink.most_at_once <= 2


@pytest.mark.parametrize("tapped", [False, True])
def test_a_sink_that_takes_one_at_a_time_gets_one(tapped: bool) -> None:
    data = bytes(3 * BLOCK_BYTES)
    connection, sink = Connection(data, 1 << 20), Sink(depth=1)
    tap = connection.tap if tapped else None
    into(sink, lambda: Body(connection.receive, RequestLimits(), tap))
    assert sink.most_at_once == 1
    assert list(sink.blocks) == [0, 1, 2]


@pytest.mark.parametrize("tapped", [False, True])
@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_a_failed_write_ends_the_upload_and_frees_its_blocks(tapped: bool, fails_at: int) -> None:
    connection = Connection(bytes(2 * BLOCK_BYTES + 5), 1 << 20)
    sink = Sink(fails_at=fails_at)
    tap = connection.tap if tapped else None
    with pytest.raises(OSError, match="planned"):
        into(sink, lambda: Body(connection.receive, RequestLimits(), tap))


def test_what_comes_after_the_end_touches_no_block() -> None:
    """The connection goes on parsing while a failed upload is being cleared away."""
    connection = Connection(bytes(2 * BLOCK_BYTES + 5), 1 << 20)
    blocks, pools = CountedBlocks(), Pools()

    async def fail_and_feed() -> None:
        body = Body(connection.receive, RequestLimits(), connection.tap)
        with pytest.raises(OSError, match="planned"):
            await body.into_blocks(blocks, pools, Sink(fails_at=0))
        assert connection.feed(b"late" * 1000)

    asyncio.run(fail_and_feed())
    pools.close()
    assert not any(any(blocks.take()) for _ in range(BLOCKS_EACH))


@pytest.mark.parametrize("tapped", [False, True])
def test_a_body_cut_short_ends_the_upload_and_frees_its_blocks(tapped: bool) -> None:
    connection = Connection(bytes(2 * BLOCK_BYTES + 5), 1 << 20, cut=True)
    tap = connection.tap if tapped else None
    with pytest.raises(CachetierError, match="ended before"):
        into(Sink(), lambda: Body(connection.receive, RequestLimits(), tap))
