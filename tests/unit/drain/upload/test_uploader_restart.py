"""An upload of frames that turns out not to pay begins again with plain bytes, and only early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from cachetier_client.bucket_format.stored import Codec, Content, Stored
from cachetier_client.bucket_format.uploads import ObjectInfo, UploadedPart, object_metadata
from cachetier_client.io.digests import BLOCK_BYTES, combine, digest_of

from cachetier.drain.upload.buffers import Buffers
from cachetier.drain.upload.compression_choice import Chooser
from cachetier.drain.upload.compression_log import CompressionLog
from cachetier.drain.upload.compression_model import LinkRate
from cachetier.drain.upload.compressor import Compressor
from cachetier.drain.upload.journal import Journal
from cachetier.drain.upload.target import UploadTarget
from cachetier.drain.upload.uploader import UploadContext, Uploader
from cachetier.errors import UploadGoneError
from cachetier.model.compression import AUTO
from cachetier.remote.base import Body
from tests.fakes.bodies import mixed
from tests.fakes.memory_store import MemoryObjectStore
from tests.unit.drain.shards import Memory

HALF_BYTES = 24 << 20
FAST, SLOW = LinkRate(1e13, 1e13), LinkRate(1e5, 1e5)


class Store(MemoryObjectStore):
    """Tells how fast the link is once ``known_after`` parts have arrived."""

    def __init__(self, known_after: int, link: LinkRate) -> None:
        super().__init__()
        self.begun = self.arrived = 0
        self._known_after, self._link = known_after, link

    def link(self) -> LinkRate | None:
        return self._link if self.arrived >= self._known_after else None

    def create_upload(self, key: str, metadata: object = None, headers: object = None) -> str:
        self.begun += 1
        return super().create_upload(key, metadata, headers)  # type: ignore[arg-type]

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        part = super().upload_part(key, upload_id, number, body, digest=digest)
        self.arrived += 1
        return part


class Forgetful(Journal):
    """Remembers nothing across a crash."""

    def parts(self) -> list[UploadedPart]:
        return []


@contextmanager
def uploader(store: Store) -> Iterator[Uploader]:
    compressor = Compressor(2)
    chooser = Chooser(compressor, CompressionLog(), store.link)
    with ThreadPoolExecutor(1) as parts:  # one part after the other
        yield Uploader(UploadContext(store, Buffers(), parts, chooser=chooser))
    compressor.close()


def uploaded(store: Store, data: bytes) -> Stored:
    blocks = tuple(
        digest_of(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)
    )
    content = Content(len(data), combine(blocks, len(data)), blocks)
    target = UploadTarget("key", object_metadata("s", "store", 1, content), content, "run", AUTO)
    with uploader(store) as sending:
        return sending.upload(target, Memory(data), Forgetful())


@pytest.mark.parametrize(
    ("times", "known_after", "link", "codec", "begun"),
    [
        (4, 1, FAST, Codec.RAW, 2),
        (1, 1, FAST, Codec.ZSTD, 1),  # of six blocks two are a third: too late
        (4, 4, FAST, Codec.ZSTD, 1),
        (4, 1, SLOW, Codec.ZSTD, 1),
        (4, 0, FAST, Codec.RAW, 1),
    ],
)
def test_plain_bytes_replace_frames_only_where_they_pay_and_little_was_sent(
    times: int, known_after: int, link: LinkRate, codec: Codec, begun: int
) -> None:
    data, store = mixed(HALF_BYTES) * times, Store(known_after, link)

    stored = uploaded(store, data)

    info = store.head("key")
    assert info is not None
    assert (stored.codec, store.begun) == (codec, begun)
    assert info.encoding == ("zstd" if codec is Codec.ZSTD else None)
    assert list(store.list_uploads("")) == []
    if codec is Codec.RAW:
        assert store.get("key") == data


def test_what_fits_one_put_is_compressed_whole_while_nobody_knows_the_link() -> None:
    most_of_it = mixed(16 << 20, 800)

    stored = uploaded(Store(99, FAST), most_of_it)

    assert stored.codec is Codec.ZSTD


class Unsure(Store):
    """Says once of a part that it has that it does not know it."""

    said = False

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, digest: int
    ) -> ObjectInfo:
        if not self.said:
            self.said = True
            raise UploadGoneError("InvalidPart")
        return super().complete_upload(key, upload_id, parts, digest=digest)


def test_an_upload_that_cannot_become_an_object_is_not_left_behind() -> None:
    store = Unsure(1, FAST)

    uploaded(store, mixed(HALF_BYTES))

    assert (store.said, store.begun) == (True, 2)
    assert list(store.list_uploads("")) == []
