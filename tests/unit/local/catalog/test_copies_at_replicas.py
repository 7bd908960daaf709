"""What saves reach at replicas, and what is clean while a required one is waited for."""

from __future__ import annotations

import apsw
import pytest
from cachetier_client.bucket_format.stored import InPack, Stored
from cachetier_client.identity.names import SaveIds

from cachetier.drain.serve.remote_state import RemoteState
from cachetier.errors import FencedError
from cachetier.local.catalog import copies, saves, shards
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import CopyState, ForbiddenTransitionError, SaveState, ShardState
from cachetier.model.shard import Shard
from tests.stateful.fake_drain import REMOTE
from tests.stateful.node import Node

IDS = SaveIds("run", 1, "save", 0, 1)


class Two:
    """A node with a durable remote and a replica called near, and the remote state of both."""

    def __init__(self, node: Node, *, required: bool) -> None:
        self.node = node
        self.store = node.store
        self.configure(required=required)
        self.durable = RemoteState(self.store, REMOTE)
        self.near = RemoteState(self.store, "near")

    def configure(self, *, required: bool) -> None:
        self.store.write(copies.configure_replicas, {"near": required})

    def save(self, name: str = "a", ids: SaveIds = IDS) -> Shard:
        self.node.put(ids, name, name.encode())
        self.node.checkpoints.seal(ids, 1)
        return next(row for row in self.node.rows() if row.name == name)

    def verified(self, remote_state: RemoteState, shard: Shard) -> None:
        remote_state.verified(shard.version, 1.0, Stored.raw(shard.content))

    def state(self, shard: Shard) -> ShardState:
        return next(row for row in self.node.rows() if row.version == shard.version).state

    def number(self, ids: SaveIds = IDS) -> int:
        return self.known(ids).number

    def known(self, ids: SaveIds = IDS) -> Save:
        found = self.store.read(lambda sql: saves.saves_of(sql, ids.run, ids.step))
        return next(save for save in found if save.save_id == ids.save_id)

    def there(self) -> CopyState | None:
        number = self.number()
        found = self.store.read(lambda sql: copies.copy_of(sql, number, "near"))
        return found.state if found is not None else None

    def publish(self) -> None:
        self.durable.locate(self.number(), "1")
        assert self.durable.ended(self.number(), SaveState.PUBLISHED, None, 2.0).news


@pytest.fixture
def required(node: Node) -> Two:
    return Two(node, required=True)


@pytest.fixture
def optional(node: Node) -> Two:
    return Two(node, required=False)


@pytest.mark.parametrize("near_first", [True, False])
def test_a_shard_is_clean_once_every_required_remote_has_it(
    required: Two, near_first: bool
) -> None:
    shard = required.save()
    both: list[RemoteState] = [required.durable, required.near]
    order = both[::-1] if near_first else both
    required.verified(order[0], shard)
    assert required.state(shard) is ShardState.DIRTY
    assert order[0].wanted(required.number(), -1) == []
    assert order[1].wanted(required.number(), -1) != []
    required.verified(order[1], shard)
    assert required.state(shard) is ShardState.CLEAN


def test_a_replica_that_is_not_required_neither_makes_clean_nor_holds_up(optional: Two) -> None:
    shard, other = optional.save("a"), optional.save("b", SaveIds("run", 2, "save", 0, 1))
    optional.verified(optional.near, shard)
    optional.verified(optional.durable, other)
    assert optional.state(shard) is ShardState.DIRTY
    assert optional.state(other) is ShardState.CLEAN
    assert optional.near.wanted(other_number(optional), -1) != []


def other_number(two: Two) -> int:
    return two.number(SaveIds("run", 2, "save", 0, 1))


def test_what_is_published_durably_is_still_open_at_the_replica(optional: Two) -> None:
    shard = optional.save()
    optional.verified(optional.durable, shard)
    optional.publish()
    (due,) = optional.near.unfinished()
    assert (due.state, due.location, due.overwrite) == (SaveState.OPEN, None, True)
    assert optional.near.wanted(due.number, -1) == [
        row for row in optional.node.rows() if row.version == shard.version
    ]


def test_locations_and_parts_are_kept_apart(optional: Two) -> None:
    optional.save()
    number = optional.number()
    optional.durable.locate(number, "1")
    optional.near.locate(number, "1~save")
    optional.near.part(number, 0, uploaded=True)
    assert optional.known().location == "1"
    assert [save.location for save in optional.near.unfinished()] == ["1~save"]
    assert [part.uploaded for part in optional.durable.parts(number)] == [False]
    assert [part.uploaded for part in optional.near.parts(number)] == [True]


