"""One shard on its way in parts: what an upload goes on with, and what it is begun anew for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from cachetier_client.bucket_format.stored import Codec, Stored
from cachetier_client.bucket_format.uploads import (
    DIGEST_KEY,
    ETAG_KEY,
    ObjectInfo,
    UploadedPart,
    compressed_metadata,
    object_metadata,
)
from cachetier_client.io.digests import BLOCK_BYTES, digest_of, to_hex

from cachetier.codec.frames import FrameEncoder
from cachetier.drain.upload.buffers import Buffers
from cachetier.drain.upload.compression_choice import Chooser
from cachetier.drain.upload.compression_log import CompressionLog
from cachetier.drain.upload.compressor import Compressor
from cachetier.drain.upload.journal import Journal
from cachetier.drain.upload.objects import ObjectTarget
from cachetier.drain.upload.server_copies import Ask, Copies, Offer, nobody
from cachetier.drain.upload.target import RefusedKeyError, UploadTarget
from cachetier.drain.upload.uploader import PARTS_AT_ONCE, Span, Upload, UploadContext, Uploader
from cachetier.errors import (
    NotFoundError,
    RemoteDigestError,
    StoppingError,
    TransientError,
    UploadGoneError,
)
from cachetier.local.catalog.rows import UploadRecord
from cachetier.model.compression import OFF, Mode, parsed_mode
from cachetier.remote.base import Body
from tests.fakes.bodies import compressible, noise
from tests.fakes.fake_clock import FakeClock
from tests.fakes.faulty_store import FaultyObjectStore, fail
from tests.fakes.memory_store import MemoryObjectStore
from tests.stateful.node import content_of
from tests.stateful.real_drain import InCaller
from tests.unit.drain.shards import Memory

BLOCKS = 6
ZSTD = parsed_mode("zstd:1")


class Counting(MemoryObjectStore):
    """Counts what it is asked for."""

    def __init__(self) -> None:
        super().__init__(minimum_part_bytes=1)
        self.begun = self.completed = self.sent_bytes = 0

    def create_upload(self, key: str, metadata: object = None, headers: object = None) -> str:
        self.begun += 1
        return super().create_upload(key, metadata, headers)  # type: ignore[arg-type]

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        part = super().upload_part(key, upload_id, number, body, digest=digest)
        self.sent_bytes += part.size_bytes
        return part

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, digest: int
    ) -> ObjectInfo:
        self.completed += 1
        return super().complete_upload(key, upload_id, parts, digest=digest)


@pytest.fixture
def data() -> bytes:
    return compressible((BLOCKS - 1) * BLOCK_BYTES + 4)


@pytest.fixture
def chooser() -> Iterator[Chooser]:
    compressor = Compressor(2)
    yield Chooser(compressor, CompressionLog(), lambda: None)
    compressor.close()


def target_of(data: bytes, mode: Mode = OFF) -> UploadTarget:
    content = content_of(data)
    return UploadTarget("key", object_metadata("save", "store", 1, content), content, "run", mode)


def context_of(store: MemoryObjectStore | FaultyObjectStore) -> UploadContext:
    copies = Copies(store, FakeClock())
    return UploadContext(
        store, Buffers(), InCaller(), usual_part_bytes=lambda: BLOCK_BYTES, copies=copies
    )


def upload(
    context: UploadContext,
    target: UploadTarget,
    data: bytes,
    progress: Journal | None = None,
    ask: Ask = nobody,
) -> Stored:
    return Uploader(context).upload(target, Memory(data), progress or Journal(), ask)


def copied_bytes(context: UploadContext) -> int:
    assert context.copies is not None
    news = context.copies.news()
    return news[0]["copied_bytes"] if news is not None else 0


# --- uploads that go -------------------------------------------------------------------------


class Forgetful(Counting):
    """Forgets its first upload when the third part comes, as a lifecycle rule may have it."""

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        if self.begun == 1 and number == 3:
            self.abort_upload(key, upload_id)
        return super().upload_part(key, upload_id, number, body, digest=digest)


def test_an_upload_that_the_store_forgets_is_begun_anew_and_sent_whole(data: bytes) -> None:
    store, progress = Forgetful(), Journal()

    stored = upload(context_of(store), target_of(data), data, progress)

    assert stored == Stored.raw(target_of(data).content)
    assert store.get("key") == data
    assert (store.begun, list(store.list_uploads(""))) == (2, [])
    assert [sent.number for sent in progress.parts()] == list(range(1, BLOCKS + 1))


class Unkept(Counting):
    """Never makes an object of what was sent."""

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, digest: int
    ) -> ObjectInfo:
        raise RemoteDigestError("planned")


def test_an_upload_that_never_becomes_the_object_is_given_up_and_leaves_nothing_behind(
    data: bytes,
) -> None:
    store, progress = Unkept(), Journal()

    with pytest.raises(RemoteDigestError, match="returns other bytes for"):
        upload(context_of(store), target_of(data), data, progress)

    assert (store.head("key"), list(store.list_uploads(""))) == (None, [])
    assert (store.begun, progress.record.upload_id) == (3, None)


class LateReply(Counting):
    """Makes the object of an earlier upload, whose reply was lost, while the last part comes."""

    def __init__(self, target: UploadTarget, data: bytes) -> None:
        super().__init__()
        self._target, self._data = target, data

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        if number == BLOCKS:
            self.put(
                key,
                self._data,
                digest=self._target.content.digest,
                metadata=self._target.metadata,
            )
        return super().upload_part(key, upload_id, number, body, digest=digest)


def test_a_sound_object_that_appears_while_parts_go_is_not_written_over(data: bytes) -> None:
    target = target_of(data)
    store = LateReply(target, data)

    assert upload(context_of(store), target, data) == Stored.raw(target.content)

    assert (store.completed, list(store.list_uploads(""))) == (0, [])
    assert store.get("key") == data


def test_what_lies_there_already_ends_the_upload_that_was_begun(data: bytes) -> None:
    store, target, progress = Counting(), target_of(data), Journal()
    store.put("key", data, digest=target.content.digest, metadata=target.metadata)
    progress.begun(UploadRecord(store.create_upload("key"), BLOCK_BYTES))

    assert upload(context_of(store), target, data, progress) == Stored.raw(target.content)

    assert (store.sent_bytes, list(store.list_uploads(""))) == (0, [])


class Deaf(Journal):
    """Of a shard that was deleted meanwhile."""

    def begun(self, record: UploadRecord) -> None:
        raise NotFoundError("planned")


def test_an_upload_that_nobody_can_remember_is_not_left_behind(data: bytes) -> None:
    store = Counting()

    with pytest.raises(NotFoundError):
        upload(context_of(store), target_of(data), data, Deaf())

    assert (store.begun, list(store.list_uploads(""))) == (1, [])


class Blocked(Counting):
    """Has keys below this one, and so no object under it."""

    def __init__(self) -> None:
        super().__init__()
        self.put("key/below", b"x", digest=digest_of(b"x"))

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, digest: int
    ) -> ObjectInfo:
        raise TransientError("planned", remote_status=500)


def test_a_key_that_cannot_be_given_is_a_conflict_for_a_shard_at_once_and_for_an_object_next_time(
    data: bytes,
) -> None:
    store, progress, content = Blocked(), Journal(), target_of(data).content

    with pytest.raises(RefusedKeyError):
        upload(context_of(store), target_of(data), data)
    for expected in (TransientError, RefusedKeyError):
        target, span = ObjectTarget("key", {}, content), Span.of(len(data), Memory(data))
        with pytest.raises(expected):
            Upload(context_of(store), target, [span], progress).send()


# --- stopping, and going on ------------------------------------------------------------------


def test_a_drain_that_stops_begins_no_more_parts_and_the_next_one_sends_only_the_rest(
    data: bytes,
) -> None:
    store, progress = Counting(), Journal()
    context = replace(context_of(store), stopping=lambda: len(progress.parts()) == 2)
    with pytest.raises(StoppingError):
        upload(context, target_of(data), data, progress)
    assert store.sent_bytes == 2 * BLOCK_BYTES

    upload(context_of(store), target_of(data), data, progress)

    assert (store.begun, store.sent_bytes) == (1, len(data))
    assert store.get("key") == data


def test_several_spans_go_as_one_part_each_and_those_that_are_there_are_not_sent_again() -> None:
    store, progress, pieces = Counting(), Journal(), [noise(size, size) for size in (7, 300, 5)]
    content = content_of(b"".join(pieces))
    target = ObjectTarget("key", {ETAG_KEY: "etag", DIGEST_KEY: to_hex(content.digest)}, content)
    spans = [Span.of(len(piece), Memory(piece)) for piece in pieces]
    stopped = replace(context_of(store), stopping=lambda: len(progress.parts()) == 2)

    with pytest.raises(StoppingError):
        Upload(stopped, target, spans, progress).send_ahead()
    Upload(context_of(store), target, spans, progress).send()

    assert store.get("key") == b"".join(pieces)
    assert (store.begun, store.sent_bytes) == (1, content.size_bytes)
    sent = [(part.raw_start, part.size_bytes) for part in progress.parts()]
    assert sent == [(0, 7), (7, 300), (307, 5)]


def test_a_recorded_part_that_the_store_does_not_have_is_forgotten_before_anything_is_sent(
    data: bytes,
) -> None:
    store, progress = Counting(), Journal()
    progress.begun(UploadRecord(store.create_upload("key"), BLOCK_BYTES))
    upload_id, body = progress.record.upload_id or "", data[:BLOCK_BYTES]
    part = store.upload_part("key", upload_id, 1, body, digest=digest_of(body))
    for number, start in ((1, 0), (2, BLOCK_BYTES)):
        raw = replace(part, number=number, raw_start=start, raw_bytes=BLOCK_BYTES)
        progress.part_done(raw)

    with pytest.raises(StoppingError):
        context = replace(context_of(store), stopping=lambda: True)
        upload(context, target_of(data), data, progress)

    assert [known.number for known in progress.parts()] == [1]


def test_after_a_part_that_fails_only_those_under_way_are_sent() -> None:
    data = bytes((2 * PARTS_AT_ONCE + 4) * BLOCK_BYTES)
    store = FaultyObjectStore(MemoryObjectStore(minimum_part_bytes=1), [fail("upload_part", 2)])
    progress = Journal()

    with pytest.raises(TransientError):
        upload(context_of(store), target_of(data), data, progress)

    under_way = PARTS_AT_ONCE + 1
    assert store.calls["upload_part"] == under_way
    assert len(progress.parts()) == under_way - 1


def test_a_drain_that_cannot_compress_begins_an_upload_of_frames_anew(data: bytes) -> None:
    store, progress = Counting(), Journal()
    upload_id = store.create_upload("key")
    progress.begun(UploadRecord(upload_id, 2 * BLOCK_BYTES, Codec.ZSTD))

    stored = upload(context_of(store), target_of(data, ZSTD), data, progress)

    assert stored.codec is Codec.RAW
    assert store.get("key") == data
    assert list(store.list_uploads("")) == []
    with pytest.raises(UploadGoneError):
        store.list_parts("key", upload_id)


# --- donors ----------------------------------------------------------------------------------


def donated(store: MemoryObjectStore, data: bytes, chooser: Chooser | None) -> Offer:
    """Have an earlier save's shard in the bucket: frames if there is a ``chooser``."""
    content = content_of(data)
    mode = ZSTD if chooser is not None else OFF
    metadata = object_metadata("before", "store", 1, content)
    stored = upload(
        replace(context_of(store), chooser=chooser),
        UploadTarget("donor", metadata, content, "run", mode),
        data,
    )
    return Offer("donor", "before", content, stored)


