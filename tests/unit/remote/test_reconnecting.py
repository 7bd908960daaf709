"""A store is opened when it is needed, and anew, now and then, while it refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import pytest

from cachetier.errors import ClientPendingError, ConfigError, RemoteRefusedError, TransientError
from cachetier.remote.base import ObjectStore
from cachetier.remote.s3.reconnecting import (
    IN_USE_PAUSE_SECONDS,
    PAUSE_SECONDS,
    Renewed,
)
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore

HALF = ConfigError("half a file", hint="Write the rest.")


class Opened:
    """Counts the stores that were opened; all but the ``good``-th refuse everything."""

    def __init__(self, good: int) -> None:
        self.good = good
        self.count = self.tries = 0
        self.broken: Exception | None = None

    def __call__(self) -> ObjectStore:
        self.tries += 1
        if self.broken is not None:
            raise self.broken
        self.count += 1
        store = FaultyObjectStore(MemoryObjectStore())
        if self.count != self.good:
            store.go_down(RemoteRefusedError)
        return store


class Calls:
    """The calls of one bucket by clients that ``clients`` makes; ``store_of`` is its store."""

    def __init__(
        self,
        clients: Renewed[Any],
        store_of: Callable[[Any], ObjectStore] = lambda client: client,
    ) -> None:
        self._clients = clients
        self._store_of = cache(store_of)

    def head(self, key: str) -> object:
        return self._clients.call(lambda client: self._store_of(client).head(key))


def renewed(opened: Callable[[], ObjectStore], clock: FakeClock) -> Calls:
    return Calls(Renewed(opened, clock.monotonic))


def refused(store: Calls) -> str:
    with pytest.raises(RemoteRefusedError) as refusal:
        store.head("a")
    return refusal.value.message


def test_nothing_is_opened_before_the_first_call() -> None:
    opened = Opened(good=1)
    store = renewed(opened, FakeClock())
    assert opened.count == 0

    store.head("a")
    store.head("a")
    assert opened.count == 1


def test_a_store_that_cannot_be_opened_refuses_with_the_reason_and_what_to_do() -> None:
    opened = Opened(good=1)
    opened.broken = HALF
    with pytest.raises(RemoteRefusedError, match="half a file") as refusal:
        renewed(opened, FakeClock()).head("a")

    assert refusal.value.hint == "Write the rest."


def test_a_store_that_cannot_be_opened_is_tried_now_and_then_until_it_can() -> None:
    clock, opened = FakeClock(), Opened(good=1)
    store = renewed(opened, clock)
    opened.broken = HALF
    for _ in range(100):
        assert refused(store) == "half a file"
        clock.advance(PAUSE_SECONDS / 10)
    assert opened.tries == 10

    opened.broken = None
    assert store.head("a") is None


def test_what_nobody_foresaw_keeps_a_store_from_being_opened_only_until_it_is_mended() -> None:
    clock, opened = FakeClock(), Opened(good=1)
    opened.broken = AttributeError("'list' object has no attribute 'get'")  # botocore, of JSON
    store = renewed(opened, clock)
    assert "'list' object has no attribute 'get'" in refused(store)

    opened.broken = None
    clock.advance(PAUSE_SECONDS)
    assert store.head("a") is None


def test_one_that_takes_long_to_open_is_no_refusal_and_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cachetier.remote.s3.reconnecting.PATIENCE_SECONDS", 0.01)
    clock, opened, hanging = FakeClock(), Opened(good=1), threading.Event()

    def hang() -> ObjectStore:
        hanging.wait(60.0)
        return opened()

    store = renewed(hang, clock)
    for _ in range(3):
        with pytest.raises(ClientPendingError, match="the node is busy"):
            store.head("a")
        clock.advance(PAUSE_SECONDS)
    monkeypatch.setattr("cachetier.remote.s3.reconnecting.PATIENCE_SECONDS", 30.0)
    hanging.set()

    assert store.head("a") is None
    assert opened.tries == 1


def test_it_refuses_while_no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    clock = FakeClock()
    store = renewed(Opened(good=1), clock)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert "can't start new thread" in refused(store)
    clock.advance(PAUSE_SECONDS)

    assert store.head("a") is None


def test_threads_that_come_at_once_open_one_store() -> None:
    opened, ready = Opened(good=1), threading.Barrier(8)
    store = renewed(opened, FakeClock())

    def call(_number: int) -> object:
        ready.wait(30.0)
        return store.head("a")

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(call, range(8))) == {None}
    assert opened.count == 1


def test_credentials_that_were_renewed_are_taken_up_by_the_next_call() -> None:
    clock, opened = FakeClock(), Opened(good=2)
    store = renewed(opened, clock)
    refused(store)
    clock.advance(PAUSE_SECONDS)
    refused(store)

    assert store.head("a") is None
    assert opened.count == 2


def test_a_store_that_goes_on_to_refuse_is_opened_now_and_then() -> None:
    clock, opened = FakeClock(), Opened(good=0)
    store = renewed(opened, clock)
    for _ in range(100):
        refused(store)
        clock.advance(PAUSE_SECONDS / 10)

    assert opened.count == 10


def test_what_may_pass_opens_nothing() -> None:
    opened = Opened(good=0)
    clock = FakeClock()
    store = renewed(lambda: _away(opened()), clock)
    for _ in range(3):
        with pytest.raises(TransientError):
            store.head("a")
        clock.advance(PAUSE_SECONDS)

    assert opened.count == 1


def _away(store: ObjectStore) -> ObjectStore:
    assert isinstance(store, FaultyObjectStore)
    store.go_down(TransientError)
    return store


def test_credentials_that_cannot_be_read_are_looked_for_again() -> None:
    clock, opened = FakeClock(), Opened(good=2)
    store = renewed(opened, clock)
    refused(store)
    opened.broken = HALF
    clock.advance(PAUSE_SECONDS)
    assert "half a file" not in refused(store)  # what it has may yet be good again
    opened.broken = None
    clock.advance(PAUSE_SECONDS)
    refused(store)

    assert store.head("a") is None


class TwoBuckets:
    """Two buckets behind one client; which of them refuses is said by name."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.made = 0
        self.refuses: set[str] = set()
        clients = Renewed(self._make, self.clock.monotonic)
        self.one, self.other = (
            Calls(clients, partial(self._store, name)) for name in ("one", "other")
        )

    def _make(self) -> int:
        self.made += 1
        return self.made

    def _store(self, name: str, _client: int) -> ObjectStore:
        store = FaultyObjectStore(MemoryObjectStore())
        if name in self.refuses:
            store.go_down(RemoteRefusedError)
        return store


