"""How shards are stored, by their mode, by what they shrink to, and by the link as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from cachetier_client.bucket_format.stored import Codec, Content, ShardFacts
from cachetier_client.bucket_format.uploads import PART_BYTES, UploadPartRange
from cachetier_client.io.digests import BLOCK_BYTES, combine, digest_of

from cachetier.codec.frames import FrameDecoder
from cachetier.drain.upload.compression_choice import Chooser
from cachetier.drain.upload.compression_log import RUNS_KEPT, CompressionLog
from cachetier.drain.upload.compression_model import CompressionSample, LinkRate, Means, judge
from cachetier.drain.upload.compressor import Compressor
from cachetier.drain.upload.encoding import (
    PROBE_ROOM_BYTES,
    SAMPLED_EVERY,
    Encoding,
    PlainPaysError,
)
from cachetier.drain.upload.target import UploadTarget
from cachetier.model.compression import parsed_mode
from tests.fakes.bodies import mixed, noise
from tests.unit.drain.shards import NOISE_BYTES, Memory

SLOW, FAST = LinkRate(1e5, 1e5), LinkRate(1e13, 1e13)
HALF_BYTES = 24 << 20
SMALL = 4 << 20


def half() -> bytes:
    """Return bytes of which every other half KiB is zeros."""
    return mixed(HALF_BYTES)


@dataclass
class World:
    """A chooser, and what it goes by."""

    compressor: Compressor
    decisions: CompressionLog
    link: LinkRate | None = None

    def chooser(self) -> Chooser:
        return Chooser(self.compressor, self.decisions, lambda: self.link)

    def choose(self, mode: str, data: bytes, element_size: int = 0) -> Encoding:
        encoding = self.chooser().choose(target(mode, data, element_size), Memory(data))
        assert encoding is not None, "it stays plain bytes"
        return encoding

    def codec(self, mode: str, data: bytes, element_size: int = 0) -> Codec:
        encoding = self.chooser().choose(target(mode, data, element_size), Memory(data))
        return encoding.codec if encoding is not None else Codec.RAW


@pytest.fixture
def world() -> Iterator[World]:
    compressor = Compressor(2)
    yield World(compressor, CompressionLog())
    compressor.close()


def target(mode: str, data: bytes, element_size: int = 0) -> UploadTarget:
    blocks = tuple(
        digest_of(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)
    )
    content = Content(len(data), combine(blocks, len(data)), blocks)
    facts = ShardFacts(element_size=element_size)
    return UploadTarget("key", {}, content, "run", parsed_mode(mode), facts=facts)


def frames(encoding: Encoding, data: bytes, blocks: int = 3) -> list[int]:
    """Make the first frames one after the other; return their sizes, once they are sound."""
    sizes = []
    for block in range(blocks):
        frame = encoding.submit(Memory(data), len(data), block).result()
        raw = data[block * BLOCK_BYTES :][:BLOCK_BYTES]
        assert bytes(FrameDecoder().decode(frame, len(raw), encoding.element_size)) == raw
        sizes.append(len(frame))
    return sizes


@pytest.mark.parametrize(
    ("mode", "element_size", "codec"),
    [
        ("zstd:3", 0, Codec.ZSTD),
        ("zstd:3", 4, Codec.ZSTD),
        ("planes:1", 4, Codec.PLANES),
        ("planes:1", 0, Codec.ZSTD),  # nobody said what to split by
    ],
)
@pytest.mark.parametrize("size_bytes", [SMALL, HALF_BYTES])
def test_a_mode_says_how_what_shrinks_is_stored(
    world: World, mode: str, element_size: int, codec: Codec, size_bytes: int
) -> None:
    chosen = world.choose(mode, half()[:size_bytes], element_size)

    assert chosen.codec is codec
    assert chosen.element_size == (element_size if codec is Codec.PLANES else 0)


@pytest.mark.parametrize("size_bytes", [SMALL, HALF_BYTES])
def test_off_leaves_even_what_shrinks_as_it_is(world: World, size_bytes: int) -> None:
    assert world.codec("off", half()[:size_bytes]) is Codec.RAW


@pytest.mark.parametrize("mode", ["auto", "zstd:1", "planes:1"])
def test_what_does_not_shrink_stays_as_it_is(world: World, mode: str) -> None:
    assert world.codec(mode, noise(NOISE_BYTES), 4) is Codec.RAW


@pytest.mark.parametrize("mode", ["auto", "zstd:1", "planes:1"])
def test_what_is_small_stays_as_it_is(world: World, mode: str) -> None:
    assert world.codec(mode, bytes((1 << 20) - 1), 4) is Codec.RAW


# --- auto ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [SMALL, HALF_BYTES])
@pytest.mark.parametrize(("link", "codec"), [(SLOW, Codec.ZSTD), (FAST, Codec.RAW)])
def test_auto_compresses_for_a_slow_link_and_not_for_a_fast_one(
    world: World, link: LinkRate, codec: Codec, size_bytes: int
) -> None:
    world.link = link

    assert world.codec("auto", half()[:size_bytes], 4) is codec
    news = world.decisions.news()
    assert news is not None
    assert news[1]["run"].compress is (codec is Codec.ZSTD)


def test_plain_bytes_need_more_than_a_hope(world: World) -> None:
    world.link = LinkRate(1e13, 1e5)  # single parts went fast, and nobody saw the link full
    encoding = world.choose("auto", half())

    assert encoding.codec is Codec.ZSTD
    assert min(frames(encoding, half())) > BLOCK_BYTES  # stored, so that the link gets full


def test_a_link_that_slows_down_during_an_upload_is_followed(world: World) -> None:
    world.link = LinkRate(1e13, 1e5)
    encoding = world.choose("auto", half())
    stored = frames(encoding, half(), 1)
    world.link = SLOW
    compressed = frames(encoding, half(), 2)
    world.link = FAST
    stored += frames(encoding, half(), 1)

    assert min(stored) > BLOCK_BYTES
    assert max(compressed) < 0.7 * BLOCK_BYTES
    news = world.decisions.news()
    assert news is not None
    assert news[0] == {"compressed": 2, "stored": 2}


def test_what_is_stored_is_sampled_now_and_then(world: World) -> None:
    world.link = LinkRate(1e13, 1e5)
    data = (
        noise(NOISE_BYTES)[: 2 * BLOCK_BYTES]
        + bytes(BLOCK_BYTES)
        + noise(NOISE_BYTES)[: 4 * BLOCK_BYTES]
    )
    encoding = world.choose("auto", bytes(len(data)))
    world.link = FAST
    for _ in range(2 * SAMPLED_EVERY):
        encoding.submit(Memory(data), len(data), 0).result()
    world.link = SLOW  # by now it is known not to shrink any more

    frame = b""
    for _ in range(4):
        frame = encoding.submit(Memory(data), len(data), 0).result()
    news = world.decisions.news()
    assert news is not None
    assert news[1]["run"].ratio > 0.2
    assert len(frame) >= BLOCK_BYTES


# --- a link that nobody knows -------------------------------------------------------------------


def test_the_first_part_on_an_unknown_link_is_small_and_stored(world: World) -> None:
    encoding = world.choose("auto", half())

    assert encoding.part_room(PART_BYTES) == PROBE_ROOM_BYTES
    sizes = frames(encoding, half(), 4)
    assert min(sizes[:2]) > BLOCK_BYTES
    assert max(sizes[2:]) < 0.7 * BLOCK_BYTES
    world.link = SLOW
    assert encoding.part_room(PART_BYTES) == PART_BYTES


def test_what_shrinks_to_next_to_nothing_needs_no_such_part(world: World) -> None:
    zeros = bytes(HALF_BYTES)

    assert max(frames(world.choose("auto", zeros), zeros)) < BLOCK_BYTES // 100


def test_an_upload_begins_again_with_plain_bytes_while_that_costs_little(world: World) -> None:
    encoding = world.choose("auto", half())
    world.link = FAST

    with pytest.raises(PlainPaysError):
        encoding.submit(Memory(half()), HALF_BYTES, 0)


def test_an_upload_that_has_sent_much_goes_on_with_stored_frames(world: World) -> None:
    encoding = world.choose("auto", half())
    frames(encoding, half(), 6)
    world.link = FAST

    assert frames(encoding, half(), 1)[0] > BLOCK_BYTES


def test_an_upload_that_goes_on_after_a_crash_learns_from_its_first_block(world: World) -> None:
    world.link = SLOW
    encoding = world.chooser().follow(target("off", half()), Codec.ZSTD)
    again = world.chooser().follow(target("auto", half()), Codec.ZSTD)

    assert max(frames(encoding, half())) < 0.7 * BLOCK_BYTES
    assert max(frames(again, half())) < 0.7 * BLOCK_BYTES


# --- going on, and following --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "element_size", "allowed"),
    [
        ("off", 0, set()),
        ("auto", 4, {Codec.ZSTD}),
        ("zstd:1", 4, {Codec.ZSTD}),
        ("planes:1", 4, {Codec.PLANES}),
        ("planes:1", 2, set()),
        ("planes:1", 0, {Codec.ZSTD}),
    ],
)
def test_a_shard_follows_only_the_frames_that_its_mode_allows(
    world: World, mode: str, element_size: int, allowed: set[Codec]
) -> None:
    of = target(mode, half(), element_size)
    ways = [(Codec.ZSTD, 0), (Codec.PLANES, 4)]
    followed = {way[0]: world.chooser().may_follow(of, *way) for way in ways}

    assert {codec for codec, encoding in followed.items() if encoding is not None} == allowed
    assert all(encoding.codec is codec for codec, encoding in followed.items() if encoding)


@pytest.mark.parametrize("mode", ["off", "auto", "zstd:9", "planes:1"])
def test_an_upload_keeps_the_codec_it_began_with(world: World, mode: str) -> None:
    world.link = SLOW
    encoding = world.chooser().follow(target(mode, half()), Codec.PLANES, 8)

    assert (encoding.codec, encoding.element_size) == (Codec.PLANES, 8)
    assert max(frames(encoding, half(), 1)) < BLOCK_BYTES


# --- what is told -------------------------------------------------------------------------------


def test_only_what_is_new_is_told_and_of_few_runs() -> None:
    decisions, decided = CompressionLog(), CompressionLog()
    verdict = judge(CompressionSample(0.5, 1e-9), Means(SLOW, 2))
    for number in range(RUNS_KEPT + 5):
        decisions.note(f"run-{number}", verdict)
        decisions.count(compressed=number % 2 == 0)
    news = decisions.news()
    assert news is not None
    decided.hear(*news)
    decided.hear({"compressed": 1, "stored": 0}, {"run-9": verdict})

    shown = decided.as_json()
    assert decisions.news() is None
    assert shown["blocks"]["compressed"] + shown["blocks"]["stored"] == RUNS_KEPT + 6
    assert len(shown["runs"]) == RUNS_KEPT
    assert list(shown["runs"])[-1] == "run-9"
    assert "run-4" not in shown["runs"]


class Watched(Memory):
    """Zeros, of which it is noted which blocks were read."""

    def __init__(self) -> None:
        super().__init__(b"")
        self.blocks: list[int] = []

    def read(self, part: UploadPartRange, buffer: memoryview) -> tuple[memoryview, int]:
        self.blocks.append(part.first_block)
        buffer[: part.size_bytes] = bytes(part.size_bytes)
        return buffer[: part.size_bytes], digest_of(buffer[: part.size_bytes])


@pytest.mark.parametrize(("blocks", "sampled"), [(15, [0]), (16, [0, 8]), (64, [0, 21, 42])])
def test_of_a_large_shard_samples_are_taken_all_over_it(
    world: World, blocks: int, sampled: list[int]
) -> None:
    each = (digest_of(bytes(BLOCK_BYTES)),) * blocks
    content = Content(blocks * BLOCK_BYTES, combine(each, blocks * BLOCK_BYTES), each)
    source = Watched()

    encoding = world.chooser().choose(
        UploadTarget("key", {}, content, "run", parsed_mode("zstd:1")), source
    )

    assert encoding is not None
    assert sorted(source.blocks) == sampled