def test_an_upload_of_frames_that_was_begun_takes_nothing_of_a_donor_of_raw_bytes(
    data: bytes, chooser: Chooser
) -> None:
    store, progress, target = Counting(), Journal(), target_of(data, ZSTD)
    offer = donated(store, data, None)
    upload_id = store.create_upload("key", compressed_metadata(target.metadata, len(data)))
    progress.begun(UploadRecord(upload_id, 2 * BLOCK_BYTES, Codec.ZSTD))
    context = replace(context_of(store), chooser=chooser)

    stored = upload(context, target, data, progress, lambda: offer)

    assert (stored.codec, copied_bytes(context)) == (Codec.ZSTD, 0)
    assert [frame.size_bytes for frame in stored.frames] == [
        len(FrameEncoder(1).encode(data[at : at + BLOCK_BYTES]))
        for at in range(0, len(data), BLOCK_BYTES)
    ]


@pytest.mark.parametrize("compressing", [False, True])
def test_a_shard_that_is_to_be_raw_takes_nothing_of_a_donor_of_frames(
    data: bytes, chooser: Chooser, compressing: bool
) -> None:
    store = Counting()
    offer = donated(store, data, chooser)
    context = replace(context_of(store), chooser=chooser if compressing else None)

    stored = upload(context, target_of(data), data, ask=lambda: offer)

    assert (stored.codec, copied_bytes(context)) == (Codec.RAW, 0)
    assert store.get("key") == data


