"""A store that refuses is opened anew, now and then."""

from __future__ import annotations

import pytest

from cachetier.errors import ConfigError, RemoteRefusedError, TransientError
from cachetier.remote.base import ObjectStore
from cachetier.remote.renewed import PAUSE_SECONDS, RenewedObjectStore
from cachetier.testing.fake_clock import FakeClock
from cachetier.testing.faulty_store import FaultyObjectStore
from cachetier.testing.memory_store import MemoryObjectStore


class Opened:
    """Counts the stores that were opened; all but the ``good``-th refuse everything."""

    def __init__(self, good: int) -> None:
        self.good = good
        self.count = 0
        self.broken = False

    def __call__(self) -> ObjectStore:
        if self.broken:
            raise ConfigError("half a file")
        self.count += 1
        store = FaultyObjectStore(MemoryObjectStore())
        if self.count != self.good:
            store.go_down(RemoteRefusedError)
        return store


def refused(store: RenewedObjectStore) -> None:
    with pytest.raises(RemoteRefusedError):
        store.head("a")


def test_credentials_that_were_renewed_are_taken_up_by_the_next_call() -> None:
    opened = Opened(good=2)
    store = RenewedObjectStore(opened, FakeClock().monotonic)
    refused(store)

    assert store.head("a") is None
    assert opened.count == 2


def test_a_store_that_goes_on_to_refuse_is_opened_now_and_then() -> None:
    clock, opened = FakeClock(), Opened(good=0)
    store = RenewedObjectStore(opened, clock.monotonic)
    for _ in range(100):
        refused(store)
        clock.advance(PAUSE_SECONDS / 10)

    assert opened.count == 1 + 10


def test_what_may_pass_opens_nothing() -> None:
    opened = Opened(good=0)
    store = RenewedObjectStore(lambda: _away(opened()), FakeClock().monotonic)
    with pytest.raises(TransientError):
        store.head("a")

    assert opened.count == 1


def _away(store: ObjectStore) -> ObjectStore:
    assert isinstance(store, FaultyObjectStore)
    store.go_down(TransientError)
    return store


def test_credentials_that_cannot_be_read_are_looked_for_again() -> None:
    clock, opened = FakeClock(), Opened(good=2)
    store = RenewedObjectStore(opened, clock.monotonic)
    opened.broken = True
    refused(store)
    opened.broken = False
    refused(store)
    clock.advance(PAUSE_SECONDS)
    refused(store)

    assert store.head("a") is None


def test_it_keeps_digests_as_its_store_does() -> None:
    assert RenewedObjectStore(lambda: MemoryObjectStore(keeps_digests=False)).keeps_digests is False
