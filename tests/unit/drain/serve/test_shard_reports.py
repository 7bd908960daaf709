"""What ``serve`` answers where a shard is lost, damaged, evicted or lies elsewhere already."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.stored import Codec, InPack, Stored
from cachetier_client.identity.names import SaveIds

from cachetier.drain.serve.remote_state import RemoteState
from cachetier.errors import IntegrityError, NotFoundError
from cachetier.local.catalog import copies
from cachetier.local.catalog.rows import UploadRecord
from cachetier.local.files.data_files import Files
from cachetier.model.lifecycle import ShardState
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_files import FaultyFiles
from tests.stateful.fake_drain import REMOTE
from tests.stateful.node import Node
from tests.unit.drain.serve.answering import Answering

IDS = SaveIds("run", 1, "save", 0, 1)
FRAMES = UploadRecord("upload", 1 << 20, Codec.ZSTD)
DATA = bytes(range(256)) * 400


@pytest.fixture
def serve(node: Node, clock: FakeClock) -> Answering:
    return Answering(node, clock)


@pytest.fixture
def near(node: Node, clock: FakeClock) -> Answering:
    """A replica that nothing waits for: its drain sends what is durable already, too."""
    node.store.write(copies.configure_replicas, {"near": False})
    return Answering(node, clock, RemoteState(node.store, "near"))


def verified(serve: Answering, name: str, stored: Stored | None = None) -> None:
    """Put a shard, and have it verified as ``stored``, raw if nobody says."""
    serve.node.put(IDS, name, DATA)
    shard = serve.shard(name)
    how = stored or Stored.raw(shard.content)
    serve.service.shard_verified(shard.version, how, 1.0, {})


def described(serve: Answering) -> None:
    """Have the part of the rank written: a document says how its shards are stored."""
    serve.node.store.write(copies.record_part, serve.shard("a").save, 0, uploaded=True)


def verified_in_pack(serve: Answering, name: str, pack: str) -> None:
    shard, size_bytes = serve.shard(name), len(DATA)
    members = {shard.version: InPack(pack, 0, size_bytes, shard.content.digest)}
    serve.service.pack_verified(shard.save, members, size_bytes, 1.0)


# --- opening ---------------------------------------------------------------------------------


def test_a_shard_that_is_clean_by_now_is_not_opened_to_be_sent_again(serve: Answering) -> None:
    verified(serve, "a")

    with pytest.raises(NotFoundError, match="clean"):
        serve.service.open_shard(serve.shard("a").version)


class EvictedMeanwhile(FaultyFiles):
    """Evicts the shard whose file is about to be opened."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.store.files)
        self._node = node

    def open(self, file_id: str) -> int:
        under: Files = self._files
        (shard,) = self._node.rows()
        self._node.store.files = under
        assert self._node.evict(shard)
        return under.open(file_id)


def test_a_shard_that_is_evicted_while_a_replica_opens_it_is_not_called_damaged(
    node: Node, near: Answering, clock: FakeClock
) -> None:
    node.put(IDS, "a", DATA)
    node.real_drain.drain_all()
    assert near.shard("a").state is ShardState.CLEAN
    node.store.files = EvictedMeanwhile(node)

    with pytest.raises(NotFoundError, match="no bytes here"):
        near.service.open_shard(near.shard("a").version)

    assert near.shard("a").state is ShardState.EVICTED
    assert near.incidents() == []
    assert near.shown()["quarantined"] == 0


# --- damage ----------------------------------------------------------------------------------


def test_damage_to_a_shard_that_is_durable_costs_its_local_bytes_and_nothing_else(
    node: Node, near: Answering
) -> None:
    node.put(IDS, "a", DATA)
    node.real_drain.drain_all()
    file_id = near.shard("a").file_id

    near.service.shard_damaged(near.shard("a").version, "block 0 fails its digest")

    assert near.shard("a").state is ShardState.EVICTED
    assert file_id not in {found for found, _ in node.store.files.all()}
    assert node.store.space.used_bytes == 0
    assert near.incidents() == []
    assert near.shown()["quarantined"] == 0
    assert node.get("run", 1, "a") == DATA


