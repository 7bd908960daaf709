"""Requests and answers between serve and its drain: many threads, one socket, no lost worker."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, cast

import pytest
from cachetier_client.clock import SystemClock
from msgspec.structs import replace

from cachetier.drain import channel
from cachetier.drain.channel import (
    METHODS,
    AskingEnd,
    ChannelClosedError,
    DrainLink,
    RefusedReportError,
    ServiceMethod,
)
from cachetier.drain.messages import LocalShard, NoReply
from cachetier.drain.serve.service import DrainService
from cachetier.errors import FencedError, NotFoundError
from cachetier.notifier import Changes


class Service:
    """Answers as a test says, and hears what needs no answer."""

    def __init__(self) -> None:
        self.answer: Callable[[Any], Any] = lambda value: value
        self.told: SimpleQueue[int] = SimpleQueue()

    def echo(self, value: int = 0) -> int | str:
        return self.answer(value)  # type: ignore[no-any-return]

    def note(self, value: int) -> None:
        self.answer(value)

    def hint(self, value: int) -> NoReply:
        self.told.put(value)

    def open_shard(self, version: int) -> LocalShard:
        return self.answer(version)  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (Service.echo, Service.note, Service.hint):
        monkeypatch.setitem(METHODS, function.__name__, ServiceMethod.of(function))


def opened(descriptor: int | None = None) -> LocalShard:
    return LocalShard(
        b"body",
        (1, 2),
        descriptor,
    )


class Pair:
    """Both ends of a channel."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.service = Service()
        self.changes = Changes(SystemClock())
        self.serve = DrainLink(ours, cast("DrainService", self.service), self.changes)
        self.drain = AskingEnd(theirs)
        self.woken = threading.Event()
        self._listener = threading.Thread(target=self.drain.listen, args=(self.woken.set,))
        self.serve.start()
        self._listener.start()

    def close(self) -> None:
        self.drain.close()
        self.serve.close()
        self._listener.join()


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.close()


def test_each_thread_gets_its_own_answer(pair: Pair) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda value: pair.drain.ask("echo", value), range(500)))

    assert answers == list(range(500))


def test_an_answer_may_carry_bytes_and_a_descriptor(pair: Pair) -> None:
    reader, writer = os.pipe()
    pipe = os.fstat(reader).st_ino
    os.write(writer, b"through")
    os.close(writer)
    pair.service.answer = lambda _request: opened(reader)
    reply = pair.drain.serve.open_shard(1)

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
        (NotFoundError("no text: /\udcff"), NotFoundError),
        (FencedError("broken disk"), RefusedReportError),
        (KeyError("a defect"), RefusedReportError),
    ],
)
def test_an_error_is_an_answer(pair: Pair, error: Exception, raised: type[Exception]) -> None:
    def fail(_request: object) -> object:
        raise error

    pair.service.answer = fail
    with pytest.raises(raised):
        pair.drain.ask("note", 1)


def test_an_answer_that_is_too_large_is_refused_and_the_channel_lives(pair: Pair) -> None:
    pair.service.answer = lambda _request: "x" * ((16 << 20) + 1)
    with pytest.raises(RefusedReportError, match="too large"):
        pair.drain.ask("echo")

    pair.service.answer = lambda _request: 7
    assert pair.drain.ask("echo") == 7


def test_serve_wakes_the_drain(pair: Pair) -> None:
    pair.changes.ring()

    assert pair.woken.wait(60)


def test_a_change_soon_after_another_wakes_the_drain_without_a_pause(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "QUIET_AT_MOST_SECONDS", 600.0)
    for _ in range(2):
        pair.woken.clear()
        pair.changes.ring()
        assert pair.woken.wait(60)


def test_what_is_told_needs_no_answer(pair: Pair) -> None:
    pair.drain.ask("hint", 3)

    assert pair.service.told.get(timeout=60) == 3


@pytest.mark.parametrize("end", ["serve", "drain"])
def test_nobody_waits_for_an_end_that_is_gone(pair: Pair, end: str) -> None:
    hanging = threading.Event()

    def hang(_request: object) -> None:
        hanging.set()
        pair.woken.wait(60)

    pair.service.answer = hang
    failures: list[Exception] = []

    def ask() -> None:
        try:
            pair.drain.ask("note", 1)
        except ChannelClosedError as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert hanging.wait(60)
    closing = threading.Thread(target=getattr(pair, end).close)  # serve's waits for its answers
    closing.start()
    thread.join(60)
    pair.woken.set()
    closing.join(60)

    assert len(failures) == 1
    with pytest.raises(ChannelClosedError):
        pair.drain.ask("note", 1)
