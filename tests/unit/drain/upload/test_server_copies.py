"""Which object may be copied from, and what a store that refuses costs."""

from __future__ import annotations

import pytest
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.stored import Codec, Content, Stored, StoredFrame
from cachetier_client.bucket_format.uploads import object_metadata
from cachetier_client.io.digests import BLOCK_BYTES, combine, digest_of
from cachetier_client.transport.wire import Frame

from cachetier.drain.channel import METHODS, encode_reply
from cachetier.drain.upload.server_copies import (
    REFUSED_SECONDS,
    Copies,
    Donor,
    Offer,
)
from cachetier.drain.upload.target import UploadTarget
from cachetier.errors import CopiesRefusedError
from cachetier.model.lifecycle import ShardState
from cachetier.model.shard import Shard
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore
from tests.fakes.memory_store import MemoryObjectStore

BLOCKS = 5


def body_ending(tail: bytes) -> bytes:
    return bytes((BLOCKS - 1) * BLOCK_BYTES) + tail


def content_of(*blocks: int, last_bytes: int = 4) -> Content:
    size_bytes = (len(blocks) - 1) * BLOCK_BYTES + last_bytes
    return Content(size_bytes, combine(blocks, size_bytes), blocks)


OLD = content_of(*[digest_of(bytes(BLOCK_BYTES))] * (BLOCKS - 1), digest_of(b"tail"))
OURS = content_of(OLD.block_digests[0], 99, *OLD.block_digests[2:])


def target_of(content: Content = OURS) -> UploadTarget:
    return UploadTarget("run/2/name", object_metadata("save-2", "store", 2, content), content)


def put_donor(store: FaultyObjectStore, save_id: str = "save-1", tail: bytes = b"tail") -> Offer:
    metadata = object_metadata(save_id, "store", 1, OLD)
    body = body_ending(tail)
    store.put("run/1/name", body, digest=digest_of(body), metadata=metadata)
    return Offer("run/1/name", "save-1", OLD, Stored.raw(OLD))


@pytest.fixture
def store() -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def copies(store: FaultyObjectStore, clock: FakeClock) -> Copies:
    return Copies(store, clock)


def test_a_donor_is_found_with_its_version_and_what_is_unchanged(
    store: FaultyObjectStore, copies: Copies
) -> None:
    offer = put_donor(store)
    info = store.head(offer.key)
    assert info is not None

    found = copies.find(target_of(), lambda: offer)

    assert found == Donor(offer.key, info.etag, offer.stored, (True, False, True, True, True))


def test_of_another_size_the_last_common_block_does_not_count(
    store: FaultyObjectStore, copies: Copies
) -> None:
    offer = put_donor(store)
    ours = content_of(*OLD.block_digests, 7)

    found = copies.find(target_of(ours), lambda: offer)

    assert found is not None
    assert found.unchanged == (True, True, True, True, False, False)


def test_nobody_is_asked_about_a_small_shard(copies: Copies) -> None:
    def ask() -> Offer | None:
        raise AssertionError("nobody should ask")

    assert copies.find(target_of(content_of(1, 2, 3)), ask) is None


@pytest.mark.parametrize("tail", [b"tai", b"taix"])
def test_an_object_that_is_not_the_one_recorded_is_no_donor(
    store: FaultyObjectStore, copies: Copies, tail: bytes
) -> None:
    offer = put_donor(store, tail=tail)
    assert copies.find(target_of(), lambda: offer) is None


def test_an_object_of_another_save_is_no_donor(store: FaultyObjectStore, copies: Copies) -> None:
    offer = put_donor(store, save_id="somebody-else")
    assert copies.find(target_of(), lambda: offer) is None


def test_an_object_stored_in_another_way_than_recorded_is_no_donor(
    store: FaultyObjectStore, copies: Copies
) -> None:
    raw = put_donor(store)
    frames = Stored(Codec.ZSTD, raw.stored.size_bytes, raw.stored.digest, (StoredFrame(1, 2),))
    offer = Offer(raw.key, raw.save_id, raw.content, frames)
    assert copies.find(target_of(), lambda: offer) is None


def test_an_object_that_is_gone_is_no_donor(store: FaultyObjectStore, copies: Copies) -> None:
    offer = put_donor(store)
    store.delete(offer.key)
    assert copies.find(target_of(), lambda: offer) is None


def test_a_donor_without_one_unchanged_block_is_not_even_looked_at(
    store: FaultyObjectStore, copies: Copies
) -> None:
    offer = put_donor(store)
    assert copies.find(target_of(content_of(1, 2, 3, 4, 5)), lambda: offer) is None
    assert store.calls["head"] == 0


def test_a_refusal_holds_for_an_hour_and_a_copy_ends_it(
    store: FaultyObjectStore, copies: Copies, clock: FakeClock
) -> None:
    offer = put_donor(store)
    copies.refused(CopiesRefusedError("no"))

    assert copies.state == "refused"
    assert copies.find(target_of(), lambda: offer) is None
    clock.advance(REFUSED_SECONDS)
    assert copies.find(target_of(), lambda: offer) is not None
    assert copies.state == "refused"  # nobody knows better yet
    copies.copied(5)
    assert copies.state == "on"


def test_switched_off_nothing_is_looked_for(store: FaultyObjectStore, clock: FakeClock) -> None:
    offer = put_donor(store)
    copies = Copies(store, clock, enabled=False)

    assert copies.find(target_of(), lambda: offer) is None
    assert copies.news() == ({"copied_bytes": 0}, "off")


def test_news_are_told_once(copies: Copies) -> None:
    assert copies.news() == ({"copied_bytes": 0}, "on")
    copies.copied(3)
    copies.copied(4)
    assert copies.news() == ({"copied_bytes": 7}, "on")
    assert copies.news() is None
    copies.refused(CopiesRefusedError("no"))
    assert copies.news() == ({"copied_bytes": 0}, "refused")


def test_an_offer_crosses_the_channel_with_its_frames() -> None:
    frames = tuple(StoredFrame(number + 1, number) for number in range(BLOCKS))
    stored = Stored(Codec.ZSTD, 1000, 5, frames)
    donor = Shard(1, 1, "run", 1, "save-1", "name", 0, OLD, ShardState.CLEAN, "file", False, 1.0)
    body, descriptor = encode_reply((donor, "1", stored))
    assert descriptor is None

    arrived = METHODS["find_donor"].result(Frame({}, bytearray(body)))
    assert arrived is not None
    there, location, as_stored = arrived
    offer = Offer.of(there, location, as_stored, Layout("ckpt"))

    assert offer == Offer(Layout("ckpt").shard_key("run", "1", "name"), "save-1", OLD, stored)


def test_a_refusal_that_is_repeated_is_logged_once_and_holds_on(
    copies: Copies, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    copies.refused(CopiesRefusedError("no"))
    clock.advance(REFUSED_SECONDS)
    copies.refused(CopiesRefusedError("still no"))

    assert len(caplog.records) == 1
    assert copies.find(target_of(), lambda: pytest.fail("nobody should ask")) is None
