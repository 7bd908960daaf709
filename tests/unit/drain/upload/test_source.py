"""Local bytes on their way: read in pages, checked block by block, in memory under one budget."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cachetier_client.bucket_format.uploads import PART_BYTES, UploadPartRange
from cachetier_client.io.digests import BLOCK_BYTES, block_lengths, combine, digest_of

from cachetier.carriers.checked_file import DamagedError
from cachetier.drain.priority.gates import ComputeSlots
from cachetier.drain.upload.buffers import PIECE_BYTES, Buffers
from cachetier.drain.upload.source import FileSource, InlineSource
from cachetier.model.composing import pieces
from cachetier.remote.base import pieces_of, size_of
from tests.fakes.memory_store import bytes_of

SIZES = [1, 511, 4096, 4097, BLOCK_BYTES, BLOCK_BYTES + 1, PART_BYTES, PART_BYTES + 70_001]


def blocks_of(data: bytes) -> list[int]:
    lengths = block_lengths(len(data))
    return [
        digest_of(data[number * BLOCK_BYTES : number * BLOCK_BYTES + length])
        for number, length in enumerate(lengths)
    ]


@contextmanager
def source_of(path: Path, blocks: list[int]) -> Iterator[FileSource]:
    source = FileSource(os.open(path, os.O_RDONLY), blocks)
    yield source
    source.close()


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("direct", [True, False])
def test_every_part_is_read_whole_with_its_digest(
    tmp_path: Path, size_bytes: int, direct: bool
) -> None:
    data = os.urandom(size_bytes)
    path = tmp_path / "data"
    path.write_bytes(data)
    buffers = Buffers()
    found, digests = b"", []
    with source_of(path, blocks_of(data)) as source:
        if not direct:
            source.direct = False
        for part in pieces(size_bytes, PART_BYTES):
            with buffers.lend(part.size_bytes) as buffer:
                view, digest = source.read(part, buffer)
                found += bytes(view)
                digests.append(digest)

    assert found == data
    assert digests == [
        digest_of(data[p.start : p.start + p.size_bytes]) for p in pieces(size_bytes, PART_BYTES)
    ]


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("direct", [True, False])
def test_a_part_that_is_read_while_it_is_sent_is_the_same_in_pieces_of_bounded_memory(
    tmp_path: Path, size_bytes: int, direct: bool
) -> None:
    data = os.urandom(size_bytes)
    path = tmp_path / "data"
    path.write_bytes(data)
    lend, found = Buffers(PIECE_BYTES).lend, b""
    with source_of(path, blocks_of(data)) as source:
        if not direct:
            source.direct = False
        for part in pieces(size_bytes, PART_BYTES):
            body, digest = source.stream(part, lend)
            sent = bytes_of(body)
            assert (digest, len(sent)) == (digest_of(sent), size_of(body))
            assert max(len(piece) for piece in pieces_of(body)) <= PIECE_BYTES
            found += sent

    assert found == data


@pytest.mark.parametrize("at", [0, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 5])
def test_the_end_of_a_damaged_block_is_not_sent(tmp_path: Path, at: int) -> None:
    data = bytearray(os.urandom(2 * BLOCK_BYTES + 10))
    blocks = blocks_of(bytes(data))
    data[at] ^= 1
    path = tmp_path / "data"
    path.write_bytes(data)
    sent, buffers = 0, Buffers(PIECE_BYTES)

    with source_of(path, blocks) as source:
        body, _ = source.stream(UploadPartRange(1, 0, len(data)), buffers.lend)
        with pytest.raises(DamagedError, match=f"block {at // BLOCK_BYTES} "):
            for piece in pieces_of(body):
                sent += len(piece)

    assert sent < min(len(data), (at // BLOCK_BYTES + 1) * BLOCK_BYTES)
    with buffers.lend(PIECE_BYTES):
        pass  # it was given back


def test_who_gives_way_waits_before_a_part_and_not_within_it(tmp_path: Path) -> None:
    data = os.urandom(2 * PIECE_BYTES)
    path = tmp_path / "data"
    path.write_bytes(data)
    gate = ComputeSlots(1)
    source = FileSource(os.open(path, os.O_RDONLY), blocks_of(data), gate)
    body, _ = source.stream(UploadPartRange(1, 0, len(data)), Buffers().lend)

    with gate.slot():
        assert bytes_of(body) == data
    assert gate.worked_seconds() > 0
    source.close()


@pytest.mark.parametrize("at", [0, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 5])
def test_one_flipped_bit_is_damage(tmp_path: Path, at: int) -> None:
    data = bytearray(os.urandom(2 * BLOCK_BYTES + 10))
    blocks = blocks_of(bytes(data))
    data[at] ^= 1
    path = tmp_path / "data"
    path.write_bytes(data)

    with (
        source_of(path, blocks) as source,
        Buffers().lend(len(data)) as buffer,
        pytest.raises(DamagedError, match=f"block {at // BLOCK_BYTES} "),
    ):
        source.read(UploadPartRange(1, 0, len(data)), buffer)


@pytest.mark.parametrize("missing", [1, 4096, 5000])
def test_a_file_that_is_too_short_is_damage(tmp_path: Path, missing: int) -> None:
    data = os.urandom(10_000)
    path = tmp_path / "data"
    path.write_bytes(data[:-missing])

    with (
        source_of(path, blocks_of(data)) as source,
        Buffers().lend(len(data)) as buffer,
        pytest.raises(DamagedError, match="ends at byte"),
    ):
        source.read(UploadPartRange(1, 0, len(data)), buffer)


def test_an_inline_shard_is_checked_as_well() -> None:
    body = b"hello"
    whole = UploadPartRange(1, 0, len(body))
    view, digest = InlineSource(body, digest_of(body)).read(whole, memoryview(b""))

    assert (bytes(view), digest) == (body, digest_of(body))
    with pytest.raises(DamagedError):
        InlineSource(b"hellp", digest_of(body)).read(whole, memoryview(b""))
    with pytest.raises(DamagedError):
        InlineSource(b"hell", digest_of(body)).read(whole, memoryview(b""))


def test_digests_of_parts_make_the_digest_of_the_whole() -> None:
    data = os.urandom(PART_BYTES + 3)

    assert combine(blocks_of(data), len(data)) == digest_of(data)


def test_buffers_stay_within_their_budget() -> None:
    buffers = Buffers(budget_bytes=2 * PART_BYTES)
    with buffers.lend(PART_BYTES), buffers.lend(PART_BYTES):
        assert buffers._lent_bytes == 2 * PART_BYTES
    assert buffers._held_bytes == 2 * PART_BYTES
    with buffers.lend(5000) as small:
        assert len(small) == 8192
        assert buffers._held_bytes <= 2 * PART_BYTES


def test_a_part_larger_than_the_budget_goes_alone() -> None:
    buffers = Buffers(budget_bytes=4096)
    with buffers.lend(10_000) as buffer:
        assert len(buffer) == 12_288
    assert buffers._held_bytes == 0


def test_usual_buffers_are_lent_again() -> None:
    buffers = Buffers()
    with buffers.lend(PART_BYTES) as first:
        first[:5] = b"again"
    with buffers.lend(PART_BYTES) as second:
        assert bytes(second[:5]) == b"again"
    buffers.close()
    with buffers.lend(PART_BYTES) as third:
        assert bytes(third[:5]) == bytes(5)


@pytest.mark.parametrize(
    ("start", "size_bytes"),
    [
        (1 << 20, 2 << 20),  # within a block
        (1 << 20, BLOCK_BYTES),  # over a boundary
        (BLOCK_BYTES, BLOCK_BYTES + (1 << 20)),  # from a boundary on
        (5 << 20, 2 * BLOCK_BYTES + 70_001 - (1 << 20)),  # to the end
        (0, 3 * BLOCK_BYTES + 70_001),
    ],
)
def test_a_part_within_blocks_is_read_with_the_blocks_around_it(
    tmp_path: Path, start: int, size_bytes: int
) -> None:
    data = os.urandom(3 * BLOCK_BYTES + 70_001)
    path = tmp_path / "data"
    path.write_bytes(data)
    part = UploadPartRange(1, start, size_bytes)
    with source_of(path, blocks_of(data)) as source, Buffers().lend(part.room_bytes) as buffer:
        view, digest = source.read(part, buffer)
        found = bytes(view)

    assert found == data[start : start + size_bytes]
    assert digest == digest_of(found)


def test_damage_beside_a_part_in_the_same_block_is_found(tmp_path: Path) -> None:
    data = os.urandom(2 * BLOCK_BYTES)
    path = tmp_path / "data"
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    part = UploadPartRange(1, 0, BLOCK_BYTES + 4096)
    with (
        source_of(path, blocks_of(data)) as source,
        Buffers().lend(part.room_bytes) as buffer,
        pytest.raises(DamagedError, match="block 1"),
    ):
        source.read(part, buffer)


def unreadable(path: str) -> FileSource:
    return FileSource(os.open(path, os.O_RDONLY), [0])


def test_bytes_that_the_disk_cannot_read_are_damage() -> None:
    source = unreadable("/proc/self/mem")  # nothing is mapped at 0: the kernel says EIO
    with Buffers().lend(10) as buffer, pytest.raises(DamagedError, match="cannot read it"):
        source.read(UploadPartRange(1, 0, 10), buffer)
    source.close()


def test_a_read_that_fails_for_another_reason_says_nothing_of_the_bytes(tmp_path: Path) -> None:
    source = unreadable(str(tmp_path))
    with Buffers().lend(10) as buffer, pytest.raises(IsADirectoryError):
        source.read(UploadPartRange(1, 0, 10), buffer)
    source.close()


def test_a_disk_that_takes_o_direct_and_refuses_the_read_is_read_by_way_of_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(10_000)
    path = tmp_path / "data"
    path.write_bytes(data)
    read, refused = os.preadv, []

    with source_of(path, blocks_of(data)) as source, Buffers().lend(len(data)) as buffer:

        def liar(descriptor: int, buffers: list[memoryview], offset: int) -> int:
            if source.direct:
                refused.append(offset)
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return read(descriptor, buffers, offset)

        monkeypatch.setattr(os, "preadv", liar)
        source.direct = True
        view, digest = source.read(UploadPartRange(1, 0, len(data)), buffer)
        assert (bytes(view), digest) == (data, digest_of(data))
        assert not fcntl.fcntl(source.descriptor, fcntl.F_GETFL) & os.O_DIRECT

    assert refused == [0]
