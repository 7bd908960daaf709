"""The JSON documents in the bucket: a rank's part and a step's manifest.

They are read from a place that others can write, so every field is checked; whoever reads a lie
gets an IntegrityError, never wrong bytes.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal, TypeVar

from cachetier_client.bucket_format.publication import ManifestState
from cachetier_client.bucket_format.stored import (
    SHARD_LIMIT_BYTES,
    Codec,
    Content,
    InPack,
    Stored,
    StoredFrame,
)
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cachetier.errors import IntegrityError

FORMAT: Literal[1] = 1
HexDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
NUMBER_LIMIT = 1 << 63  # what the catalog can hold
Count = Annotated[int, Field(ge=0, lt=NUMBER_LIMIT)]


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class PackReference(_Document):
    """The pack that holds a shard, under ``.cachetier/``, and where in it the shard begins."""

    name: str = Field(pattern=r"^pack-[0-9]+-[0-9a-f]{16}$")
    start: Count
    size_bytes: Annotated[int, Field(ge=0, le=SHARD_LIMIT_BYTES)]
    digest: HexDigest

    @classmethod
    def of(cls, pack: InPack) -> PackReference:
        digest = f"{pack.digest:016x}"
        return cls(name=pack.name, start=pack.start, size_bytes=pack.size_bytes, digest=digest)

    def in_pack(self) -> InPack:
        return InPack(self.name, self.start, self.size_bytes, int(self.digest, 16))


class ShardSummary(_Document):
    """One shard as the manifest lists it: its raw bytes, and how its object stores them."""

    name: str
    rank: Count
    size_bytes: Annotated[int, Field(ge=0, le=SHARD_LIMIT_BYTES)]
    digest: HexDigest
    codec: Codec = Codec.RAW
    stored_bytes: Count
    stored_digest: HexDigest | None = None  # of a compressed one: the digest of its object
    element_size: Count | None = None  # of one split into planes
    pack: PackReference | None = None  # of one that is no object of its own

    @property
    def pack_name(self) -> str | None:
        """Name of the pack it lies in; None where it is an object of its own."""
        return self.pack.name if self.pack is not None else None


class ShardEntry(ShardSummary):
    """One shard as its rank's part describes it: with block digests, so that ranges verify.

    Of a compressed one also with size (32 bits) and digest of each frame, so that ranges are found
    and frames can be copied.
    """

    block_digests: str = Field(pattern=r"^([0-9a-f]{16})*$")
    frame_sizes: str | None = Field(None, pattern=r"^([0-9a-f]{8})*$")
    frame_digests: str | None = Field(None, pattern=r"^([0-9a-f]{16})*$")

    @classmethod
    def of(cls, name: str, rank: int, content: Content, stored: Stored | None = None) -> ShardEntry:
        """Describe a shard; without ``stored`` it is stored raw."""
        stored = stored or Stored.raw(content)
        compressed = stored.codec is not Codec.RAW
        sizes = "".join(f"{frame.size_bytes:08x}" for frame in stored.frames)
        frame_digests = "".join(f"{frame.digest:016x}" for frame in stored.frames)
        return cls(
            name=name,
            rank=rank,
            size_bytes=content.size_bytes,
            digest=f"{content.digest:016x}",
            codec=stored.codec,
            stored_bytes=stored.size_bytes,
            block_digests="".join(f"{digest:016x}" for digest in content.block_digests),
            stored_digest=f"{stored.digest:016x}" if compressed else None,
            frame_sizes=sizes if compressed else None,
            frame_digests=frame_digests if compressed else None,
            element_size=stored.element_size or None,
            pack=PackReference.of(stored.pack) if stored.pack is not None else None,
        )

    @model_validator(mode="after")
    def _adds_up(self) -> ShardEntry:
        if (self.codec is Codec.RAW) != (self.stored_digest is None):
            raise ValueError("a digest as stored belongs to compressed shards, and to each of them")
        if len(self.frame_digests or "") != 2 * len(self.frame_sizes or ""):
            raise ValueError("not every frame has a digest")
        self.stored().check(self.size_bytes)
        return self

    def content(self) -> Content:
        blocks = _numbers(self.block_digests, 16)
        return Content(self.size_bytes, int(self.digest, 16), blocks, self.element_size or 0)

    def stored(self) -> Stored:
        return Stored(
            self.codec,
            self.stored_bytes,
            int(self.stored_digest or self.digest, 16),
            tuple(
                map(StoredFrame, _numbers(self.frame_sizes, 8), _numbers(self.frame_digests, 16))
            ),
            self.element_size or 0,
            self.pack.in_pack() if self.pack is not None else None,
        )

    def summary(self) -> ShardSummary:
        return ShardSummary.model_validate(self.model_dump())


def _numbers(text: str | None, digits: int) -> tuple[int, ...]:
    """Read numbers of so many hexadecimal digits each."""
    text = text or ""
    return tuple(int(text[at : at + digits], 16) for at in range(0, len(text), digits))


class PartDocument(_Document):
    """What one rank of one save put: written once, after a HEAD of each of its shards."""

    format: Literal[1] = FORMAT
    run: str
    step: Count
    save_id: str
    rank: Count
    world_size: Annotated[int, Field(ge=1, lt=NUMBER_LIMIT)]
    shards: tuple[ShardEntry, ...]


class HeldShard(_Document):
    """A shard that a client knows to be on its node."""

    name: str
    size_bytes: Annotated[int, Field(ge=0, le=SHARD_LIMIT_BYTES)]
    digest: HexDigest


class PendingSeal(_Document):
    """What a client leaves that put part of its part straight here, for its service to seal.

    ``shards`` are in the bucket, ``held`` are at the service.
    """

    format: Literal[1] = FORMAT
    run: str
    step: Count
    rank: Count
    world_size: Annotated[int, Field(ge=1, lt=NUMBER_LIMIT)]
    save_id: str
    overwrite: bool
    ranks_on_node: Count | None = None
    follows: bool = False
    shards: tuple[ShardEntry, ...]
    held: tuple[HeldShard, ...]


class PartReference(_Document):
    """A rank's part, pinned by size and digest so that it cannot change under a reader."""

    rank: Count
    digest: HexDigest
    shards: Count
    size_bytes: Count


class Manifest(_Document):
    """The step's one mutable document; ``nonce`` tells our own lost reply from another writer."""

    format: Literal[1] = FORMAT
    state: ManifestState
    run: str
    step: Count
    save_id: str
    location: str
    nonce: str
    started_at: float
    replaces: tuple[str, ...] = ()
    world_size: Annotated[int, Field(ge=1, lt=NUMBER_LIMIT)] = 1
    published_at: float | None = None
    parts: tuple[PartReference, ...] = ()
    shards: tuple[ShardSummary, ...] = ()


DocumentType = TypeVar("DocumentType", bound=_Document)


def encode(document: BaseModel) -> bytes:
    return document.model_dump_json(exclude_none=True).encode()


def is_of_another_format(body: bytes) -> bool:
    """Return whether what cannot be read may be a document of another version of cachetier."""
    try:
        found = json.loads(body)
    except ValueError:
        return False
    return isinstance(found, dict) and found.get("format", FORMAT) != FORMAT


def decode(kind: type[DocumentType], body: bytes, key: str) -> DocumentType:
    """Read a document of ``kind``.

    Raises:
        IntegrityError: It is not one; names ``key``.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise IntegrityError(
            f"{key} is not a {kind.__name__.lower()} of format {FORMAT}: {error.errors()[0]['msg']}"
        ) from None
