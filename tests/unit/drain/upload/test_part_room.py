"""The memory of a part of frames: within the budget, and given back while it is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import zstandard
from cachetier_client.bucket_format.stored import Codec, ShardFacts
from cachetier_client.bucket_format.uploads import UploadedPart, object_metadata
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.drain.upload.buffers import PIECE_BYTES, Buffers
from cachetier.drain.upload.compression_choice import Chooser
from cachetier.drain.upload.compression_log import CompressionLog
from cachetier.drain.upload.compressor import Compressor
from cachetier.drain.upload.journal import Journal
from cachetier.drain.upload.part_room import GivenBackError, PartRoom
from cachetier.drain.upload.target import UploadTarget
from cachetier.drain.upload.uploader import MADE_AT_MOST, UploadContext, Uploader
from cachetier.errors import TransientError
from cachetier.model.compression import parsed_mode
from cachetier.remote.base import Body, pieces_of
from cachetier.remote.call_policy import CallPolicy, Retries
from tests.fakes.bodies import compressible, noise
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import content_of
from tests.stateful.real_drain import InCaller
from tests.unit.drain.shards import Memory

DATA = noise(2 * PIECE_BYTES + 77)


class ShortBuffers(Buffers):
    """Somebody always waits for memory."""

    @property
    def is_short(self) -> bool:
        return True


def filled(buffers: Buffers, *, lasting: bool = False) -> PartRoom:
    room = PartRoom(buffers, 4 * PIECE_BYTES, lasting=lasting)
    for at in range(0, len(DATA), 100_000):
        room.append(DATA[at : at + 100_000])
    room.trim()
    return room


def test_what_was_appended_is_sent_as_often_as_wanted_while_nobody_needs_memory() -> None:
    with closing(filled(Buffers())) as room:
        assert room.size_bytes == len(DATA)
        assert [b"".join(room) for _ in range(2)] == [DATA, DATA]


def test_the_room_that_is_left_goes_back_at_once_and_the_rest_at_the_end() -> None:
    buffers = Buffers(4 * PIECE_BYTES)
    with closing(filled(buffers)), buffers.lend(PIECE_BYTES):
        pass
    with buffers.lend(4 * PIECE_BYTES):
        assert buffers._held_bytes <= 4 * PIECE_BYTES


def test_who_waits_gets_what_was_sent_before_the_rest_is() -> None:
    buffers = Buffers(4 * PIECE_BYTES)
    lent = threading.Event()

    def borrow() -> None:
        with buffers.lend(2 * PIECE_BYTES):
            lent.set()

    with closing(filled(buffers)) as room:
        waiting = threading.Thread(target=borrow)
        waiting.start()
        pieces = iter(room)
        while not buffers.is_short:
            pass
        assert [len(next(pieces)) for _ in range(2)] == [PIECE_BYTES] * 2
        assert lent.wait(30)
        waiting.join(30)

        assert len(next(pieces)) == 77
        with pytest.raises(GivenBackError):
            iter(room)


def test_nothing_is_given_back_that_a_second_send_needs() -> None:
    with closing(filled(ShortBuffers())) as room:
        first, second = iter(room), iter(room)
        assert next(second) == DATA[:PIECE_BYTES]
        assert b"".join(first) == DATA
        assert b"".join(second) == DATA[PIECE_BYTES:]


def test_a_lasting_room_stays_however_short_memory_is() -> None:
    with closing(filled(ShortBuffers(), lasting=True)) as room:
        assert [b"".join(room) for _ in range(2)] == [DATA, DATA]


# --- parts that are made again -------------------------------------------------------------------


class Breaking(MemoryObjectStore):
    """Breaks each part off behind its last byte, ``times`` over."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.tries: dict[int, int] = {}

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        pieces = b"".join(pieces_of(body))
        self.tries[number] = self.tries.get(number, 0) + 1
        if self.tries[number] <= self.times:
            raise TransientError("planned")
        return super().upload_part(key, upload_id, number, pieces, digest=digest)


@pytest.fixture
def chooser() -> Iterator[Chooser]:
    compressor = Compressor(2)
    yield Chooser(compressor, CompressionLog())
    compressor.close()


@pytest.mark.parametrize("mode", ["zstd:3", "auto", "planes:1"])
def test_a_part_that_was_given_back_before_it_got_through_is_made_again(
    chooser: Chooser, mode: str
) -> None:
    data, store = compressible(9 * BLOCK_BYTES + 5), Breaking(2)
    stored = sent(store, data, chooser, mode)

    assert stored is (Codec.PLANES if mode.startswith("planes") else Codec.ZSTD)
    assert set(store.tries.values()) == {3}
    if stored is Codec.ZSTD:
        reader = zstandard.ZstdDecompressor().stream_reader(
            store.get("key"), read_across_frames=True
        )
        assert reader.read() == data


def test_a_part_that_never_gets_through_is_given_up(chooser: Chooser) -> None:
    store = Breaking(99)
    with pytest.raises(TransientError):
        sent(store, compressible(5 * BLOCK_BYTES), chooser, "zstd:1")

    assert store.tries[1] == MADE_AT_MOST


def sent(store: MemoryObjectStore, data: bytes, chooser: Chooser, mode: str) -> Codec:
    """Send a shard amid a shortage of memory; return how it is stored."""
    content = content_of(data)
    metadata = object_metadata("save", "store", 1, content)
    facts = ShardFacts(element_size=4)
    target = UploadTarget("key", metadata, content, "run", parsed_mode(mode), facts=facts)
    retrying = CallPolicy(store, retries=Retries(sleep=lambda _seconds: None))
    context = UploadContext(retrying, ShortBuffers(), InCaller(), chooser=chooser)
    return Uploader(context).upload(target, Memory(data), Journal()).codec
