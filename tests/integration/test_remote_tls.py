"""A store behind TLS: bodies read on the way, how far they are, ranges back, and who is trusted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from cachetier_client.io.aligned import address_of
from cachetier_client.io.digests import digest_of

from benchmarks.drain.link import Shape
from benchmarks.drain.remote import RunningSink, sink
from cachetier.errors import RemoteError, TransientError
from cachetier.remote import stall_guard
from cachetier.remote.s3 import boto_client
from cachetier.remote.s3.boto_client import WINDOW_BYTES
from cachetier.remote.s3.store import S3ObjectStore
from cachetier.remote.stall_guard import StallWatch, Timeouts
from tests.integration.certificates import Authority
from tests.integration.two_remotes import until

PIECE_BYTES = 512 << 10
BODY = os.urandom(8 * PIECE_BYTES + 77)
PATIENCE_SECONDS = 60.0
SLOW = 2e6  # bytes a second: the body takes a second


class Pieces:
    """``BODY``, piece by piece."""

    size_bytes = len(BODY)

    def __init__(self, may_go: Callable[[], object] = lambda: None) -> None:
        self._may_go = may_go

    def __iter__(self) -> Iterator[memoryview]:
        for at in range(0, len(BODY), PIECE_BYTES):
            self._may_go()
            yield memoryview(BODY)[at : at + PIECE_BYTES]


class Taken:
    """The pieces that an object comes in: how long each is, and where."""

    size_bytes = len(BODY)

    def restart(self) -> None:
        self.sizes: list[int] = []
        self.memories: set[int] = set()
        self.bytes = b""

    def take(self, piece: bytes | memoryview) -> None:
        self.sizes.append(len(piece))
        self.memories.add(address_of(memoryview(piece)))
        self.bytes += piece


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def remote(authority: Authority) -> Iterator[RunningSink]:
    issued = authority.issue("sink")
    with sink(issued.certificate, issued.key) as running:
        running.keep()
        yield running


@pytest.fixture
def watch() -> StallWatch:
    return StallWatch()


@pytest.fixture
def store(
    remote: RunningSink, authority: Authority, watch: StallWatch, monkeypatch: pytest.MonkeyPatch
) -> S3ObjectStore:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.ca))
    remote.take_shape(Shape())
    return remote.endpoint.store(timeouts=replace(Timeouts(), stalls=watch))


def send(store: S3ObjectStore, key: str, pieces: Pieces = Pieces()) -> None:  # noqa: B008  frozen
    """Store ``BODY`` in a multipart upload of one part."""
    upload_id = store.create_upload(key)
    part = store.upload_part(key, upload_id, 1, pieces, digest=digest_of(BODY))
    store.complete_upload(key, upload_id, [part], digest=digest_of(BODY))


def test_a_body_of_pieces_and_its_ranges_go_through_tls(store: S3ObjectStore) -> None:
    send(store, "key")

    room = bytearray(PIECE_BYTES)
    store.read_into("key", 100, memoryview(room))
    assert room == BODY[100 : 100 + PIECE_BYTES]
    assert store.get("key") == BODY


def test_records_come_together_where_tls_would_give_one_at_a_time(
    store: S3ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boto_client, "GATHER_SECONDS", PATIENCE_SECONDS)  # however busy it is here
    send(store, "together")

    taken = Taken()
    store.read_into("together", 0, taken)
    assert taken.bytes == BODY
    assert max(taken.sizes) >= WINDOW_BYTES // 4


def test_the_pieces_of_a_body_come_into_the_same_memory(
    store: S3ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall_guard, "RECEIVE_BYTES", PIECE_BYTES // 2)
    send(store, "again")

    taken = Taken()
    store.read_into("again", 0, taken)
    assert taken.bytes == BODY
    assert len(taken.sizes) > 5
    assert len(taken.memories) == 1


def test_what_has_arrived_over_tls_is_known_while_it_is_sent(
    store: S3ObjectStore, watch: StallWatch
) -> None:
    go = threading.Semaphore(0)
    pieces = Pieces(lambda: go.acquire(timeout=PATIENCE_SECONDS))
    sending = threading.Thread(target=send, args=(store, "slow", pieces))
    sending.start()

    def moved_beyond(given: int) -> bool:
        return watch.moved_bytes() > given

    for given in range(0, len(BODY), PIECE_BYTES):
        assert watch.moved_bytes() <= given
        go.release()
        until(partial(moved_beyond, given))
    sending.join()
    assert watch.moved_bytes() == len(BODY)


def test_a_call_over_tls_that_is_cut_fails_at_once(
    store: S3ObjectStore, remote: RunningSink, watch: StallWatch
) -> None:
    remote.take_shape(Shape(each=SLOW / 20))
    failed: list[Exception] = []

    def sending() -> None:
        try:
            send(store, "cut")
        except RemoteError as error:
            failed.append(error)

    thread = threading.Thread(target=sending)
    thread.start()
    until(lambda: watch.moved_bytes() > 0)
    assert thread.ident is not None
    watch.cut(thread.ident)
    thread.join(PATIENCE_SECONDS)

    assert [type(error) for error in failed] == [TransientError]


def test_a_slow_body_is_sent_however_long_all_of_it_takes(
    store: S3ObjectStore, remote: RunningSink
) -> None:
    remote.take_shape(Shape(each=SLOW / 2))
    hasty = remote.endpoint.store(timeouts=Timeouts(connect_seconds=1.0))
    body = BODY * 3  # the system takes some of it at once; the rest takes seconds

    for _ in range(5):  # the machine may be too busy to connect in time
        with suppress(TransientError):
            hasty.put("patience", body, digest=digest_of(body))
            break

    assert store.head("patience") is not None


def test_a_certificate_that_nobody_trusts_is_refused(
    remote: RunningSink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(Authority(tmp_path, "stranger").ca))

    with pytest.raises(RemoteError, match="certificate"):
        remote.endpoint.store().check()
