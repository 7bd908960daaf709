"""Shards on their way out over the socket."""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass

import pytest
from cachetier_client import (
    Client,
    IntegrityError,
    InvalidRequestError,
    NotFoundError,
    SizeMismatchError,
)
from cachetier_client.io import aligned as memory
from cachetier_client.io.digests import BLOCK_BYTES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.fake_service import FakeService
from tests.client.fakes import FaultyFiles, RecordingFiles
from tests.client.test_puts import SIZES, patterned


@dataclass
class MeetingFiles(RecordingFiles):
    """The system's calls; each read waits for one of another thread."""

    meeting: threading.Barrier | None = None

    def preadv(self, descriptor: int, into: memoryview, offset: int) -> int:
        if self.meeting is not None:
            self.meeting.wait(30)
        return super().preadv(descriptor, into, offset)


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("size_bytes", SIZES)
def test_what_was_put_comes_back_writable(client: Client, size_bytes: int) -> None:
    data = patterned(size_bytes)
    client.put_shard(data, step=7, name="s")

    got = client.get_shard("a-run", 7, "s")

    assert got == data
    assert not got.readonly


@pytest.mark.parametrize("offset", [0, 1, 512])
def test_it_comes_back_into_the_callers_memory(client: Client, offset: int) -> None:
    data = patterned(BLOCK_BYTES + 70_000)
    client.put_shard(data, step=7, name="s")
    room = memory.aligned_memory(len(data) + offset + 1)
    out = room[offset : offset + len(data)]

    got = client.get_shard("a-run", 7, "s", out=out)

    assert got == out == data
    assert room[offset + len(data)] == 0  # nothing beyond it was touched


def test_without_direct_io_it_comes_back_too(service: FakeService) -> None:
    data = patterned(2 * BLOCK_BYTES + 1)
    files = FaultyFiles(refuses_direct=True)
    with Client(service.url, run="a-run", files=files) as client:
        client.put_shard(data, step=7, name="s")

        assert client.get_shard("a-run", 7, "s") == data

    assert files.fired == 2


@pytest.mark.parametrize("size_bytes", [4, 70_000])
def test_a_buffer_of_another_size_is_refused_untouched(client: Client, size_bytes: int) -> None:
    client.put_shard(bytes(size_bytes), step=7, name="s")
    out = bytearray(b"untouched")

    with pytest.raises(SizeMismatchError):
        client.get_shard("a-run", 7, "s", out=out)

    assert out == b"untouched"


def test_a_read_only_buffer_is_refused(client: Client) -> None:
    with pytest.raises(InvalidRequestError):
        client.get_shard("a-run", 7, "s", out=b"read-only")


def test_an_unknown_shard_is_not_found(client: Client) -> None:
    with pytest.raises(NotFoundError, match="get_shard run=a-run step=7 shard=s"):
        client.get_shard("a-run", 7, "s")


def test_a_damaged_local_copy_is_reported_and_the_remote_one_taken(
    service: FakeService, client: Client
) -> None:
    data = patterned(2 * BLOCK_BYTES)
    client.put_shard(data, step=7, name="s")
    service.damage = flipped
    service.ops.clear()

    assert client.get_shard("a-run", 7, "s") == data

    assert service.ops == ["open", "verify", "open"]


def test_bytes_that_stay_damaged_are_an_error_never_data(
    service: FakeService, client: Client
) -> None:
    client.put_shard(patterned(2 * BLOCK_BYTES), step=7, name="s")
    service.damage = flipped
    service.answers["verify"] = {"sound": True}

    with pytest.raises(IntegrityError, match="does not match its digest"):
        client.get_shard("a-run", 7, "s")


def test_a_file_cut_short_is_an_error(service: FakeService, client: Client) -> None:
    client.put_shard(patterned(2 * BLOCK_BYTES), step=7, name="s")
    service.damage = lambda content: content[:-1000]
    service.answers["verify"] = {"sound": True}

    with pytest.raises(IntegrityError, match="cut off"):
        client.get_shard("a-run", 7, "s")