@pytest.mark.parametrize("state", [SaveState.SUPERSEDED, SaveState.DELETED])
def test_what_ends_a_save_at_a_required_replica_ends_it_there_alone(
    required: Two, state: SaveState
) -> None:
    shard = required.save()
    required.verified(required.durable, shard)
    assert required.near.ended(required.number(), state, None, 3.0).news
    assert not required.near.ended(required.number(), state, None, 3.0).news
    assert required.known().state is SaveState.OPEN
    assert required.state(shard) is ShardState.CLEAN  # nothing is left to wait for


def test_a_refusal_by_the_replica_waits_for_the_durable_remotes_word(required: Two) -> None:
    required.save()
    assert required.near.ended(required.number(), SaveState.REFUSED, None, 3.0).wait
    assert required.there() is CopyState.OPEN


def test_a_refusal_that_was_overtaken_by_the_durable_remotes_word_is_asked_for_again(
    required: Two,
) -> None:
    required.save()
    required.publish()
    assert required.near.ended(required.number(), SaveState.REFUSED, None, 3.0).wait
    (due,) = required.near.unfinished()
    assert due.overwrite


def test_a_step_whose_bytes_left_before_the_replica_had_them_is_given_up_once(
    optional: Two,
) -> None:
    shard = optional.save()
    optional.verified(optional.durable, shard)
    optional.publish()
    (due,) = optional.near.unfinished()
    assert not optional.near.out_of_reach(due)
    (row,) = optional.node.rows()
    assert optional.store.evict(row)

    assert optional.near.out_of_reach(due)
    assert optional.near.give_up(due.number, 4.0)
    assert not optional.near.give_up(due.number, 4.0)
    assert optional.near.unfinished() == []
    lag = optional.store.read(lambda sql: copies.lag_of(sql, "near"))
    assert (lag.steps, lag.given_up) == (0, 1)


@pytest.mark.parametrize("packed", [False, True])
def test_a_copy_that_is_verified_just_after_the_local_bytes_went_counts(
    optional: Two, packed: bool
) -> None:
    shard = optional.save()
    optional.verified(optional.durable, shard)
    optional.publish()
    (row,) = optional.node.rows()
    assert optional.store.evict(row)  # the upload has read it, and closed it

    if packed:
        assert optional.near.packed({shard.version: InPack("pack-0-1", 0, 1, 1)}, 3.0)
    else:
        optional.verified(optional.near, shard)
    assert optional.state(shard) is ShardState.EVICTED
    (due,) = optional.near.unfinished()
    assert not optional.near.out_of_reach(due)


def test_neither_what_is_damaged_nor_what_a_replica_lacks_is_found_by_a_walk(
    optional: Two,
) -> None:
    optional.save()
    number = optional.number()

    def plans(sql: apsw.Connection) -> list[str]:
        asked: list[tuple[str, apsw.Bindings | None]] = []

        def note(_cursor: apsw.Cursor, query: str, values: apsw.Bindings | None) -> bool:
            asked.append((query, values))
            return True

        sql.exec_trace = note
        shards.quarantined_shards(sql)
        copies.shards_wanted_at(sql, number, "near", 1)
        sql.exec_trace = None
        explained = [sql.execute(f"EXPLAIN QUERY PLAN {q}", values) for q, values in asked]
        return [str(row[3]) for plan in explained for row in plan]

    found = optional.store.read(plans)
    assert any("dirty_shards" in line for line in found)
    assert any("evictable_shards" in line for line in found)
    assert "SCAN shards" not in found
    assert not any("autoindex_shards" in line for line in found)


def test_what_was_begun_at_the_replica_is_swept_there_after_it_was_given_up(optional: Two) -> None:
    shard = optional.save()
    optional.near.locate(optional.number(), "1")
    optional.verified(optional.durable, shard)
    optional.near.give_up(optional.number(), 4.0)
    (due,) = optional.near.unfinished()
    assert due.state is SaveState.SUPERSEDED
    optional.near.swept(due.number)
    assert optional.near.unfinished() == []


def test_a_step_that_is_deleted_while_its_uploads_are_swept_is_deleted_all_the_same(
    optional: Two,
) -> None:
    shard = optional.save()
    for remote in (optional.durable, optional.near):
        remote.locate(optional.number(), "1")
        optional.verified(remote, shard)
        remote.ended(optional.number(), SaveState.PUBLISHED, None, 4.0)
    number = optional.number()
    optional.node.checkpoints.delete_step("run", 1)

    for remote in (optional.durable, optional.near):
        remote.swept(number)
        assert [save.state for save in remote.unfinished()] == [SaveState.DELETED]


