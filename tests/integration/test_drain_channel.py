"""Requests and answers between serve and its drain: many threads, one socket, no lost worker."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cachetier_client.bucket_format.stored import Codec
from msgspec.structs import replace

from cachetier.drain.channel import (
    AnsweringEnd,
    AskingEnd,
    ChannelClosedError,
    RefusedReportError,
)
from cachetier.drain.messages import (
    READERS,
    LocalShard,
    OpenShard,
    Request,
    decode_request,
    readers_of,
)
from cachetier.errors import FencedError, NotFoundError

Answer = Callable[[Any], object]


class Echo(Request[int | str], frozen=True):
    value: int = 0


class Note(Request[None], frozen=True):
    value: int


@pytest.fixture(autouse=True)
def own_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    for request in (Echo, Note):
        monkeypatch.setitem(READERS, request.__name__, readers_of(request))


def opened(descriptor: int | None = None) -> LocalShard:
    return LocalShard(b"body", (1, 2), descriptor, None, None, Codec.RAW, 0)


class Pair:
    """Both ends, with a pool that answers as ``serve`` does."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.serve = AnsweringEnd(ours)
        self.drain = AskingEnd(theirs)
        self.answer: Answer = lambda request: request.value
        self.told: list[object] = []
        self.woken = threading.Event()
        self._pool = ThreadPoolExecutor(4)
        self._threads = [
            threading.Thread(target=self._receive),
            threading.Thread(target=self.drain.listen, args=(self.woken.set,)),
        ]
        for thread in self._threads:
            thread.start()

    def _receive(self) -> None:
        while (request := self.serve.receive()) is not None:
            if request.header["id"] is None:
                self.told.append(decode_request(request.header["request"], request.body))
            self._pool.submit(self.serve.reply, request, self.answer)

    def close(self) -> None:
        self.drain.close()
        self.serve.close()
        for thread in self._threads:
            thread.join()
        self._pool.shutdown()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_each_thread_gets_its_own_answer(pair: Pair) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda value: pair.drain.ask(Echo(value)), range(500)))

    assert answers == list(range(500))


def test_an_answer_may_carry_bytes_and_a_descriptor(pair: Pair) -> None:
    reader, writer = os.pipe()
    pipe = os.fstat(reader).st_ino
    os.write(writer, b"through")
    os.close(writer)
    pair.answer = lambda _request: opened(reader)
    reply = pair.drain.ask(OpenShard(1))

    assert reply.descriptor is not None
    assert replace(reply, descriptor=None) == opened()
    assert os.read(reply.descriptor, 100) == b"through"
    os.close(reply.descriptor)
    deadline = time.monotonic() + 60  # the thread that answers closes it once it has sent it
    while _is_open(reader, pipe):
        assert time.monotonic() < deadline, "serve keeps a descriptor that it gave away"
        time.sleep(0.001)


def _is_open(descriptor: int, inode: int) -> bool:
    """Return whether ``descriptor`` is still the one that was opened, not a later one."""
    try:
        return os.fstat(descriptor).st_ino == inode
    except OSError:
        return False


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (NotFoundError("gone"), NotFoundError),
        (FencedError("broken disk"), RefusedReportError),
        (KeyError("a defect"), RefusedReportError),
    ],
)
def test_an_error_is_an_answer(pair: Pair, error: Exception, raised: type[Exception]) -> None:
    def fail(_request: object) -> object:
        raise error

    pair.answer = fail
    with pytest.raises(raised):
        pair.drain.ask(Note(1))


def test_an_answer_that_is_too_large_is_refused_and_the_channel_lives(pair: Pair) -> None:
    pair.answer = lambda _request: "x" * ((16 << 20) + 1)
    with pytest.raises(RefusedReportError, match="too large"):
        pair.drain.ask(Echo())

    pair.answer = lambda _request: 7
    assert pair.drain.ask(Echo()) == 7


def test_serve_wakes_the_drain(pair: Pair) -> None:
    pair.serve.wake()

    assert pair.woken.wait(60)


def test_what_is_told_needs_no_answer(pair: Pair) -> None:
    pair.drain.tell(Note(3))
    pair.drain.ask(Echo())  # frames keep their order

    assert pair.told == [Note(3)]


@pytest.mark.parametrize("end", ["serve", "drain"])
def test_nobody_waits_for_an_end_that_is_gone(pair: Pair, end: str) -> None:
    hanging = threading.Event()

    def hang(_request: object) -> None:
        hanging.set()
        pair.woken.wait(60)

    pair.answer = hang
    failures: list[Exception] = []

    def ask() -> None:
        try:
            pair.drain.ask(Note(1))
        except ChannelClosedError as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert hanging.wait(60)
    getattr(pair, end).close()
    thread.join(60)
    pair.woken.set()

    assert len(failures) == 1
    with pytest.raises(ChannelClosedError):
        pair.drain.ask(Note(1))
