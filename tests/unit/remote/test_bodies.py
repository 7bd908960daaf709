"""Bodies move in bounded pieces, in bounded time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import UnsupportedOperation
from itertools import count
from typing import Self

import pytest
from cachetier_client.io.digests import from_base64, to_base64

from cachetier.errors import TransientError
from cachetier.remote.stall_guard import (
    LEAST_BYTES_PER_SECOND,
    RECEIVE_BYTES,
    ReadableBody,
    read_slices,
)


class Stream:
    """A body that gives its pieces one by one, as a network does."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = list(pieces)
        self.asked: list[int] = []
        self.closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def read1(self, size: int) -> bytes:
        self.asked.append(size)
        return self._pieces.pop(0) if self._pieces else b""

    read = read1


def test_a_view_is_read_as_a_file_without_a_copy() -> None:
    data = bytearray(b"0123456789")
    body = ReadableBody(memoryview(data)[2:])

    first, second = body.read(3), body.read()
    data[2] = ord("x")

    assert (bytes(first), bytes(second), bytes(body.read(5))) == (b"x34", b"56789", b"")
    assert len(body) == 8


def test_a_view_of_words_is_read_as_bytes() -> None:
    body = ReadableBody(memoryview(bytes(16)).cast("Q"))

    assert len(body) == 16
    assert body.read(5).nbytes == 5


def test_a_body_can_be_wound_back_to_its_begin_and_nowhere_else() -> None:
    body = ReadableBody(b"0123456789")
    body.read(3)

    assert (body.tell(), body.seek(0, 1)) == (3, 3)
    with pytest.raises(UnsupportedOperation):
        body.seek(1)
    assert body.seek(0) == 0
    assert bytes(body.read()) == b"0123456789"


class Reading:
    """Pieces that are read as they are asked for; ``open`` counts sends that go on."""

    size_bytes = 6

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error
        self.begun = self.open = 0

    def __iter__(self) -> Iterator[memoryview]:
        self.begun += 1
        self.open += 1
        try:
            yield memoryview(b"0123")
            if self._error is not None:
                raise self._error
            yield memoryview(b"45")
        finally:
            self.open -= 1


def test_pieces_are_sent_one_by_one_and_read_anew_for_each_send() -> None:
    pieces = Reading()
    body = ReadableBody(pieces)

    assert (len(body), bytes(body.read(3)), bytes(body.read(3))) == (6, b"012", b"3")
    assert (body.seek(0), bytes(body.read()), bytes(body.read()), bytes(body.read())) == (
        0,
        b"0123",
        b"45",
        b"",
    )
    assert (pieces.begun, pieces.open) == (2, 0)


def test_a_body_that_is_closed_holds_nothing() -> None:
    pieces = Reading()
    body = ReadableBody(pieces)
    body.read()
    body.close()

    assert pieces.open == 0


def test_what_pieces_raise_is_remembered_whatever_becomes_of_it_on_its_way() -> None:
    body = ReadableBody(Reading(ZeroDivisionError("planned")))
    body.raise_failure()
    body.read()
    with pytest.raises(ZeroDivisionError):
        body.read()

    with pytest.raises(ZeroDivisionError, match="planned"):
        body.raise_failure()


def test_slices_are_bounded_and_the_stream_is_read_to_its_end() -> None:
    stream = Stream([b"a" * RECEIVE_BYTES, b"b" * 5])

    pieces = list(read_slices(stream, RECEIVE_BYTES + 5, 1.0))

    assert b"".join(pieces) == b"a" * RECEIVE_BYTES + b"b" * 5
    assert stream.asked == [RECEIVE_BYTES, 5, 1]
    assert stream.closed


def test_an_empty_body_is_read_to_its_end_too() -> None:
    stream = Stream([])

    assert list(read_slices(stream, 0, 1.0)) == []
    assert stream.asked == [1]


def test_a_body_that_ends_early_is_an_error_and_closes_the_connection() -> None:
    stream = Stream([b"1234"])

    with pytest.raises(TransientError):
        list(read_slices(stream, 5, 1.0))
    assert stream.closed


def test_a_body_that_drips_is_given_up_when_it_falls_behind_the_slowest_rate() -> None:
    ticks = count()  # a second for each look at the clock
    size_bytes = 10 * LEAST_BYTES_PER_SECOND  # may take ten seconds, and the patience of five
    stream = Stream([b"x"] * 100)

    with pytest.raises(TransientError):
        list(read_slices(stream, size_bytes, 5.0, clock=lambda: float(next(ticks))))
    assert len(stream.asked) == 16


@pytest.mark.parametrize(
    ("digest", "text"),
    [(0, "AAAAAAAAAAA="), (1, "AAAAAAAAAAE="), (0xAE8B14860A799888, "rosUhgp5mIg=")],
)
def test_a_digest_is_written_as_s3_does(digest: int, text: str) -> None:
    assert to_base64(digest) == text
    assert from_base64(text) == digest


def test_a_composite_checksum_is_no_digest() -> None:
    assert from_base64("AAAAAAAAAAA=-3") is None