def test_a_save_that_is_superseded_ends_at_the_replica_too(optional: Two) -> None:
    optional.node.put(IDS, "a", b"of a rank that died before it sealed")
    optional.near.locate(optional.number(), "1")
    optional.save("b", SaveIds("run", 1, "newer", 0, 1))
    states = [save.state for save in optional.near.unfinished()]
    assert states == [SaveState.SUPERSEDED, SaveState.OPEN]


def test_a_deleted_step_is_looked_for_at_a_replica_that_nobody_here_knows_of(
    optional: Two,
) -> None:
    optional.save()
    optional.node.checkpoints.delete_step("run", 1)
    (due,) = optional.near.unfinished()
    assert (due.state, due.location) == (SaveState.DELETED, "")
    optional.near.removed(due.number)
    assert optional.near.unfinished() == []


def test_what_a_replica_lost_is_sent_again_and_dirty_only_if_it_is_required(node: Node) -> None:
    two = Two(node, required=True)
    shard = two.save()
    two.verified(two.durable, shard)
    two.verified(two.near, shard)
    assert two.near.lost([shard.version]) == [ShardState.DIRTY]
    assert two.near.wanted(two.number(), -1) != []
    assert two.durable.wanted(two.number(), -1) == []
    two.verified(two.near, shard)
    two.configure(required=False)
    assert two.near.lost([shard.version]) == [ShardState.CLEAN]


def test_shards_that_waited_for_a_replica_are_clean_when_the_settings_drop_it(
    required: Two,
) -> None:
    shard = required.save()
    required.verified(required.durable, shard)
    required.store.write(copies.configure_replicas, {})
    assert required.state(shard) is ShardState.CLEAN


def test_a_new_replica_gets_what_is_whole_here_and_nothing_else(node: Node) -> None:
    two = Two(node, required=False)
    two.store.write(copies.configure_replicas, {})
    whole, gone = two.save("a"), two.save("b", SaveIds("run", 2, "save", 0, 1))
    for shard in (whole, gone):
        two.verified(two.durable, shard)
    for ids in (IDS, SaveIds("run", 2, "save", 0, 1)):
        two.durable.locate(two.number(ids), str(ids.step))
        two.durable.ended(two.number(ids), SaveState.PUBLISHED, None, 2.0)
    assert two.store.evict(next(row for row in node.rows() if row.name == "b"))
    two.configure(required=False)
    assert [save.step for save in two.near.unfinished()] == [1]


def test_what_is_whole_here_waits_for_a_replica_that_is_required_from_now_on(
    optional: Two,
) -> None:
    shard = optional.save()
    optional.verified(optional.durable, shard)
    optional.publish()
    assert optional.state(shard) is ShardState.CLEAN
    optional.configure(required=True)
    assert optional.state(shard) is ShardState.DIRTY
    with pytest.raises(ForbiddenTransitionError):
        optional.store.evict(shard)
    optional.verified(optional.near, shard)
    assert optional.state(shard) is ShardState.CLEAN


def test_a_published_step_is_pending_while_a_required_replica_lacks_it(required: Two) -> None:
    shard = required.save()
    required.verified(required.durable, shard)
    required.publish()
    assert [each.save.step for each in required.store.read(saves.backlog)] == [1]
    required.verified(required.near, shard)
    assert required.store.read(saves.backlog) == []


def test_settings_that_did_not_change_cost_no_write(node: Node) -> None:
    two = Two(node, required=True)
    node.store.fence("the disk failed a sync")
    node.store.configure_replicas({"near": True})
    with pytest.raises(FencedError):
        node.store.configure_replicas({"near": False})
    assert two.near.unfinished() == []


def test_a_location_at_a_replica_is_that_of_one_save_there(node: Node) -> None:
    two = Two(node, required=False)
    two.store.write(copies.configure_replicas, {"near": False, "other": False})
    both = IDS, SaveIds("run", 2, "save", 0, 1)
    for ids in both:
        two.save(f"of-{ids.step}", ids)

    two.store.write(copies.record_location, two.number(), "1", "near")

    found = {
        (ids.step, each.remote): each.location
        for ids in both
        for each in two.store.read(copies.copies_at_replicas, two.number(ids))
    }
    nowhere = {(1, "other"): None, (2, "near"): None, (2, "other"): None}
    assert found == {(1, "near"): "1", **nowhere}
    two.store.write(copies.record_location, two.number(), "1~save", "near")
    (there, _) = two.store.read(copies.copies_at_replicas, two.number())
    assert there.location == "1", "it never changes"
