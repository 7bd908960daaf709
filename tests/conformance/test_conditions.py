"""Conditional puts arbitrate: whoever races, one wins, and its bytes are kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from awscrt.checksums import crc64nvme
from moto.s3.responses import S3Response

from cachetier.errors import PreconditionFailedError
from cachetier.remote.base import IF_ABSENT, Condition, ObjectStore, if_match
from cachetier.testing.s3_endpoint import S3Endpoint

RACERS = 8


def put(store: ObjectStore, key: str, body: bytes, condition: Condition | None = None) -> str:
    return store.put(key, body, digest=crc64nvme(body), condition=condition).etag


def race(attempt: Callable[[bytes], object]) -> list[bytes]:
    """Let each racer put a body of its own at once, and return the bodies of those who won."""
    start = threading.Barrier(RACERS)

    def run(number: int) -> bytes | None:
        body = f"racer {number}".encode() * 1000
        start.wait(60)
        try:
            attempt(body)
        except PreconditionFailedError:
            return None
        return body

    with ThreadPoolExecutor(RACERS) as pool:
        return [body for body in pool.map(run, range(RACERS)) if body is not None]


def test_put_if_absent_takes_an_unused_key_once(store: ObjectStore, folder: str) -> None:
    put(store, folder + "a", b"first", IF_ABSENT)

    with pytest.raises(PreconditionFailedError):
        put(store, folder + "a", b"second", IF_ABSENT)
    assert store.get(folder + "a") == b"first"


def test_put_if_match_replaces_the_version_it_names(store: ObjectStore, folder: str) -> None:
    first = put(store, folder + "a", b"first")
    second = put(store, folder + "a", b"second", if_match(first))

    with pytest.raises(PreconditionFailedError):
        put(store, folder + "a", b"third", if_match(first))
    assert store.get(folder + "a") == b"second"
    found = store.head(folder + "a")
    assert found is not None
    assert found.etag == second


def test_put_if_match_does_not_create(store: ObjectStore, folder: str) -> None:
    with pytest.raises(PreconditionFailedError):
        put(store, folder + "a", b"body", if_match('"00000000000000000000000000000000"'))
    assert store.head(folder + "a") is None


@pytest.mark.parametrize("heat", range(3))
def test_one_of_many_racers_creates_a_key(store: ObjectStore, folder: str, heat: int) -> None:
    winners = race(lambda body: put(store, folder + "raced", body, IF_ABSENT))

    assert len(winners) == 1
    assert store.get(folder + "raced") == winners[0]


@pytest.mark.parametrize("heat", range(3))
def test_one_of_many_racers_replaces_a_version(store: ObjectStore, folder: str, heat: int) -> None:
    before = put(store, folder + "raced", b"before")

    winners = race(lambda body: put(store, folder + "raced", body, if_match(before)))

    assert len(winners) == 1
    assert store.get(folder + "raced") == winners[0]


def test_one_racer_wins_at_moto_though_it_is_late_between_its_look_and_its_write(
    moto_s3: S3Endpoint, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moto answers each request in a thread of its own: on a busy machine two would win."""
    after_the_look = S3Response._get_checksum
    late = threading.Event()

    def be_late(answering: S3Response, headers: Any) -> Any:
        time.sleep(0.02)
        late.set()
        return after_the_look(answering, headers)

    monkeypatch.setattr(S3Response, "_get_checksum", be_late)
    store = moto_s3.store()

    created = race(lambda body: put(store, folder + "raced", body, IF_ABSENT))
    assert late.is_set()
    assert [store.get(folder + "raced")] == created


def test_without_conditional_writes_a_head_judges_the_condition(
    server: S3Endpoint, folder: str
) -> None:
    store = server.store(conditional_writes=False)
    first = put(store, folder + "a", b"first", IF_ABSENT)
    put(store, folder + "a", b"second", if_match(first))

    with pytest.raises(PreconditionFailedError):
        put(store, folder + "a", b"third", IF_ABSENT)
    with pytest.raises(PreconditionFailedError):
        put(store, folder + "a", b"third", if_match(first))
    with pytest.raises(PreconditionFailedError):
        put(store, folder + "missing", b"third", if_match(first))
    assert store.get(folder + "a") == b"second"


def test_a_deletion_of_a_version_takes_no_other(
    store: ObjectStore, folder: str, request: pytest.FixtureRequest
) -> None:
    first = put(store, folder + "a", b"first")
    second = put(store, folder + "a", b"second")

    if "moto" in request.node.name:  # knows no such condition, and deletes
        pytest.skip("moto deletes whatever lies there")
    with pytest.raises(PreconditionFailedError):
        store.delete(folder + "a", first)
    assert store.get(folder + "a") == b"second"
    store.delete(folder + "a", second)
    assert store.head(folder + "a") is None