@pytest.mark.parametrize(("unchanged", "codec"), [(2, Codec.ZSTD), (5, Codec.RAW)])
def test_a_shard_stays_raw_for_a_donor_only_where_at_least_half_of_it_need_not_be_sent(
    data: bytes, chooser: Chooser, unchanged: int, codec: Codec
) -> None:
    store = Counting()
    same = unchanged * BLOCK_BYTES
    offer = donated(store, data[:same] + bytes(len(data) - same), None)
    context = replace(context_of(store), chooser=chooser)
    store.sent_bytes = 0

    stored = upload(context, target_of(data, ZSTD), data, ask=lambda: offer)

    assert stored.codec is codec
    assert copied_bytes(context) == (same if codec is Codec.RAW else 0)
    assert store.sent_bytes < (0.5 if codec is Codec.RAW else 0.9) * len(data)


def test_a_donor_with_other_bytes_than_were_recorded_costs_their_copy_and_no_byte(
    data: bytes,
) -> None:
    store = Counting()
    offer = donated(store, data, None)
    store.damage("donor")
    context = context_of(store)

    assert upload(context, target_of(data), data, ask=lambda: offer).codec is Codec.RAW

    assert (store.get("key"), copied_bytes(context)) == (data, 0)


def test_where_no_digest_tells_a_donor_of_other_bytes_by_its_copy_the_object_does(
    data: bytes,
) -> None:
    store = MemoryObjectStore(minimum_part_bytes=1, keeps_digests=False)
    offer = donated(store, data, None)
    store.damage("donor")

    upload(context_of(store), target_of(data), data, ask=lambda: offer)

    assert store.get("key") == data
