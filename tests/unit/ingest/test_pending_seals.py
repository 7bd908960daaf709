"""The service completes what clients left for it, and believes nothing of it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import apsw
import pytest
from cachetier_client.bucket_format.documents import (
    HeldShard,
    Manifest,
    ManifestState,
    PendingSeal,
    ShardEntry,
    encode,
)
from cachetier_client.bucket_format.publication import part_of
from cachetier_client.bucket_format.stored import (
    Codec,
    Content,
    InPack,
    Stored,
    StoredFrame,
    table_bytes,
)
from cachetier_client.bucket_format.uploads import object_metadata
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of, to_hex

from cachetier.ingest.pending_seals import PendingSeals
from cachetier.local.catalog import copies, parts, saves, shards
from cachetier.model.lifecycle import PartState, SaveState, ShardState
from tests.fakes.fake_clock import FakeClock
from tests.stateful.invariants import judge_bytes
from tests.stateful.node import Node

IDS = SaveIds("run", 1, "save", 1, 2)
HERE, THERE = b"held by the service", b"put straight to the bucket"


def entry_of(name: str, body: bytes) -> ShardEntry:
    return ShardEntry.of(name, 1, Content(len(body), digest_of(body), (digest_of(body),)))


@dataclass
class Past:
    """A client that went past ``node``: it put ``THERE`` as ``there``, the node has ``here``."""

    node: Node
    seals: PendingSeals
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bucket = self.node.bucket
        self.key = self.bucket.layout.pending_key("run", "1", 1)

    def claim(self, save_id: str = "save", location: str = "1") -> None:
        self.bucket.put_manifest(
            Manifest(
                state=ManifestState.CLAIMED,
                run="run",
                step=1,
                save_id=save_id,
                location=location,
                nonce="n",
                started_at=1.0,
                world_size=2,
            ),
            None,
        )

    def put_there(self, body: bytes = THERE, name: str = "there") -> None:
        content = Content(len(body), digest_of(body), (digest_of(body),))
        metadata = object_metadata("save", "client-x", 1, content)
        key = self.bucket.layout.shard_key("run", "1", name)
        self.bucket.objects.put(key, body, digest=content.digest, metadata=metadata)

    def write_part(self, save_id: str = "save", here: Stored | None = None) -> None:
        """Seal the part with both shards, as a client does that has put both directly.

        With ``here`` as a drain does that stored the one so.
        """
        content = entry_of("here", HERE).content()
        entries = [ShardEntry.of("here", 1, content, here), entry_of("there", THERE)]
        body = encode(part_of(SaveIds("run", 1, save_id, 1, 2), 1, entries))
        key = self.bucket.layout.part_key("run", "1", 1)
        self.bucket.objects.put(key, body, digest=digest_of(body))

    def digest_of(self, name: str, save_id: str = "save") -> int | None:
        """Return the digest of a shard as the node knows it."""
        save = self.node.store.read(lambda sql: saves.save_named(sql, "run", 1, save_id))
        assert save is not None
        shard = self.node.store.read(lambda sql: shards.shard_named(sql, save.number, name))
        return None if shard is None else shard.content.digest

    def leave(self, change: Callable[[dict[str, Any]], object] = lambda _document: None) -> None:
        """Leave the pending seal, changed as somebody who lies would."""
        held = HeldShard(name="here", size_bytes=len(HERE), digest=to_hex(digest_of(HERE)))
        pending = PendingSeal(
            run="run",
            step=1,
            rank=1,
            world_size=2,
            save_id="save",
            overwrite=False,
            ranks_on_node=2,
            shards=(entry_of("there", THERE),),
            held=(held,),
        )
        document = json.loads(encode(pending))
        change(document)
        body = json.dumps(document).encode()
        self.bucket.objects.put(self.key, body, digest=digest_of(body))

    def part_state(self) -> PartState | None:
        save = self.node.store.read(lambda sql: saves.save_named(sql, "run", 1, "save"))
        assert save is not None
        parts = self.node.store.read(lambda sql: saves.parts_of(sql, save.number))
        return next((part.state for part in parts if part.rank == 1), None)

    def is_left(self) -> bool:
        return self.bucket.objects.head(self.key) is not None


@pytest.fixture
def past(node: Node, clock: FakeClock) -> Past:
    told: list[str] = []
    seals = PendingSeals(node.store, node.bucket, clock, on_sealed=lambda: told.append("sealed"))
    return Past(node, seals, told)


def test_a_part_that_is_partly_in_the_bucket_is_sealed_whole(past: Past) -> None:
    past.node.put(IDS, "here", HERE)
    past.claim()
    past.put_there()
    past.leave()

    assert past.seals.look() == 1

    assert past.part_state() is PartState.SEALED
    shard = past.node.store.read(lambda sql: saves.visible_shard(sql, "run", 1, "there"))
    assert shard is not None
    assert shard.state is ShardState.EVICTED
    assert shard.content.digest == digest_of(THERE)
    save = past.node.store.read(lambda sql: saves.save_named(sql, "run", 1, "save"))
    assert save is not None
    assert save.location == "1"  # so that it can be read at once
    assert past.told == ["sealed"]
    assert not past.is_left()
    assert past.seals.look() == 0


@pytest.mark.parametrize("never_heard_of", [b"few", bytes(1 << 17)])
def test_other_bytes_of_a_put_without_an_answer_give_way_to_those_in_the_bucket(
    past: Past, never_heard_of: bytes
) -> None:
    past.node.put(IDS, "here", HERE)
    past.node.put(IDS, "there", never_heard_of)
    past.claim()
    past.put_there()
    past.leave()

    assert past.seals.look() == 1

    shard = past.node.store.read(lambda sql: saves.visible_shard(sql, "run", 1, "there"))
    assert shard is not None
    assert shard.content.digest == digest_of(THERE)
    judge_bytes(past.node)


def test_a_reader_finds_the_old_or_the_new_bytes_of_a_shard_while_they_change(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    past.node.put(IDS, "here", HERE)
    past.node.put(IDS, "there", b"the client never heard of these")
    past.claim()
    past.put_there()
    past.leave()
    seen: list[int | None] = []
    write = past.node.store.write

    def look_and_write(*args: Any, **kwargs: Any) -> Any:
        written = write(*args, **kwargs)
        seen.append(past.digest_of("there"))
        return written

    monkeypatch.setattr(past.node.store, "write", look_and_write)
    past.seals.look()

    assert digest_of(THERE) in seen
    assert None not in seen


def test_bytes_without_an_answer_give_way_where_another_save_of_the_step_is_published(
    past: Past,
) -> None:
    published = SaveIds("run", 1, "old", 0, 1)
    past.node.put(published, "there", b"published")
    past.node.store.write(parts.seal, past.node.store.policy, published, None, 1.0)
    save = past.node.store.read(lambda sql: saves.save_named(sql, "run", 1, "old"))
    assert save is not None
    past.node.store.write(
        copies.record_outcome,
        past.node.store.policy,
        save.number,
        SaveState.PUBLISHED,
        None,
        2.0,
    )
    over = replace(IDS, overwrite=True)
    past.node.put(over, "here", HERE)
    past.node.put(over, "there", b"the client never heard of these")
    past.claim()
    past.put_there()
    past.leave(lambda document: document.update(overwrite=True))

    assert past.seals.look() == 1

    assert past.digest_of("there") == digest_of(THERE)
    assert past.digest_of("there", "old") == digest_of(b"published")


def test_a_part_that_was_sealed_past_us_is_what_its_document_says(
    past: Past, caplog: pytest.LogCaptureFixture
) -> None:
    past.node.put(IDS, "here", b"of a try that was given up")
    past.node.put(IDS, "there", THERE)
    past.node.put(IDS, "neither", b"of a try that was given up, too")
    past.claim()
    past.put_there()
    past.put_there(HERE, "here")
    past.write_part()

    assert past.seals.look() == 1

    assert past.part_state() is PartState.SEALED
    assert past.digest_of("here") == digest_of(HERE)
    assert past.digest_of("there") == digest_of(THERE)
    assert past.digest_of("neither") is None
    assert "neither" in caplog.text
    assert past.told == ["sealed"]
    assert past.seals.look() == 0


@pytest.mark.parametrize("wrong", ["another save", "a shard is missing"])
def test_a_part_that_is_not_as_its_document_says_is_left_alone(past: Past, wrong: str) -> None:
    past.node.put(IDS, "here", HERE)
    past.claim()
    past.put_there()
    if wrong == "another save":
        past.put_there(HERE, "here")
    past.write_part("another" if wrong == "another save" else "save")

    assert past.seals.look() == 0

    assert past.part_state() is PartState.OPEN
    assert past.digest_of("here") == digest_of(HERE)


def test_a_seal_that_was_begun_before_a_crash_is_completed(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    past.node.put(IDS, "here", HERE)
    past.claim()
    past.put_there()
    past.leave()

    def crash(_key: str) -> None:
        raise KeyboardInterrupt

    delete = past.bucket.objects.delete
    monkeypatch.setattr(past.bucket.objects, "delete", crash)
    with pytest.raises(KeyboardInterrupt):
        past.seals.look()
    monkeypatch.setattr(past.bucket.objects, "delete", delete)
    assert past.part_state() is PartState.SEALED
    assert past.is_left()
    save = past.node.store.read(lambda sql: saves.save_named(sql, "run", 1, "save"))
    assert save is not None
    past.node.store.write(copies.record_location, save.number, "1")  # the drain claims, too
    past.seals.tidy()  # as it does at a start
    assert not past.is_left()
    assert past.part_state() is PartState.SEALED


@pytest.mark.parametrize("missing", ["claim", "here", "there", "seal"])
def test_nothing_is_sealed_while_something_is_missing(
    past: Past, clock: FakeClock, missing: str
) -> None:
    steps: dict[str, Callable[[], object]] = {
        "claim": past.claim,
        "here": lambda: past.node.put(IDS, "here", HERE),
        "there": past.put_there,
        "seal": past.leave,
    }
    past.node.put(IDS, "another", b"so that the part is known")
    for name, do in steps.items():
        if name != missing:
            do()
    assert past.seals.look() == 0
    assert past.part_state() is PartState.OPEN

    steps[missing]()
    assert past.seals.look() == 0  # it is not time to look again
    past.seals.look_soon()
    assert past.seals.look() == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.update(save_id="another"),
        lambda document: document.update(rank=0),
        lambda document: document.update(step=2),
        lambda document: document.pop("held"),
        lambda document: document["held"][0].update(digest=to_hex(5)),
        lambda document: document["held"][0].update(digest="no digest"),
        lambda document: document["shards"][0].update(name="../there"),
        lambda document: document["shards"][0].update(rank=0),
        lambda document: document["shards"][0].update(digest=to_hex(7)),
        lambda document: document["shards"][0].update(size_bytes=1, stored_bytes=1),
        lambda document: document["shards"][0].update(block_digests=""),
    ],
)
def test_a_lie_seals_nothing_and_is_logged(
    past: Past, change: Callable[[dict[str, Any]], object], caplog: pytest.LogCaptureFixture
) -> None:
    past.node.put(IDS, "here", HERE)
    past.claim()
    past.put_there()
    past.leave(change)

    assert past.seals.look() == 0

    assert past.part_state() is PartState.OPEN
    assert [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_claim_of_another_save_says_nothing(past: Past) -> None:
    past.node.put(IDS, "here", HERE)
    past.claim("another")
    past.put_there()
    past.leave()
    assert past.seals.look() == 0


def test_the_bucket_is_asked_less_and_less(
    past: Past, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    past.node.put(IDS, "here", HERE)
    past.claim()
    asked: list[str] = []
    get = past.bucket.objects.get

    def counted(key: str, *args: Any) -> bytes:
        asked.append(key)
        return get(key, *args)

    monkeypatch.setattr(past.bucket.objects, "get", counted)
    for _ in range(3600):
        clock.advance(1.0)
        past.seals.look()
    assert 12 <= asked.count(past.key) <= 20


def test_the_thread_ends_when_it_is_told(past: Past) -> None:
    past.seals.start()
    past.seals.stop(10)
    assert not past.seals._thread.is_alive()


def test_a_part_that_was_sealed_past_us_with_all_that_is_here_loses_nothing(
    past: Past, caplog: pytest.LogCaptureFixture
) -> None:
    past.node.put(IDS, "here", HERE)
    past.claim()
    past.put_there()
    past.put_there(HERE, "here")
    past.write_part()

    assert past.seals.look() == 1

    assert past.node.get("run", 1, "here") == HERE
    assert "was sealed without" not in caplog.text


@pytest.mark.parametrize("how", ["frames", "a pack"])
def test_a_part_that_a_drain_wrote_in_an_earlier_life_of_the_cache_seals_nothing(
    past: Past, how: str
) -> None:
    past.node.put(IDS, "here", HERE)
    past.claim()
    past.put_there()
    past.put_there(HERE, "here")
    content = entry_of("here", HERE).content()
    if how == "frames":
        stored = Stored(Codec.ZSTD, 4 + table_bytes(1), 5, (StoredFrame(4, 9),))
    else:
        stored = replace(Stored.raw(content), pack=InPack(f"pack-1-{5:016x}", 0, 100, 5))
    past.write_part(here=stored)

    assert past.seals.look() == 0

    assert past.part_state() is PartState.OPEN
    assert past.digest_of("here") == digest_of(HERE)

    past.leave()
    past.seals.look_soon()
    assert past.seals.look() == 1


def test_a_seal_that_is_left_is_removed_whatever_became_of_the_others(past: Past) -> None:
    for rank in range(2):
        ids = replace(IDS, rank=rank)
        past.node.put(ids, f"here-{rank}", HERE)
        past.node.checkpoints.seal(ids, 1)
    save = past.node.store.read(lambda sql: saves.save_named(sql, "run", 1, "save"))
    assert save is not None
    past.node.store.write(copies.record_location, save.number, "1")
    past.leave()  # of rank 1; rank 0 has none

    past.seals.tidy()

    assert not past.is_left()


def test_a_catalog_that_is_locked_for_a_while_does_not_end_the_looking(
    past: Past, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    past.node.put(IDS, "here", HERE)
    past.claim()
    past.put_there()
    past.leave()
    sealed, refused, read = threading.Event(), 0, past.node.store.read

    def locked(*args: Any, **kwargs: Any) -> Any:
        nonlocal refused
        if refused < 2:
            refused += 1
            raise apsw.BusyError("planned")
        return read(*args, **kwargs)

    monkeypatch.setattr(past.node.store, "read", locked)
    seals = PendingSeals(past.node.store, past.bucket, FakeClock(), on_sealed=sealed.set)
    seals.start()
    seals.look_soon()

    assert sealed.wait(30)
    seals.stop(30)
    assert "could not be removed" in caplog.text
    assert "will be retried" in caplog.text


def test_what_was_never_started_stops_at_once(past: Past) -> None:
    past.seals.stop(30)
    assert past.seals.look() == 0