def test_a_shard_that_a_reader_found_damaged_while_it_was_sent_stays_quarantined(
    serve: Answering,
) -> None:
    serve.node.put(IDS, "a", DATA)
    shard = serve.shard("a")
    serve.service.shard_damaged(shard.version, "block 0 fails its digest")

    serve.service.shard_verified(shard.version, Stored.raw(shard.content), 1.0, {})

    assert serve.shard("a").state is ShardState.QUARANTINED
    assert (serve.shown()["quarantined"], serve.shown()["drained_shards"]) == (1, 0)


# --- what the bucket lost --------------------------------------------------------------------


def test_a_lost_shard_is_stored_otherwise_while_no_document_says_how_it_was(
    serve: Answering,
) -> None:
    verified(serve, "a")
    version = serve.shard("a").version
    serve.service.shards_lost((version,))

    serve.service.upload_begun(version, FRAMES)
    assert serve.service.open_shard(version).upload.codec is Codec.ZSTD
    verified_in_pack(serve, "a", "pack-0-1")

    assert serve.shard("a").state is ShardState.CLEAN


def test_a_lost_shard_is_not_begun_in_frames_where_a_document_calls_it_raw(
    serve: Answering,
) -> None:
    verified(serve, "a")
    version = serve.shard("a").version
    serve.service.shards_lost((version,))
    described(serve)

    with pytest.raises(IntegrityError, match="cannot be sent as it was stored"):
        serve.service.upload_begun(version, FRAMES)

    assert serve.service.open_shard(version).upload.upload_id is None
    assert serve.shard("a").state is ShardState.DIRTY


@pytest.mark.parametrize("packed_before", [False, True])
def test_a_lost_shard_is_not_taken_as_verified_in_another_place_than_a_document_says(
    serve: Answering, packed_before: bool
) -> None:
    serve.node.put(IDS, "a", DATA)
    shard = serve.shard("a")
    if packed_before:
        verified_in_pack(serve, "a", "pack-0-1")
    else:
        serve.service.shard_verified(shard.version, Stored.raw(shard.content), 1.0, {})
    serve.service.shards_lost((shard.version,))
    described(serve)

    with pytest.raises(IntegrityError):
        if packed_before:
            verified_in_pack(serve, "a", "pack-0-2")
        else:
            frames = Stored(Codec.ZSTD, 10, 5)
            serve.service.shard_verified(shard.version, frames, 1.0, {})

    assert serve.shard("a").state is ShardState.DIRTY


def test_clients_hear_once_of_a_shard_that_cannot_be_sent_as_it_was(serve: Answering) -> None:
    verified(serve, "a")
    version = serve.shard("a").version
    serve.node.store.write(copies.record_lost, version, REMOTE)
    described(serve)

    for _ in range(2):
        with pytest.raises(IntegrityError):
            serve.service.upload_begun(version, FRAMES)

    (incident,) = serve.incidents()
    assert incident.name == "a"
    assert "read it here, or save the step again" in incident.hint


# --- donors ----------------------------------------------------------------------------------


def test_a_shard_whose_place_at_the_remote_is_not_known_is_no_donor(
    node: Node, near: Answering
) -> None:
    node.put(IDS, "a", DATA)
    node.put(IDS, "b", DATA)
    shard = near.shard("a")
    near.service.shard_verified(shard.version, Stored.raw(shard.content), 1.0, {})
    assert near.service.find_donor(near.shard("b").version) is None

    near.service.save_located(shard.save, "1")

    donor = near.service.find_donor(near.shard("b").version)
    assert donor is not None
    assert (donor[0].name, donor[1]) == ("a", "1")
