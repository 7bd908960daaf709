"""Frames are made in slots, at any level, in bounded memory, and proven before one is sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cachetier_client.bucket_format.stored import Codec
from cachetier_client.bucket_format.uploads import UploadPartRange
from cachetier_client.io.digests import BLOCK_BYTES, block_lengths, digest_of

from cachetier.carriers.checked_file import DamagedError
from cachetier.codec import planes
from cachetier.codec.codecs import CODECS, Encoders
from cachetier.codec.frames import FrameDecoder, FrameEncoder, encoder_bytes
from cachetier.drain.upload.compressor import Compressor, Made, Recipe
from cachetier.drain.upload.encoding import Encoding
from cachetier.errors import CachetierError
from tests.fakes.bodies import noise
from tests.unit.drain.shards import NOISE_BYTES, Memory

ZSTD = CODECS[Codec.ZSTD]


class Slots:
    """Counts who enters."""

    def __init__(self) -> None:
        self.entered = 0
        self._lock = threading.Lock()

    @contextmanager
    def slot(self) -> Iterator[None]:
        with self._lock:
            self.entered += 1
        yield


def made(recipe: Recipe, data: bytes | None = None, slots: Slots | None = None) -> list[Made]:
    data = noise(NOISE_BYTES) if data is None else data
    compressor = Compressor(2, (slots or Slots()).slot)
    blocks = range(len(block_lengths(len(data))))
    try:
        futures = [compressor.submit(Memory(data), len(data), block, recipe) for block in blocks]
        return [future.result() for future in futures]
    finally:
        compressor.close()


@pytest.mark.parametrize("recipe", [Recipe(0), Recipe(1), Recipe(3), Recipe(1, 2), Recipe(1, 8)])
def test_frames_decode_to_their_blocks(recipe: Recipe) -> None:
    decoder, data = FrameDecoder(), b""
    for each in made(recipe):
        assert each.compressed is (recipe.level > 0)
        assert (each.sample is not None) is each.compressed
        data += decoder.decode(each.frame, each.raw_bytes, recipe.element_size)

    assert data == noise(NOISE_BYTES)


def test_what_costs_cpu_happens_in_a_slot_and_what_only_copies_does_not() -> None:
    compressing, storing = Slots(), Slots()
    made(Recipe(1), slots=compressing)
    made(Recipe(0), slots=storing)

    assert compressing.entered == len(block_lengths(NOISE_BYTES))
    assert storing.entered == 0


def test_a_damaged_block_is_an_error_and_no_frame() -> None:
    compressor = Compressor(1)
    future = compressor.submit(Memory(noise(NOISE_BYTES), damaged=2), NOISE_BYTES, 2, Recipe(1))

    with pytest.raises(DamagedError):
        future.result()
    compressor.close()


def test_a_frame_that_does_not_decode_to_its_block_is_never_given_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def encode(self: FrameEncoder, block: memoryview) -> bytes:
        changed = bytearray(block)
        changed[0] ^= 1
        return genuine(self, memoryview(changed))

    genuine = FrameEncoder.encode
    monkeypatch.setattr(FrameEncoder, "encode", encode)

    with pytest.raises(CachetierError, match="does not decode to the block"):
        made(Recipe(1))


def test_planes_that_were_split_wrongly_are_never_given_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    genuine = planes.split
    monkeypatch.setattr(planes, "split", lambda block, _size: genuine(block, 8))

    with pytest.raises(CachetierError, match="does not decode to the block"):
        made(Recipe(1, 2))


# --- contexts -----------------------------------------------------------------------------------


def test_contexts_are_kept_for_the_next_block_of_their_level() -> None:
    encoders = Encoders(1 << 30)
    with encoders.lend(ZSTD, 1) as first:
        pass
    with encoders.lend(ZSTD, 1) as second:
        assert second is first
    assert encoders.kept_bytes == encoder_bytes(1)


def test_a_context_that_nobody_uses_goes_for_another_level() -> None:
    encoders = Encoders(max(encoder_bytes(9), encoder_bytes(12)))
    with encoders.lend(ZSTD, 9):
        pass
    with encoders.lend(ZSTD, 12):
        assert encoders.kept_bytes == encoder_bytes(12)


def test_a_level_that_takes_more_than_the_limit_is_lent_alone() -> None:
    encoders = Encoders(1)
    with encoders.lend(ZSTD, 15) as encode:
        frame = encode(bytes(BLOCK_BYTES))
    assert digest_of(FrameDecoder().decode(frame, BLOCK_BYTES)) == digest_of(bytes(BLOCK_BYTES))


def test_threads_wait_for_contexts_rather_than_take_more_memory() -> None:
    encoders = Encoders(2 * encoder_bytes(12))
    most, lock, lent = [0], threading.Lock(), [0]

    def borrow() -> None:
        for level in (12, 9, 12):
            with encoders.lend(ZSTD, level):
                with lock:
                    lent[0] += 1
                    most[0] = max(most[0], encoders.kept_bytes)

    threads = [threading.Thread(target=borrow) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert lent[0] == 24
    assert most[0] <= 2 * encoder_bytes(12)


def test_bytes_that_are_no_frame_are_never_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FrameEncoder, "encode", lambda _self, block: bytes(block))

    with pytest.raises(CachetierError, match="does not decode to the block") as refused:
        made(Recipe(1))

    assert "memory" in refused.value.hint


BLOCKS = 8  # more than there are threads


class Stuck(Memory):
    """A shard whose reads do not end before they are told to."""

    def __init__(self) -> None:
        super().__init__(bytes(BLOCKS * BLOCK_BYTES))
        self.begun, self.go_on = threading.Event(), threading.Event()

    def read(self, part: UploadPartRange, buffer: memoryview) -> tuple[memoryview, int]:
        self.begun.set()
        assert self.go_on.wait(30)
        return super().read(part, buffer)


def test_who_waits_for_a_frame_hears_that_the_compressor_was_closed() -> None:
    compressor, stuck = Compressor(1), Stuck()
    encoding = Encoding(compressor, Recipe(1))
    first, *_, last = (
        encoding.submit(stuck, BLOCKS * BLOCK_BYTES, block) for block in range(BLOCKS)
    )
    assert stuck.begun.wait(30)
    closing = threading.Thread(target=compressor.close)
    closing.start()

    try:
        with pytest.raises(RuntimeError, match="closed"):
            last.result(30)
    finally:
        stuck.go_on.set()
        closing.join(30)
    assert bytes(FrameDecoder().decode(first.result(30), BLOCK_BYTES)) == bytes(BLOCK_BYTES)
