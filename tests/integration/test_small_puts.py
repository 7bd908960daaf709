"""Small puts at the socket: committed together, on one thread that waits for nobody."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from cachetier_client.io.digests import digest_of, to_hex
from cachetier_client.transport.wire import MAGIC, PREFIX, receive_frame, send_frame

from cachetier.model.backpressure import WhenFull
from tests.integration.test_unix_door import IDS, Door, Rank, door

__all__ = ["door"]

RANKS = 12


class Sizes:
    """How many operations each transaction of the catalog had, and a first one that is slow."""

    def __init__(self, door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
        committer = door.node.store._committer
        transact = committer._transact
        self.sizes: list[int] = []
        self._begun, self._goes_on = threading.Event(), threading.Event()

        def counted(batch: list[Any]) -> list[BaseException | None]:
            self.sizes.append(len(batch))
            return transact(batch)

        monkeypatch.setattr(committer, "_transact", counted)
        self._slow = threading.Thread(target=door.node.store.write, args=(self._hold,))

    def _hold(self, _sql: apsw.Connection) -> None:
        self._begun.set()
        assert self._goes_on.wait(30)

    def hold(self) -> None:
        """Keep the catalog busy until ``go_on``."""
        self._slow.start()
        assert self._begun.wait(30)

    def go_on(self) -> None:
        self._goes_on.set()
        self._slow.join(30)


@pytest.fixture
def sizes(door: Door, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sizes]:
    found = Sizes(door, monkeypatch)
    yield found
    found._goes_on.set()


def put_of(name: str, data: bytes = b"x", **changed: Any) -> dict[str, Any]:
    fields = {"name": name, "size_bytes": len(data), "digest": to_hex(digest_of(data))}
    return {"op": "put", **IDS, **fields, **changed}


def send(rank: Rank, name: str, data: bytes = b"x", **changed: Any) -> None:
    send_frame(rank.socket, put_of(name, data, **changed), data)


def answer(rank: Rank) -> dict[str, Any]:
    return receive_frame(rank.socket).header


def names(door: Door) -> set[str]:
    _view, shards = door.node.checkpoints.step("r", 7)
    return {shard.name for shard in shards}


def test_puts_that_are_ready_together_share_one_sync(door: Door, sizes: Sizes) -> None:
    ranks = [door.rank() for _ in range(RANKS)]
    sizes.hold()
    for number, rank in enumerate(ranks):
        send(rank, f"s{number}")
    sizes.go_on()

    assert all(answer(rank)["ok"] for rank in ranks)
    assert len(names(door)) == RANKS
    assert len(sizes.sizes) <= 3, "the slow one, the first that came, and all others"


def test_a_put_that_is_refused_does_not_hurt_those_beside_it(door: Door, sizes: Sizes) -> None:
    ranks = [door.rank() for _ in range(RANKS)]
    sizes.hold()
    for number, rank in enumerate(ranks):
        wrong: dict[str, Any] = [{}, {"digest": "0" * 16}, {"run": "-"}][number % 3]
        send(rank, f"s{number}", **wrong)
    sizes.go_on()

    answers = [answer(rank) for rank in ranks]
    assert all(each["ok"] for each in answers[::3])
    assert {each["error"]["code"] for each in answers[1::3]} == {"digest_mismatch"}
    assert {each["error"]["code"] for each in answers[2::3]} == {"invalid_name"}
    assert names(door) == {f"s{number}" for number in range(0, RANKS, 3)}


def test_a_put_that_the_catalog_refuses_does_not_hurt_those_beside_it(
    door: Door, sizes: Sizes
) -> None:
    owner, thief, other = door.rank(), door.rank(), door.rank()
    assert owner.ask(**put_of("owned"), body=b"x")["ok"]
    sizes.hold()
    send(owner, "more")
    send_frame(thief.socket, put_of("owned", b"y", rank=1, world_size=2), b"y")
    send(other, "another")
    sizes.go_on()

    assert answer(thief)["error"]["code"] == "invalid_request", "the save has one rank"
    assert answer(owner)["ok"]
    assert answer(other)["ok"]


def test_a_rank_that_is_gone_before_its_answer_holds_up_nobody(door: Door, sizes: Sizes) -> None:
    first, gone, other = door.rank(), door.rank(), door.rank()
    sizes.hold()
    send(first, "first")
    send(gone, "gone")
    send(other, "other")
    gone.close()
    sizes.go_on()

    assert answer(other)["ok"]
    assert answer(first)["ok"]
    assert names(door) == {"first", "gone", "other"}, "it was there, whether anybody heard or not"


def test_a_put_that_waits_for_room_holds_up_no_other(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door.node.ingest._admission, "_when_full", WhenFull.WAIT)
    waits, goes = door.rank(), door.rank()
    space = door.node.store.space
    taken_bytes = space.capacity_bytes - space.used_bytes - 1000
    assert space.try_reserve(taken_bytes)
    send(waits, "large", bytes(2000), timeout_seconds=30.0)

    assert goes.ask(**put_of("small"), body=b"x")["ok"]
    assert names(door) == {"small"}

    space.release(taken_bytes)
    assert answer(waits)["ok"]


def test_a_put_that_comes_in_pieces_is_committed(door: Door) -> None:
    rank = door.rank()
    header = b'{"op":"put","run":"r","step":7,"save_id":"s","name":"pieces","size_bytes":3,'
    header += f'"digest":"{to_hex(digest_of(b"abc"))}"'.encode() + b"}"
    whole = PREFIX.pack(MAGIC, len(header), 3) + header + b"abc"
    for piece in (whole[:7], whole[7:40], whole[40:-1]):
        rank.socket.sendall(piece)
        assert door.rank().ask("status")["ok"]  # the piece has been looked at
    rank.socket.sendall(whole[-1:])

    assert answer(rank)["ok"]
    assert rank.ask("open", run="r", step=7, name="pieces")["size_bytes"] == 3


def test_who_reads_no_answers_holds_up_no_other(door: Door) -> None:
    deaf, other = door.rank(), door.rank()
    deaf.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):  # until neither direction takes more
        for number in range(100_000):
            send(deaf, f"deaf{number}", timeout_seconds=5.0)

    assert other.ask(**put_of("other"), body=b"x")["ok"]


def test_puts_sent_one_after_the_other_are_answered_in_order(door: Door) -> None:
    rank = door.rank()
    for number in range(50):
        send(rank, f"s{number}")

    assert [answer(rank)["name"] for _ in range(50)] == [f"s{number}" for number in range(50)]


def test_puts_and_other_requests_take_turns_on_one_connection(door: Door) -> None:
    rank = door.rank()
    for number in range(20):
        assert rank.ask(**put_of(f"s{number}"), body=b"x")["ok"]
        assert rank.ask("open", run="r", step=7, name=f"s{number}")["ok"]
        staging, descriptor = rank.begin(f"big{number}")
        Path(f"/proc/self/fd/{descriptor}").write_bytes(b"")
        assert rank.ask("abort", staging=staging)["ok"]


def test_a_sync_that_hangs_holds_up_no_other_request(door: Door, sizes: Sizes) -> None:
    """A disk took five seconds for a sync, and `status` 25: each round of puts held it up anew."""
    resting, putting, late = door.rank(), door.rank(), door.rank()
    assert resting.ask(op="status")["ok"]
    sizes.hold()
    for number in range(3):
        send(putting, f"s{number}")
        assert resting.ask(op="status")["ok"]
    assert door.rank().ask(op="status")["ok"]
    send(late, "another")
    sizes.go_on()
    assert all(answer(putting)["ok"] for _ in range(3))
    assert answer(late)["ok"]
    assert len(sizes.sizes) <= 5, "puts are still committed together"
