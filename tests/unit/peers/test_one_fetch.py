"""Nodes that restore the same shard read each of its ranges from the bucket once."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from cachetier_client.bucket_format.stored import Codec
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.carriers.stored_blocks import StoredBlocks
from cachetier.errors import IntegrityError, RemoteError, StoppingError, TransientError
from cachetier.local.catalog import shards
from cachetier.model.shard import Shard
from cachetier.peers import answers
from cachetier.remote.neighbours.client import WantedBlocks
from cachetier.remote.neighbours.membership import ranked
from cachetier.restore.one_fetch import FLIGHTS_AT_ONCE, HELD_SECONDS, Flights
from cachetier.restore.remote_shard import Range, RemoteShard
from tests.fakes.fake_clock import FakeClock
from tests.fakes.peer_lab import LabNode, PeerLab
from tests.stateful.fake_drain import REMOTE
from tests.stateful.node import Node, content_of

DATA = random.Random(40).randbytes(5 * BLOCK_BYTES + 77)
TWO = DATA[: 2 * BLOCK_BYTES]  # blocks: one range


@pytest.fixture
def lab(tmp_path: Path, clock: FakeClock, vfs: str) -> Iterator[PeerLab]:
    lab = PeerLab(tmp_path, clock, vfs)
    yield lab
    lab.close()


@pytest.fixture
def saver(tmp_path: Path, lab: PeerLab, clock: FakeClock, vfs: str) -> Iterator[Node]:
    """A node outside the cluster that has published the step."""
    saver = Node(tmp_path / "saver", lab.remote, clock, vfs=vfs)
    lab.publish(saver, {"a": DATA, "small": DATA[:100_000], "two": TWO})
    yield saver
    saver.close()


@pytest.mark.usefixtures("saver")
def test_each_range_is_read_from_the_bucket_once(lab: PeerLab) -> None:
    assert lab.restore_all("a") == [DATA] * 4
    assert lab.read_bytes == len(DATA)
    assert all(node.objects.read_bytes < len(DATA) for node in lab.nodes)
    assert lab.calls("list") == lab.calls("list_uploads") == 0


@pytest.mark.usefixtures("saver")
def test_documents_of_a_step_are_read_once(lab: PeerLab) -> None:
    lab.restore_all("a")
    assert lab.calls("get") == 2  # the manifest, and the part of the one rank


@pytest.mark.usefixtures("saver")
def test_a_node_that_comes_later_reads_what_is_on_the_disks_of_others(
    lab: PeerLab, clock: FakeClock
) -> None:
    *early, late = lab.nodes
    lab.restore_all("a", early)
    assert lab.read_bytes == len(DATA)
    clock.advance(HELD_SECONDS)

    assert late.get("a") == DATA
    assert lab.read_bytes == len(DATA)


@pytest.mark.usefixtures("saver")
def test_a_small_shard_is_read_once_too(lab: PeerLab) -> None:
    assert lab.restore_all("small") == [DATA[:100_000]] * 4
    assert lab.read_bytes == 100_000


@pytest.mark.usefixtures("saver")
def test_a_block_of_a_shard_that_stays_remote_is_read_once(lab: PeerLab) -> None:
    for node in lab.nodes:
        opened = node.restore.open_part("run", 1, "a", 1, 1.0)
        assert opened.remote is not None
        assert bytes(opened.remote.read(3)) == DATA[3 * BLOCK_BYTES : 4 * BLOCK_BYTES]
    assert lab.read_bytes == BLOCK_BYTES


@pytest.mark.usefixtures("saver")
def test_the_ranges_of_a_peer_that_died_before_are_fetched_by_the_next(lab: PeerLab) -> None:
    dead, alive = lab.fetcher_and_others()
    lab.kill(dead.name)
    assert lab.restore_all("a", alive) == [DATA] * 3
    assert lab.read_bytes == len(DATA)
    assert dead.objects.read_bytes == 0


@pytest.mark.usefixtures("saver")
def test_a_fetcher_that_dies_half_way_costs_what_it_had_not_sent(lab: PeerLab) -> None:
    victim, others = lab.fetcher_and_others()

    def kill(_key: str, _start: int) -> None:
        lab.kill(victim.name)
        raise RemoteError("killed")

    victim.objects.before = kill
    assert lab.restore_all("a", others) == [DATA] * 3
    assert any(peer.asked["blocks"] for peer in lab.seen(victim.name)), "nobody was to wait for it"
    assert lab.read_bytes == len(DATA)


@pytest.mark.usefixtures("saver")
def test_blocks_that_a_killed_fetcher_had_sent_are_not_read_again(lab: PeerLab) -> None:
    victim, others = lab.fetcher_and_others("two")
    for peer in lab.seen(victim.name):
        peer.spoil = partial(_killed_after, [None])
    assert lab.restore_all("two", others) == [TWO] * 3
    assert victim.objects.read_bytes == 2 * BLOCK_BYTES
    assert sum(node.objects.read_bytes for node in others) == BLOCK_BYTES


def _killed_after(blocks: list[None], sent: bytes) -> bytes:
    if len(sent) == BLOCK_BYTES and not blocks:
        raise TransientError("killed")
    if len(sent) == BLOCK_BYTES:
        blocks.pop()
    return sent


@pytest.mark.usefixtures("saver")
def test_wrong_bytes_of_a_peer_are_never_taken(lab: PeerLab) -> None:
    liar, others = lab.fetcher_and_others()
    for peer in lab.seen(liar.name):
        peer.spoil = lambda block: bytes([block[0] ^ 1]) + block[1:]
    assert lab.restore_all("a") == [DATA] * 4
    seen = {failed for node in others for failed in node.failed_peers}
    assert seen == {(liar.name, IntegrityError.code)}


@pytest.mark.usefixtures("saver")
def test_planted_trust_in_a_peers_bytes_is_found(
    lab: PeerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar, others = lab.fetcher_and_others()
    for peer in lab.seen(liar.name):
        peer.spoil = lambda block: bytes([block[0] ^ 1]) + block[1:]
    monkeypatch.setattr(StoredBlocks, "check", lambda *_block_and_digest: None)
    assert any(node.get("a") != DATA for node in others)


@pytest.mark.usefixtures("saver")
def test_a_wrong_document_of_a_peer_is_never_taken(lab: PeerLab) -> None:
    for node in lab.nodes:
        for peer in node.peers:
            peer.spoil = lambda block: block.replace(b"save", b"evil")
    assert lab.restore_all("small") == [DATA[:100_000]] * 4


@pytest.mark.usefixtures("saver")
def test_a_peer_that_cannot_reach_the_bucket_is_passed_over(lab: PeerLab) -> None:
    cut_off, others = lab.fetcher_and_others()

    def refuse(_key: str, _start: int) -> None:
        raise RemoteError("cut off")

    cut_off.objects.before = refuse
    assert lab.restore_all("a", others) == [DATA] * 3
    assert lab.read_bytes == len(DATA)


def test_a_damaged_object_is_an_error_and_no_endless_round(lab: PeerLab, saver: Node) -> None:
    (key,) = (key for key in lab.remote.list("tier/run/1/").keys if key.endswith("/a"))
    lab.remote._objects[key] = (lab.remote._objects[key][0], bytes(len(DATA)))
    for node in lab.nodes:
        with pytest.raises(IntegrityError):
            node.get("a")


def test_damaged_bytes_on_a_peers_disk_are_not_sent(lab: PeerLab, clock: FakeClock) -> None:
    holder, reader, *_ = lab.nodes
    lab.publish(holder.node, {"a": DATA})
    (row,) = holder.node.rows()
    assert row.file_id is not None
    path = holder.node.cache_dir / "data" / row.file_id[:2] / row.file_id
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(b"rotten")

    assert reader.get("a") == DATA
    assert not reader.failed_peers
    assert 0 < lab.read_bytes <= len(DATA)
    assert holder.node.rows()[0].lacks_bytes


def test_a_peer_whose_disk_is_busy_says_that_it_is_alive_and_closes_no_file_in_use(
    lab: PeerLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder, *_ = lab.nodes
    lab.publish(holder.node, {"a": DATA})
    go_on, really, still_open = threading.Event(), answers._read, []

    def slow(descriptor: int, shard: Shard, number: int) -> answers.Bytes | None:
        go_on.wait(60.0)
        still_open.append(os.fstat(descriptor).st_size == len(DATA))
        return really(descriptor, shard, number)

    monkeypatch.setattr(answers, "_read", slow)
    found = holder.answers.blocks(
        WantedBlocks("run", 1, "save", "a", content_of(DATA).digest, 0, 2, held=True)
    )
    assert next(found) is None
    go_on.set()
    assert bytes(next(each for each in found if each is not None)) == DATA[:BLOCK_BYTES]

    go_on.clear()
    assert next(found) is None
    threading.Timer(0.05, go_on.set).start()
    del found  # the reader has hung up
    assert still_open == [True, True]


def test_what_a_peer_saved_is_read_from_its_disk_and_not_from_the_bucket(lab: PeerLab) -> None:
    holder, *readers = lab.nodes
    lab.publish(holder.node, {"a": DATA})
    assert lab.restore_all("a", readers) == [DATA] * 3
    assert lab.read_bytes == 0


def test_a_peer_of_the_same_failure_domain_is_read_from_first(lab: PeerLab) -> None:
    near, far, reader, _ = lab.nodes
    for node in (near, far):
        lab.publish(node.node, {"a": DATA})
    reader.domain = "rack-1"
    lab.as_seen_by(reader, near.name).domain = "rack-1"
    assert reader.get("a") == DATA
    assert lab.as_seen_by(reader, near.name).asked["held blocks"] > 0
    assert lab.as_seen_by(reader, far.name).asked["held blocks"] == 0


@pytest.mark.usefixtures("saver")
def test_two_nodes_whose_views_differ_do_not_wait_for_each_other(lab: PeerLab) -> None:
    """Each believes that the other one has it all on its disk, or is to fetch it."""
    one, two, *_ = lab.nodes
    for node, other in ((one, two), (two, one)):
        node.peers = [lab.as_seen_by(node, other.name)]
        node.one_fetch._held["run", 1, "save", other.name] = ({"a"}, 0.0)
    assert lab.restore_all("a", [one, two]) == [DATA] * 2
    assert lab.read_bytes <= 2 * len(DATA)


def test_every_node_ranks_alike_and_ranges_are_spread() -> None:
    names = [f"node-{number}" for number in range(8)]
    firsts = [ranked(f"shard/{block}", names)[0] for block in range(0, 512, 2)]
    assert ranked("x", names) == ranked("x", reversed(names))
    assert all(256 / 16 < firsts.count(name) < 256 / 4 for name in names)
    without = [ranked(f"shard/{block}", names[1:])[0] for block in range(0, 512, 2)]
    assert all(a == b for a, b in zip(firsts, without, strict=True) if a != names[0])


def test_nobody_answers_and_all_is_as_without_peers(lab: PeerLab, saver: Node) -> None:
    alone: LabNode = lab.nodes[0]
    alone.peers = []
    assert alone.get("a") == DATA
    assert alone.objects.read_bytes == len(DATA)
    assert saver.get("run", 1, "a") == DATA


def test_a_compressed_shard_is_read_and_decoded_by_one(
    lab: PeerLab, tmp_path: Path, clock: FakeClock, vfs: str
) -> None:
    data = DATA[:1000] * 300
    saver = Node(tmp_path / "saver", lab.remote, clock, vfs=vfs)
    lab.publish(saver, {"framed": data})
    (row,) = saver.rows()
    stored = saver.store.read(shards.stored_of, row.version, REMOTE)
    saver.close()
    assert stored is not None
    assert stored.codec is Codec.ZSTD

    assert lab.restore_all("framed") == [data] * 4
    assert lab.calls("read_into") == 1
    assert lab.read_bytes < len(data) / 10


class HeldSource:
    """Brings nothing until it is let go."""

    def __init__(self) -> None:
        self.content = content_of(DATA)
        self.go = threading.Event()

    def bring(self, *_: object) -> None:
        assert self.go.wait(60)


def test_a_node_that_stops_lets_those_go_who_wait_for_ranges_that_nobody_began() -> None:
    flights, source = Flights(), HeldSource()
    shard = cast("Shard", SimpleNamespace(version=1))
    wanted = [Range(0, 0, (1,) * number) for number in range(1, FLIGHTS_AT_ONCE + 2)]
    try:
        *_, last = [flights.of(shard, cast("RemoteShard", source), each) for each in wanted]
        assert last.block(0, 0.0) is None

        flights.close()
        with pytest.raises(StoppingError):
            last.block(0, 60.0)
    finally:
        source.go.set()
