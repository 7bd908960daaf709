"""What happens to a restore while there is no room, or while others change what it reads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import BackpressureError, CachetierError, TransientError
from cachetier.local.catalog import notes
from cachetier.restore.fill import SingleFlight
from tests.fakes.faulty_files import FaultyFiles
from tests.stateful.node import Node
from tests.unit.restore.test_restore import DATA, IDS, KEY, code_of, evict, publish


def test_without_room_to_restore_into_the_reader_is_told(node: Node) -> None:
    publish(node)
    evict(node)
    node.put(SaveIds("run", 2, "save"), "dirty", bytes(950_000))

    with pytest.raises(BackpressureError):
        node.get("run", 1, "a")

    assert node.store.space.used_bytes == 950_000


def test_a_disk_without_room_is_told_as_such(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(node)
    evict(node)

    def full(_size_bytes: int, **_options: bool) -> tuple[str, int]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(node.store.files, "create", full)
    assert code_of(lambda: node.get("run", 1, "a")) == "backpressure"
    assert node.store.space.used_bytes == 0


def test_a_disk_that_fills_up_while_a_shard_comes_makes_room_for_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(node)
    evict(node)
    another = SaveIds("run", 2, "save", 0, 1)
    node.put(another, "other", DATA)
    node.checkpoints.seal(another, 1)
    node.drain.drain_all()
    seal = node.store.files.seal
    pending = [OSError(28, "No space left on device")]

    def full(descriptor: int, identity: bytes) -> None:
        if pending:
            raise pending.pop()
        seal(descriptor, identity)

    monkeypatch.setattr(node.store.files, "seal", full)

    assert node.get("run", 1, "a") == DATA
    assert not pending
    assert [row.name for row in node.rows() if row.file_id] == ["a"]
    assert node.store.space.used_bytes == len(DATA)


def during_the_fetch(
    node: Node, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> None:
    """Let ``meanwhile`` happen just before the bytes of a restore come."""
    get = node.bucket.objects.get
    pending = [meanwhile]

    def slow(key: str, start: int = 0, length: int | None = None) -> bytes:
        if key == KEY and pending:
            pending.pop()()
        return get(key, start, length)

    monkeypatch.setattr(node.bucket.objects, "get", slow)


def test_a_shard_that_is_deleted_while_it_comes_is_not_found(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(node)
    evict(node)

    def delete() -> None:
        node.checkpoints.delete_step("run", 1)
        node.drain.drain_all()

    during_the_fetch(node, monkeypatch, delete)

    assert code_of(lambda: node.get("run", 1, "a")) == "not_found", "no damage was done"
    assert node.store.space.used_bytes == 0
    assert list(node.store.files.all()) == []


def test_a_shard_that_is_replaced_while_it_comes_is_read_anew(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.put(IDS, "a", DATA)
    node.drain.drain_one()
    evict(node)

    def replace() -> None:
        node.put(IDS, "a", b"new")
        node.drain.drain_one()

    during_the_fetch(node, monkeypatch, replace)

    assert node.get("run", 1, "a") == b"new"
    assert node.store.space.used_bytes == 3


def test_many_readers_of_one_shard_fetch_it_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(node)
    evict(node)
    get, fetches, gate = node.bucket.objects.get, [0], threading.Barrier(6)

    def counted(key: str, start: int = 0, length: int | None = None) -> bytes:
        fetches[0] += key == KEY
        return get(key, start, length)

    monkeypatch.setattr(node.bucket.objects, "get", counted)
    found: list[bytes] = []

    def read() -> None:
        gate.wait(30)
        found.append(node.get("run", 1, "a", timeout_seconds=30.0))

    threads = [threading.Thread(target=read, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert found == [DATA] * 6
    assert fetches == [1]
    assert node.store.space.used_bytes == len(DATA)


def test_whoever_waited_for_a_fetch_that_failed_fetches_itself(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(node)
    evict(node)
    get, started, go_on = node.bucket.objects.get, threading.Event(), threading.Event()

    def first_fails(key: str, start: int = 0, length: int | None = None) -> bytes:
        if key == KEY and not started.is_set():
            started.set()
            assert go_on.wait(30)
            raise TransientError("planned")
        return get(key, start, length)

    monkeypatch.setattr(node.bucket.objects, "get", first_fails)
    answers: dict[str, object] = {}

    def read(who: str) -> None:
        try:
            answers[who] = node.get("run", 1, "a", timeout_seconds=30.0)
        except CachetierError as error:
            answers[who] = error

    first = threading.Thread(target=read, args=("first",), daemon=True)
    first.start()
    assert started.wait(30)
    second = threading.Thread(target=read, args=("second",), daemon=True)
    second.start()
    go_on.set()
    first.join(30)
    second.join(30)

    assert isinstance(answers["first"], TransientError)
    assert answers["second"] == DATA


def test_a_flight_of_another_is_not_waited_for_beyond_the_deadline() -> None:
    flights: SingleFlight[int] = SingleFlight()
    with flights.lead_or_wait(1, 0.0) as leads:
        assert leads
        with pytest.raises(CachetierError) as refusal, flights.lead_or_wait(1, 0.0):
            pass
        assert refusal.value.code == "deadline"
        with flights.lead_or_wait(2, 0.0) as other:
            assert other, "another shard is another flight"
    with flights.lead_or_wait(1, 0.0) as again:
        assert again


class DeletedMeanwhile(FaultyFiles):
    """Deletes the step of the file that is opened, which turns out to be empty."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.store.files)
        self._node = node

    def open(self, file_id: str) -> int:
        self._node.checkpoints.delete_step("run", 1)
        return os.open(os.devnull, os.O_RDONLY)


def test_damage_to_a_shard_that_was_deleted_meanwhile_concerns_nobody(node: Node) -> None:
    node.put(IDS, "a", DATA)
    node.store.files = DeletedMeanwhile(node)

    assert code_of(lambda: node.get("run", 1, "a")) == "not_found"

    assert node.store.read(notes.newest_incident) == 0
