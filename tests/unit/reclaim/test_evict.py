"""Local bytes go last: clean, confirmed once more, unread, least recently used first."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from cachetier_client.identity.names import SaveIds

from cachetier.errors import TransientError
from cachetier.model.lifecycle import SaveState, ShardState
from cachetier.model.shard import Shard
from cachetier.reclaim.evict import Evictor, Watermarks
from tests.fakes.fake_clock import FakeClock
from tests.stateful.node import Node

IDS = SaveIds("run", 1, "save", 0, 1)
QUARTER = bytes(250_000)  # of the capacity


def states(node: Node) -> dict[str, ShardState]:
    return {row.name: row.state for row in node.rows()}


def evictor(
    node: Node,
    clock: FakeClock,
    *,
    still_remote: Callable[[Shard], bool] = lambda _shard: True,
) -> Evictor:
    return Evictor(
        node.store,
        clock,
        still_remote,
        watermarks=Watermarks(high=0.9, low=0.5),
        collect_after_seconds=100.0,
    )


def filled(node: Node, clock: FakeClock, names: str, *, clean: bool = True) -> None:
    for name in names:
        node.put(IDS, name, QUARTER)
        clock.advance(1.0)
    if clean:
        while node.drain.drain_one():
            pass


def test_below_the_high_watermark_everything_stays(node: Node, clock: FakeClock) -> None:
    filled(node, clock, "abc")

    assert evictor(node, clock).make_room() == 0
    assert set(states(node).values()) == {ShardState.CLEAN}


def test_above_the_high_watermark_the_oldest_go_down_to_the_low_one(
    node: Node, clock: FakeClock
) -> None:
    filled(node, clock, "abcd")

    assert evictor(node, clock).make_room() == 2 * len(QUARTER)

    assert states(node) == {
        "a": ShardState.EVICTED,
        "b": ShardState.EVICTED,
        "c": ShardState.CLEAN,
        "d": ShardState.CLEAN,
    }
    assert node.store.space.used_bytes == 2 * len(QUARTER)


def test_what_was_used_lately_goes_last(node: Node, clock: FakeClock) -> None:
    filled(node, clock, "abcd")
    round_ = evictor(node, clock)
    for row in node.rows():
        if row.name in "ab":
            round_.touch(row)

    round_.make_room()

    assert {name for name, state in states(node).items() if state is ShardState.EVICTED} == {
        "c",
        "d",
    }


def test_dirty_bytes_stay_however_full_it_is(node: Node, clock: FakeClock) -> None:
    filled(node, clock, "abcd", clean=False)

    assert evictor(node, clock).make_room() == 0
    assert set(states(node).values()) == {ShardState.DIRTY}


def test_a_shard_that_somebody_reads_stays(node: Node, clock: FakeClock) -> None:
    filled(node, clock, "abcd")
    opened = node.restore.open("run", 1, "a", 0.0)
    assert opened.descriptor is not None

    evictor(node, clock).make_room()

    assert states(node)["a"] is ShardState.CLEAN
    assert node.store.space.used_bytes == 2 * len(QUARTER), "others went instead"
    os.close(opened.descriptor)


def test_a_shard_that_the_remote_no_longer_has_stays(node: Node, clock: FakeClock) -> None:
    filled(node, clock, "abcd")
    round_ = evictor(node, clock, still_remote=lambda shard: shard.name != "a")

    round_.make_room()

    assert states(node)["a"] is ShardState.CLEAN


def test_a_remote_that_cannot_say_costs_nobody_their_bytes(node: Node, clock: FakeClock) -> None:
    filled(node, clock, "abcd")

    def unknown(_shard: Shard) -> bool:
        raise TransientError("no answer")

    assert evictor(node, clock, still_remote=unknown).make_room() == 0
    assert set(states(node).values()) == {ShardState.CLEAN}


def test_a_shard_that_is_replaced_while_the_remote_is_asked_is_passed_over(
    node: Node, clock: FakeClock
) -> None:
    filled(node, clock, "abcd")

    def replaced_meanwhile(shard: Shard) -> bool:
        node.checkpoints.delete_shard("run", 1, shard.name)
        return True

    assert evictor(node, clock, still_remote=replaced_meanwhile).make_room() == 0
    assert node.store.space.used_bytes <= 2 * len(QUARTER)


def test_exhausted_descriptors_stop_no_round(
    node: Node, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(node, clock, "abcd")

    def exhausted(_file_id: str) -> bool:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(node.store.files, "unread", exhausted)

    assert evictor(node, clock).make_room() == 0


def test_room_that_callers_wait_for_is_made_below_the_watermark_too(
    node: Node, clock: FakeClock
) -> None:
    filled(node, clock, "ab")
    round_ = evictor(node, clock)

    taken = node.store.space.reserve(3 * len(QUARTER), 0.0, lambda: _ignore(round_.make_room()))

    assert taken
    assert states(node) == {"a": ShardState.EVICTED, "b": ShardState.CLEAN}
    node.store.space.release(3 * len(QUARTER))


def _ignore(_freed: int) -> None:
    pass


def test_catalogued_shards_are_evicted_too(node: Node, clock: FakeClock) -> None:
    node.put(IDS, "small", bytes(1000))
    filled(node, clock, "bcd")
    node.put(IDS, "rest", bytes(200_000))

    evictor(node, clock).make_room()

    assert states(node)["small"] is ShardState.EVICTED
    assert node.get("run", 1, "small") == bytes(1000)


# --- saves that were replaced -------------------------------------------------------------------


def collected_names(node: Node) -> set[str]:
    return {"a", "b"} - {row.name for row in node.rows() if row.save_id == "save"}


def test_a_replaced_save_is_collected_after_a_grace(node: Node, clock: FakeClock) -> None:
    node.put(IDS, "a", bytes(100_000))
    node.put(SaveIds("run", 1, "newer"), "a", b"new")
    round_ = evictor(node, clock)

    assert round_.collect() == 0
    clock.advance(101.0)
    assert round_.collect() == 1

    assert node.store.space.used_bytes == 3
    assert [row.save_id for row in node.rows()] == ["newer"]


def test_a_replaced_save_of_a_published_step_is_collected_at_once(
    node: Node, clock: FakeClock
) -> None:
    node.put(IDS, "a", bytes(100_000))
    newer = SaveIds("run", 1, "newer", 0, 1)
    node.put(newer, "a", b"new")
    node.checkpoints.seal(newer, 1)
    node.drain.drain_all()
    assert node.checkpoints.step("run", 1)[0].state == str(SaveState.PUBLISHED)

    assert evictor(node, clock).collect() == 1
    assert node.get("run", 1, "a") == b"new"


def test_an_open_save_is_never_collected(node: Node, clock: FakeClock) -> None:
    node.put(IDS, "a", bytes(100_000))
    clock.advance(1e9)

    assert evictor(node, clock).collect() == 0
    assert collected_names(node) == {"b"}