def test_buckets_share_the_client_and_its_renewal() -> None:
    buckets = TwoBuckets()
    buckets.refuses = {"one", "other"}
    refused(buckets.one)
    refused(buckets.other)
    assert buckets.made == 1

    buckets.refuses = set()
    buckets.clock.advance(PAUSE_SECONDS)
    refused(buckets.one)
    assert buckets.one.head("a") is None
    assert buckets.other.head("a") is None
    assert buckets.made == 2


def test_one_bucket_that_refuses_seldom_costs_the_others_their_connections() -> None:
    buckets = TwoBuckets()
    buckets.refuses = {"other"}
    for _ in range(10 * int(IN_USE_PAUSE_SECONDS)):
        assert buckets.one.head("a") is None
        refused(buckets.other)
        buckets.clock.advance(1.0)

    assert buckets.made == 11
    buckets.refuses = set()
    buckets.clock.advance(IN_USE_PAUSE_SECONDS)
    refused(buckets.other)
    assert buckets.other.head("a") is None


def test_credentials_that_end_after_days_are_renewed_at_the_first_refusal() -> None:
    buckets = TwoBuckets()
    assert buckets.one.head("a") is None
    buckets.clock.advance(86_400.0)
    buckets.refuses = {"other"}
    refused(buckets.other)

    assert buckets.made == 2
