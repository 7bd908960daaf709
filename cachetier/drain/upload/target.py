"""The target of an upload, and what lies under its key already."""

from __future__ import annotations

from dataclasses import dataclass

from cachetier_client.bucket_format.stored import Codec, Content, Stored
from cachetier_client.bucket_format.uploads import (
    SAVE_KEY,
    STORE_KEY,
    VERSION_KEY,
    Existing,
    codec_found,
    judge_existing,
)

from cachetier.drain.upload.verify import Lend, frames_read_back, is_verified
from cachetier.model.compression import OFF, Mode
from cachetier.remote.base import (
    IF_ABSENT,
    Condition,
    Metadata,
    ObjectInfo,
    ObjectStore,
    if_match,
)


class ConflictError(Exception):
    """An object lies under our key that we may not overwrite."""


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """What is to lie where; ``metadata`` is that of raw bytes, ``mode`` how it may be compressed.

    ``run`` is for those who look at what was decided.
    """

    key: str
    metadata: Metadata
    content: Content
    run: str = ""
    mode: Mode = OFF

    @property
    def size_bytes(self) -> int:
        return self.content.size_bytes

    def wrote(self, info: ObjectInfo) -> bool:
        """Return whether ``info`` is an object that this very shard's upload wrote."""
        names = (SAVE_KEY, STORE_KEY, VERSION_KEY)
        return all(info.metadata.get(name) == self.metadata[name] for name in names)


def look(
    store: ObjectStore, target: UploadTarget, lend: Lend, sent: Stored | None = None
) -> Stored | Condition:
    """Return as what ``target`` is there, verified; or under which condition to write it.

    A compressed object of the same bytes is never replaced once it is sound, whoever wrote it: its
    frames may be recorded elsewhere.

    Args:
        store: Where to look.
        target: What to look for.
        lend: Lends buffers to read back into.
        sent: What was sent; without it a compressed object is read back, and decoded.

    Raises:
        ConflictError: It may not be written.
    """
    info = store.head(target.key)
    if info is None:
        return IF_ABSENT
    verdict = judge_existing(info.metadata, info.size_bytes, target.metadata, target.size_bytes)
    if verdict is Existing.FOREIGN:
        raise ConflictError(f"{target.key} holds an object that is not of this save")
    if verdict is Existing.NEWER:
        raise ConflictError(f"{target.key} holds a newer version of this shard")
    found = _verified(store, info, target, lend, sent) if verdict is Existing.OURS else None
    return found or if_match(info.etag)


def _verified(
    store: ObjectStore, info: ObjectInfo, target: UploadTarget, lend: Lend, sent: Stored | None
) -> Stored | None:
    found = codec_found(info.metadata)
    compressed = found[0] is not Codec.RAW
    expected = sent if compressed else Stored.raw(target.content)
    if (
        expected is not None
        and (expected.codec, expected.element_size) == found
        and is_verified(store, info, expected.size_bytes, expected.digest, lend)
    ):
        return expected
    return frames_read_back(store, info, target.content, lend) if compressed else None
