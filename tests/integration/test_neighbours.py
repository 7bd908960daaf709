"""The neighbours as a store: who keeps what, who is full, who is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.io.digests import digest_of

from cachetier.errors import (
    BackpressureError,
    PreconditionFailedError,
    TransientError,
    UploadGoneError,
)
from cachetier.peers.keeper import KeptObjects
from cachetier.remote.base import IF_ABSENT
from cachetier.remote.neighbours import client, membership
from cachetier.remote.neighbours import store as neighbours
from cachetier.remote.neighbours.store import NeighbourStore
from tests.fakes.neighbourhood import Neighbourhood

BODY = bytes(range(256)) * 100
KEY = "run/1/a"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE_SECONDS", 30.0)  # nobody here is slow on purpose
    monkeypatch.setattr(membership, "AWAY_SECONDS", 3600.0)  # nor comes back by itself
    monkeypatch.setattr(membership, "FRESH_SECONDS", 3600.0)
    monkeypatch.setattr(neighbours, "FULL_SECONDS", 3600.0)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Neighbourhood]:
    found = Neighbourhood(tmp_path)
    yield found
    found.close()


def put(store: NeighbourStore, key: str = KEY, body: bytes = BODY) -> None:
    store.put(key, body, digest=digest_of(body), condition=IF_ABSENT)


def fill(keeper: KeptObjects) -> None:
    keeper.room_bytes = keeper.used_bytes


def test_copies_lie_at_others_and_all_nodes_find_them(three: Neighbourhood) -> None:
    for step in range(8):
        put(three.nodes[0].store(), f"run/{step}/a")
    held = [three.holders(f"run/{step}/a") for step in range(8)]
    assert {each for at in held for each in at} == {1, 2}  # by the hash of the step
    assert all(len(each) == 1 for each in held)
    for node in three.nodes:
        assert node.store().get("run/3/a") == BODY
        assert len(node.store().list("run/", "/").prefixes) == 8


def test_two_copies_lie_in_two_domains_none_of_them_the_owners(tmp_path: Path) -> None:
    nodes = Neighbourhood(tmp_path, ("r1", "r1", "r2", "r2", "r3"))
    for step in range(8):
        put(nodes.nodes[0].store(copies=2), f"run/{step}/a")
        held = nodes.holders(f"run/{step}/a")
        assert len(held) == 2
        assert 4 in held
        assert set(held) & {2, 3}
    nodes.close()


def test_a_cluster_in_one_domain_keeps_nothing(tmp_path: Path) -> None:
    nodes = Neighbourhood(tmp_path, ("r1", "r1"))
    with pytest.raises(TransientError, match="no peer of another failure domain takes a copy"):
        put(nodes.nodes[0].store())
    nodes.close()


def test_the_next_is_asked_for_one_that_is_full_and_none_is_told_by_name(
    three: Neighbourhood,
) -> None:
    store = three.nodes[0].store()
    put(store)
    (first,) = three.holders(KEY)
    fill(three.nodes[first].keeper)
    put(store, "run/1/b")
    assert three.holders("run/1/b") == [3 - first]
    fill(three.nodes[3 - first].keeper)
    with pytest.raises(BackpressureError, match=r"takes a copy: .*no room for copies"):
        put(three.nodes[0].store(), "run/1/c")
    assert store.get(KEY) == BODY  # what is kept stays


def test_an_upload_goes_on_elsewhere_once_its_peer_is_full_or_dead(three: Neighbourhood) -> None:
    store = three.nodes[0].store()
    upload = store.create_upload(KEY)
    (first,) = (n for n, each in enumerate(three.nodes) if each.name in upload)
    fill(three.nodes[first].keeper)
    with pytest.raises(UploadGoneError):
        store.upload_part(KEY, upload, 1, BODY, digest=digest_of(BODY))
    again = store.create_upload(KEY)
    assert three.nodes[3 - first].name in again
    three.nodes[3 - first].kill()
    with pytest.raises((TransientError, UploadGoneError)):
        store.upload_part(KEY, again, 1, BODY, digest=digest_of(BODY))
    with pytest.raises(UploadGoneError):
        store.upload_part(KEY, again, 1, BODY, digest=digest_of(BODY))


def test_copies_are_read_with_their_owner_and_another_node_dead(tmp_path: Path) -> None:
    nodes = Neighbourhood(tmp_path, ("", "", "", ""))
    put(nodes.nodes[0].store(copies=2))
    held = nodes.holders(KEY)
    (other,) = {1, 2, 3} - set(held)
    reader = nodes.nodes[other].store()
    assert reader.get(KEY) == BODY
    nodes.nodes[0].kill()
    nodes.nodes[held[0]].kill()
    reader = nodes.nodes[other].store()
    body = bytearray(1000)
    for _ in range(2):  # the first meets the dead ones
        try:
            reader.read_into(KEY, 500, memoryview(body))
        except TransientError:
            continue
    assert bytes(body) == BODY[500:1500]
    nodes.close()


def test_of_two_nodes_that_claim_at_once_one_wins(tmp_path: Path) -> None:
    nodes = Neighbourhood(tmp_path, ("", ""))  # neither has a third to ask
    key = "run/1/.cachetier/manifest.json"
    first, second = (each.store() for each in nodes.nodes)
    put(first, key, b"first")
    with pytest.raises(PreconditionFailedError):
        put(second, key, b"second")
    found = second.head(key)
    assert found is not None
    assert found == first.head(key)
    nodes.close()


def test_a_keeper_that_is_restarted_has_what_it_had(three: Neighbourhood) -> None:
    store = three.nodes[0].store()
    put(store)
    (first,) = three.holders(KEY)
    three.nodes[first].restart()
    assert three.nodes[0].store().get(KEY) == BODY
