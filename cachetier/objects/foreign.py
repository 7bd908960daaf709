"""Objects that only the bucket knows: described, and read over several connections, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cachetier_client.bucket_format.uploads import ETAG_KEY, ObjectInfo
from cachetier_client.io import digests

from cachetier.errors import RemoteDigestError
from cachetier.local.catalog.objects import InBucket
from cachetier.model.levels import Level
from cachetier.model.objects import OUR_METADATA, Head
from cachetier.objects.base import FoundObject
from cachetier.remote.base import ObjectStore
from cachetier.restore.link import Link

RANGE_BYTES = 4 << 20


def found_there(info: ObjectInfo) -> FoundObject:
    """Describe an object as the bucket has it, under the ETag that a door gave it, if one did."""
    metadata = {
        name: value for name, value in info.metadata.items() if not name.startswith(OUR_METADATA)
    }
    return FoundObject(
        info.key,
        info.size_bytes,
        info.metadata.get(ETAG_KEY) or info.etag.strip('"'),
        info.modified_at or 0.0,
        Level.DURABLE,
        Head(dict(info.headers), metadata),
        info.digest,
        source="remote",
    )


def in_bucket(info: ObjectInfo) -> InBucket:
    """Return what conditions on an object that only the bucket knows are held against."""
    found = found_there(info)
    return InBucket(found.etag, info.etag, found.size_bytes, found.modified_at)


@dataclass(frozen=True, slots=True)
class BucketBytes:
    """The bytes of one version of an object in a bucket."""

    objects: ObjectStore
    info: ObjectInfo
    link: Link

    def read(self, start: int, size_bytes: int) -> Iterator[bytes | memoryview]:
        """Yield a range in order; see ``ForeignBytes`` of ``base``."""
        end, running = start + size_bytes, 0
        checked = self.info.digest is not None and size_bytes == self.info.size_bytes
        for at, piece in self.link.in_order(self._range, self._ranges(start, end)):
            if checked:
                running = digests.digest_of(piece, running)
                if at + len(piece) == end and running != self.info.digest:
                    key = self.info.key
                    raise RemoteDigestError(f"{key}: the bytes read are not those put", key=key)
            yield piece

    def _ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        for at in range(start, end, RANGE_BYTES):
            yield at, min(RANGE_BYTES, end - at)

    def _range(self, which: tuple[int, int]) -> tuple[int, memoryview]:
        at, length = which
        piece = memoryview(bytearray(length))
        self.objects.read_into(self.info.key, at, piece, self.info.etag)
        return at, piece
