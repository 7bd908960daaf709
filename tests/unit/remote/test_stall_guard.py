"""Which calls count as stalled, and what happens to them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from cachetier.remote import stall_guard
from cachetier.remote.stall_guard import (
    LEAST_BYTES_PER_SECOND,
    CallProgress,
    StallWatch,
)
from tests.fakes.fake_clock import FakeClock

PATIENCE_SECONDS = 30.0
ENOUGH_BYTES = int(LEAST_BYTES_PER_SECOND * PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("seconds", "moved_bytes", "stalled"),
    [
        (PATIENCE_SECONDS - 1, 0, False),
        (PATIENCE_SECONDS, 0, True),
        (PATIENCE_SECONDS, ENOUGH_BYTES - 1, True),
        (PATIENCE_SECONDS, ENOUGH_BYTES, False),
    ],
)
def test_a_call_has_to_move_enough_in_each_span(
    seconds: float, moved_bytes: int, stalled: bool
) -> None:
    assert CallProgress(100.0).is_stalled(100.0 + seconds, moved_bytes, PATIENCE_SECONDS) is stalled


def test_what_moved_in_the_last_span_does_not_count_in_this_one() -> None:
    progress = CallProgress(0.0)
    assert not progress.is_stalled(PATIENCE_SECONDS, 10 * ENOUGH_BYTES, PATIENCE_SECONDS)
    assert progress.is_stalled(2 * PATIENCE_SECONDS, 10 * ENOUGH_BYTES, PATIENCE_SECONDS)


class Watched:
    """A watch whose looking is done by hand, and a connection with a peer."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.started: list[Callable[[], bool]] = []
        self.watch = StallWatch(self.clock.monotonic, self.started.append)
        self.ours, self.peer = socket.socketpair()
        self.connection = SimpleNamespace(sock=self.ours)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.watch.look()

    def is_cut(self) -> bool:
        self.peer.setblocking(False)
        try:
            return self.peer.recv(1) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        self.ours.close()
        self.peer.close()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_call_that_gets_no_answer_is_cut(watched: Watched) -> None:
    with watched.watch.call(0, PATIENCE_SECONDS):
        stall_guard.connected(watched.connection)
        watched.pass_time(PATIENCE_SECONDS - 1)
        assert not watched.is_cut()
        watched.pass_time(1)
        assert watched.is_cut()
    assert watched.watch.cuts == 1
    watched.close()


def test_a_body_that_drips_is_cut(watched: Watched) -> None:
    with watched.watch.call(2 * ENOUGH_BYTES, PATIENCE_SECONDS):
        stall_guard.connected(watched.connection)
        for _ in range(int(PATIENCE_SECONDS)):
            stall_guard.sent(1)
            watched.pass_time(1)
    assert watched.is_cut()
    watched.close()


def test_a_slow_but_steady_body_and_its_answer_each_have_their_time(watched: Watched) -> None:
    with watched.watch.call(2 * ENOUGH_BYTES, PATIENCE_SECONDS):
        stall_guard.connected(watched.connection)
        for _ in range(int(2 * PATIENCE_SECONDS)):
            stall_guard.sent(LEAST_BYTES_PER_SECOND)
            watched.pass_time(1)
        watched.pass_time(PATIENCE_SECONDS - 1)
        assert not watched.is_cut()
        watched.pass_time(1)
        assert watched.is_cut()
    watched.close()


def test_what_lies_in_the_buffer_of_a_socket_has_not_arrived(watched: Watched) -> None:
    with watched.watch.call(2 * ENOUGH_BYTES, PATIENCE_SECONDS):
        stall_guard.connected(watched.connection)
        watched.ours.setblocking(False)
        given = watched.ours.send(bytes(ENOUGH_BYTES))
        stall_guard.sent(given)
        assert watched.watch.moved_bytes() < given
        watched.peer.recv(given, socket.MSG_WAITALL)
        assert watched.watch.moved_bytes() == given
    watched.watch.received(5)
    assert watched.watch.moved_bytes() == given + 5
    watched.close()


def test_the_watching_ends_with_the_last_call_and_begins_again_with_the_next(
    watched: Watched,
) -> None:
    with watched.watch.call(0, PATIENCE_SECONDS), watched.watch.call(0, PATIENCE_SECONDS):
        assert watched.watch.look()
    assert len(watched.started) == 1
    assert not watched.watch.look()
    with watched.watch.call(0, PATIENCE_SECONDS):
        assert len(watched.started) == 2
    watched.close()


def test_an_answer_is_broken_off_while_it_is_read_but_not_who_has_its_connection_next(
    watched: Watched,
) -> None:
    with watched.watch.call(0, PATIENCE_SECONDS):
        stall_guard.connected(watched.connection)
    with watched.watch.reading(10):
        watched.watch.received(10)
        watched.watch.cut(threading.get_ident())
        assert not watched.is_cut()
    with watched.watch.reading(10):
        watched.watch.received(9)
        watched.watch.cut(threading.get_ident())
        assert watched.is_cut()
    watched.close()
