"""A store behind TLS: bodies read on the way, how far they are, ranges back, and who is trusted."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cachetier_client.io.digests import digest_of

from benchmarks.drain.link import Shape
from benchmarks.drain.remote import RunningSink, sink
from cachetier.errors import RemoteError, TransientError
from cachetier.remote.boto_client import Timeouts
from cachetier.remote.s3 import S3ObjectStore
from cachetier.remote.stall_guard import SLICE_BYTES, StallWatch
from tests.integration.certificates import Authority

PIECE_BYTES = 512 << 10
BODY = os.urandom(4 * PIECE_BYTES + 77)
SLOW = 2e6  # bytes a second: the body takes a second


class Pieces:
    """``BODY``, piece by piece."""

    size_bytes = len(BODY)

    def __iter__(self) -> Iterator[memoryview]:
        for at in range(0, len(BODY), PIECE_BYTES):
            yield memoryview(BODY)[at : at + PIECE_BYTES]


class Taken:
    """How long each piece is that an object comes in."""

    size_bytes = len(BODY)

    def restart(self) -> None:
        self.sizes: list[int] = []

    def take(self, piece: bytes | memoryview) -> None:
        self.sizes.append(len(piece))


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


def send(store: S3ObjectStore, key: str) -> None:
    """Store ``BODY`` in a multipart upload of one part."""
    upload_id = store.create_upload(key)
    part = store.upload_part(key, upload_id, 1, Pieces(), digest=digest_of(BODY))
    store.complete_upload(key, upload_id, [part], digest=digest_of(BODY))


def test_a_body_of_pieces_and_its_ranges_go_through_tls(store: S3ObjectStore) -> None:
    send(store, "key")

    room = bytearray(PIECE_BYTES)
    store.read_into("key", 100, memoryview(room))
    assert room == BODY[100 : 100 + PIECE_BYTES]
    assert store.get("key") == BODY


def test_records_come_together_where_tls_would_give_one_at_a_time(store: S3ObjectStore) -> None:
    send(store, "together")

    taken = Taken()
    store.read_into("together", 0, taken)
    assert sum(taken.sizes) == len(BODY)
    assert max(taken.sizes) == SLICE_BYTES


def test_what_has_arrived_over_tls_is_known_while_it_is_sent(
    store: S3ObjectStore, remote: RunningSink, watch: StallWatch
) -> None:
    remote.take_shape(Shape(each=SLOW))
    sending = threading.Thread(target=send, args=(store, "slow"))
    sending.start()
    seen = set()
    while sending.is_alive():
        seen.add(watch.moved_bytes())
        sending.join(0.01)

    between = [count for count in seen if 0 < count < len(BODY)]
    assert len(between) > 4
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
    while not watch.moved_bytes():
        time.sleep(0.01)
    assert thread.ident is not None
    watch.cut(thread.ident)
    thread.join(10)

    assert [type(error) for error in failed] == [TransientError]


def test_a_slow_body_is_sent_however_long_all_of_it_takes(
    store: S3ObjectStore, remote: RunningSink
) -> None:
    remote.take_shape(Shape(each=SLOW))
    hasty = remote.endpoint.store(timeouts=Timeouts(connect_seconds=0.3))
    body = BODY * 3  # the system takes some of it at once; the rest takes seconds

    hasty.put("patience", body, digest=digest_of(body))

    assert store.head("patience") is not None


def test_a_certificate_that_nobody_trusts_is_refused(
    remote: RunningSink, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(Authority(tmp_path, "stranger").ca))

    with pytest.raises(RemoteError, match="certificate"):
        remote.endpoint.store().check()