def test_a_stream_reads_any_part_and_each_block_once(service: FakeService, client: Client) -> None:
    data = patterned(2 * BLOCK_BYTES + 1000)
    client.put_shard(data, step=7, name="s")

    with client.open_shard("a-run", 7, "s", "rb") as stream:
        assert stream.size_bytes == len(data)
        assert stream.read(10) == data[:10]
        assert stream.seek(-1005, io.SEEK_END) == len(data) - 1005
        assert stream.read() == data[-1005:]
        assert stream.read(1) == b""
        stream.seek(BLOCK_BYTES - 3)
        across = bytearray(BLOCK_BYTES + 6)
        assert stream.readinto(across) == len(across)
        assert across == data[BLOCK_BYTES - 3 : 2 * BLOCK_BYTES + 3]
        assert stream.tell() == 2 * BLOCK_BYTES + 3

    assert service.ops.count("open") == 1
    with pytest.raises(ValueError, match="closed"):
        stream.read(1)


def test_a_large_read_of_a_stream_fills_the_callers_memory_in_several_threads(
    service: FakeService,
) -> None:
    files, data = MeetingFiles(), patterned(4 * BLOCK_BYTES + 1000)
    with Client(service.url, run="a-run", files=files) as client:
        client.put_shard(data, step=7, name="s")
        room = memory.aligned_memory(len(data))
        with client.open_shard("a-run", 7, "s", "rb") as stream:
            stream.read(10)
            stream.seek(0)
            files.read.clear()
            files.meeting = threading.Barrier(2)
            assert stream.readinto(room[: len(data) - 10]) == len(data) - 10
            files.meeting = None

            assert room[: len(data) - 10] == data[:-10]
            start = memory.address_of(room)
            straight = sorted(at for at, address in files.read if address == start + at)
            assert straight == [BLOCK_BYTES, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES]
            assert len(files.read) == 4  # not the first block, which was kept

            assert stream.read() == data[-10:]
            assert len(files.read) == 4  # now the last is


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    reads=st.lists(
        st.tuples(
            st.sampled_from([0, 7, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 3, None]),
            st.sampled_from([0, 1, 100, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES, -1]),
        ),
        max_size=8,
    )
)
def test_any_reads_of_a_stream_give_the_bytes_of_their_place(
    client: Client, reads: list[tuple[int | None, int]]
) -> None:
    data = patterned(3 * BLOCK_BYTES + 10)
    client.put_shard(data, step=7, name="s")
    at = 0
    with client.open_shard("a-run", 7, "s", "rb") as stream:
        for seek, count in reads:
            at = at if seek is None else stream.seek(seek)
            end = len(data) if count < 0 else min(len(data), at + count)
            found = stream.read(count)
            assert type(found) is bytes and found == data[at:end]
            at = end
            assert stream.tell() == at


def test_a_large_read_that_fails_moves_the_stream_nowhere(
    service: FakeService, client: Client
) -> None:
    client.put_shard(patterned(3 * BLOCK_BYTES), step=7, name="s")
    service.damage = flipped
    service.answers["verify"] = {"sound": True}

    with client.open_shard("a-run", 7, "s", "rb") as stream:
        with pytest.raises(IntegrityError, match="step=7 shard=s"):
            stream.read()
        assert stream.tell() == 0


def test_a_read_that_fails_keeps_no_view_of_its_memory(
    service: FakeService, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put_shard(patterned(3 * BLOCK_BYTES), step=7, name="s")
    service.damage = flipped
    service.answers["verify"] = {"sound": True}
    made: list[io.BytesIO] = []
    real = io.BytesIO

    def kept(initial: bytes) -> io.BytesIO:
        made.append(real(initial))
        return made[-1]

    monkeypatch.setattr("cachetier_client.streams.reader.io.BytesIO", kept)
    with client.open_shard("a-run", 7, "s", "rb") as stream:
        with pytest.raises(IntegrityError):
            stream.read()

    (buffer,) = made
    buffer.truncate(0)  # refused while there is a view, whoever has it


def test_a_small_shard_streams_from_the_reply(client: Client) -> None:
    client.put_shard(b"line 1\nline 2\n", step=7, name="s")

    with client.open_shard("a-run", 7, "s", "rb") as stream:
        assert stream.readlines() == [b"line 1\n", b"line 2\n"]
        with pytest.raises(ValueError, match="seek"):
            stream.seek(-1)


def test_a_stream_over_a_damaged_copy_goes_on_with_the_remote_one(
    service: FakeService, client: Client
) -> None:
    data = patterned(2 * BLOCK_BYTES)
    client.put_shard(data, step=7, name="s")
    service.damage = flipped

    with client.open_shard("a-run", 7, "s", "rb") as stream:
        assert stream.read() == data

    assert service.ops.count("verify") == 1
