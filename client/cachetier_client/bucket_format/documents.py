"""The JSON documents in the bucket: a rank's part, a step's manifest and a pending seal.

They are read from a place that others can write, so every field is checked; whoever reads a lie
gets an IntegrityError, never wrong bytes. A document has the same bytes whoever writes it.

Source: docs/architecture.md, "State in the bucket".
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated, Any, TypeVar

from cachetier_client.bucket_format import strict_json
from cachetier_client.bucket_format.layout import PACK_NAME
from cachetier_client.bucket_format.stored import (
    NO_FACTS,
    SHARD_LIMIT_BYTES,
    Codec,
    Content,
    InPack,
    ShardFacts,
    Stored,
    StoredFrame,
)
from cachetier_client.bucket_format.strict_json import LIST_LIMIT, between, checked, matching
from cachetier_client.errors import IntegrityError
from cachetier_client.identity.names import (
    STEP_LIMIT,
    WORLD_LIMIT,
    checked_name,
    checked_run,
    checked_save_id,
)
from cachetier_client.io import digests
from cachetier_client.io.digests import from_hex, to_hex

FORMAT = 1
NUMBER_LIMIT = 1 << 63  # what the catalog can hold
# A manifest takes some 200 bytes for a shard, a part 16 more for each block of 4 MiB: room for as
# many shards as a list may have, or for a part of 30 TB.
DOCUMENT_LIMIT_BYTES = 128 << 20
UNFLUSHED_LIMIT = 64  # saves that a note names
UNFLUSHED_LIMIT_BYTES = 1 << 20

Format = Annotated[int, between(FORMAT, FORMAT)]
Run = Annotated[str, checked(checked_run)]
Step = Annotated[int, between(0, STEP_LIMIT - 1)]
SaveId = Annotated[str, checked(checked_save_id)]
ShardName = Annotated[str, checked(checked_name)]
Location = Annotated[str, matching(r"[0-9]{1,16}[A-Za-z0-9._\-~]{0,67}")]
Rank = Annotated[int, between(0, WORLD_LIMIT - 1)]
WorldSize = Annotated[int, between(1, WORLD_LIMIT)]
StoreIdentity = Annotated[str, matching(r"[0-9a-f]{1,32}(?:-[0-9a-f]{1,32})?")]
HostName = Annotated[str, matching(r"[A-Za-z0-9._\-]{1,253}")]
Nonce = Annotated[str, matching(r"[A-Za-z0-9._\-]{0,64}")]
Count = Annotated[int, between(0, NUMBER_LIMIT - 1)]
ShardBytes = Annotated[int, between(0, SHARD_LIMIT_BYTES)]
HexDigest = Annotated[str, matching(r"[0-9a-f]{16}")]
HexDigests = Annotated[str, matching(r"(?:[0-9a-f]{16})*")]
HexSizes = Annotated[str, matching(r"(?:[0-9a-f]{8})*")]
PackName = Annotated[str, matching(PACK_NAME)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReference:
    """The pack that holds a shard, under ``.cachetier/``, and where in it the shard begins."""

    name: PackName
    start: Count
    size_bytes: ShardBytes
    digest: HexDigest

    @classmethod
    def of(cls, pack: InPack) -> PackReference:
        digest = to_hex(pack.digest)
        return cls(name=pack.name, start=pack.start, size_bytes=pack.size_bytes, digest=digest)

    def in_pack(self) -> InPack:
        return InPack(self.name, self.start, self.size_bytes, from_hex(self.digest))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSummary:
    """One shard as the manifest lists it: its raw bytes, and how its object stores them.

    Attributes:
        stored_digest: Of a compressed one: the digest of its object.
        element_size: Of one that is split into planes.
        pack: Of one that is no object of its own.
        facts: What its rank said of it, without hints.
    """

    name: ShardName
    rank: Rank
    size_bytes: ShardBytes
    digest: HexDigest
    codec: Codec = Codec.RAW
    stored_bytes: Count
    stored_digest: HexDigest | None = None
    element_size: Count | None = None
    pack: PackReference | None = None
    facts: ShardFacts | None = None

    @property
    def pack_name(self) -> str | None:
        """Name of the pack it lies in; None where it is an object of its own."""
        return self.pack.name if self.pack is not None else None

    def known_facts(self) -> ShardFacts:
        """Return the facts of the shard; planes tell the size of its elements."""
        return replace(self.facts or NO_FACTS, element_size=self.element_size or 0)

    def stored(self) -> Stored:
        """Return how it is stored, without its frames."""
        return Stored(
            self.codec,
            self.stored_bytes,
            from_hex(self.stored_digest or self.digest),
            (),
            self.element_size or 0,
            self.pack.in_pack() if self.pack is not None else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry(ShardSummary):
    """One shard as its rank's part describes it: with block digests, so that ranges verify.

    Of a compressed one also with size (32 bits) and digest of each frame, so that ranges are found
    and frames can be copied.
    """

    block_digests: HexDigests
    frame_sizes: HexSizes | None = None
    frame_digests: HexDigests | None = None

    @classmethod
    def of(
        cls,
        name: str,
        rank: int,
        content: Content,
        stored: Stored | None = None,
        facts: ShardFacts = NO_FACTS,
    ) -> ShardEntry:
        """Describe a shard; without ``stored`` it is stored raw."""
        stored = stored or Stored.raw(content)
        compressed = stored.codec is not Codec.RAW
        sizes = struct.pack(f"!{len(stored.frames)}I", *(each.size_bytes for each in stored.frames))
        frame_digests = digests.pack([each.digest for each in stored.frames])
        return cls(
            name=name,
            rank=rank,
            size_bytes=content.size_bytes,
            digest=to_hex(content.digest),
            codec=stored.codec,
            stored_bytes=stored.size_bytes,
            block_digests=digests.pack(content.block_digests).hex(),
            stored_digest=to_hex(stored.digest) if compressed else None,
            frame_sizes=sizes.hex() if compressed else None,
            frame_digests=frame_digests.hex() if compressed else None,
            element_size=stored.element_size or None,
            pack=PackReference.of(stored.pack) if stored.pack is not None else None,
            facts=facts.without_hints() or None,
        )

    def __post_init__(self) -> None:
        if (self.codec is Codec.RAW) != (self.stored_digest is None):
            raise ValueError("a digest as stored belongs to compressed shards, and to each of them")
        if len(self.frame_digests or "") != 2 * len(self.frame_sizes or ""):
            raise ValueError("not every frame has a digest")
        self.stored().check(self.size_bytes)

    def content(self) -> Content:
        blocks = digests.unpack(bytes.fromhex(self.block_digests))
        return Content(self.size_bytes, from_hex(self.digest), blocks)

    def stored(self) -> Stored:
        """Return how it is stored."""
        sizes = bytes.fromhex(self.frame_sizes or "")
        frames = map(
            StoredFrame,
            struct.unpack(f"!{len(sizes) // 4}I", sizes),
            digests.unpack(bytes.fromhex(self.frame_digests or "")),
        )
        return replace(ShardSummary.stored(self), frames=tuple(frames))

    def summary(self) -> ShardSummary:
        return ShardSummary(
            **{each.name: getattr(self, each.name) for each in fields(ShardSummary)}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartDocument:
    """The shards that one rank of one save put.

    Written once, after a HEAD of each of its shards.
    """

    format: Format = FORMAT
    run: Run
    step: Step
    save_id: SaveId
    rank: Rank
    world_size: WorldSize
    shards: tuple[ShardEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShard:
    """A shard that a client knows to be on its node: the service acknowledged it."""

    name: ShardName
    size_bytes: ShardBytes
    digest: HexDigest


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingSeal:
    """The note of a client that put shards straight here, for its service to seal.

    ``shards`` are in the bucket, ``held`` are at the service.
    """

    format: Format = FORMAT
    run: Run
    step: Step
    rank: Rank
    world_size: WorldSize
    save_id: SaveId
    overwrite: bool
    ranks_on_node: Count | None
    follows: bool = False
    shards: tuple[ShardEntry, ...]
    held: tuple[HeldShard, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnflushedSave:
    """A save that is not durable, and the ranks that sealed it on one node."""

    step: Step
    save_id: SaveId
    world_size: WorldSize
    ranks: tuple[Rank, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnflushedNote:
    """The saves of a run that one node acknowledged and that are not durable, the newest first."""

    format: Format = FORMAT
    run: Run
    store: StoreIdentity
    host: HostName
    saves: tuple[UnflushedSave, ...]

    def __post_init__(self) -> None:
        if len(self.saves) > UNFLUSHED_LIMIT:
            raise ValueError(f"it names {len(self.saves)} saves, more than {UNFLUSHED_LIMIT}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartReference:
    """A rank's part, pinned by size and digest so that it cannot change under a reader."""

    rank: Rank
    digest: HexDigest
    shards: Count
    size_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreClaim:
    """A cache directory's claim on its store id; ``counter`` is the highest version of a shard."""

    format: Format = FORMAT
    store: StoreIdentity
    nonce: Nonce
    counter: Count


class ManifestState(StrEnum):
    CLAIMED = "claimed"
    PUBLISHED = "published"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The step's one mutable document; ``nonce`` tells our own lost reply from another writer.

    ``first``: the save that has the plain keys, where that is another; kept by all that take the
    step, so that the nodes of a save agree on its keys whenever they ask.
    """

    format: Format = FORMAT
    state: ManifestState
    run: Run
    step: Step
    save_id: SaveId
    location: Location
    nonce: Nonce
    started_at: float
    replaces: tuple[SaveId, ...] = ()
    world_size: WorldSize = 1
    published_at: float | None = None
    parts: tuple[PartReference, ...] = ()
    shards: tuple[ShardSummary, ...] = ()
    first: SaveId | None = None

    def __post_init__(self) -> None:
        contents: dict[str, str] = {}
        for shard in self.shards:
            if contents.setdefault(shard.name, shard.digest) != shard.digest:
                raise ValueError(f"{shard.name} is listed with two digests")


@dataclass(frozen=True, slots=True)
class SeenManifest:
    """A manifest and the version it was read at."""

    manifest: Manifest
    etag: str


def manifest_of(seen: SeenManifest | None) -> Manifest | None:
    return seen.manifest if seen is not None else None


ReadPart = tuple[PartDocument, str]  # with the digest of its bytes, which pins it in a manifest
DocumentType = TypeVar("DocumentType")


def encode(document: Any) -> bytes:
    """Return the bytes of a document.

    Raises:
        IntegrityError: It is larger than readers take.
    """
    values = (getattr(document, each.name) for each in fields(document))
    entries = max((len(value) for value in values if isinstance(value, tuple)), default=0)
    body = strict_json.written(document) if entries <= LIST_LIMIT else b""
    if entries > LIST_LIMIT or len(body) > DOCUMENT_LIMIT_BYTES:
        raise IntegrityError(
            f"the {type(document).__name__.lower()} has {entries} entries and {len(body)} bytes: "
            f"{LIST_LIMIT} and {DOCUMENT_LIMIT_BYTES} are the most that readers take",
            hint="Save the step in fewer, larger shards.",
        )
    return body


def check_size(key: str, size_bytes: int) -> None:
    """Refuse an object that is larger than any document, before it is read.

    Raises:
        IntegrityError: It is.
    """
    if size_bytes > DOCUMENT_LIMIT_BYTES:
        raise IntegrityError(f"{key} has {size_bytes} bytes: no document of cachetier has so many")


def is_of_another_format(body: bytes) -> bool:
    """Return whether what cannot be read may be a document of another version of cachetier."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("format", FORMAT) != FORMAT


def decode(kind: type[DocumentType], body: bytes, key: str) -> DocumentType:
    """Read a document of ``kind``.

    Raises:
        IntegrityError: It is not one; names ``key``.
    """
    check_size(key, len(body))
    try:
        return strict_json.parsed(kind, body)
    except ValueError as error:
        raise IntegrityError(
            f"{key} is not a {kind.__name__.lower()} of format {FORMAT}: {error}"
        ) from None


def read_manifest(body: bytes, run: str, step: int, key: str) -> Manifest:
    """Read the manifest of a step.

    Raises:
        IntegrityError: It is damaged, or of another step.
    """
    manifest = decode(Manifest, body, key)
    if (manifest.run, manifest.step) != (run, step):
        raise IntegrityError(f"{key} is the manifest of {manifest.run}/{manifest.step}")
    return manifest


def read_unflushed(body: bytes, key: str) -> UnflushedNote:
    """Read the note of the run and node that ``key`` names.

    Raises:
        IntegrityError: It is damaged, or another one.
    """
    note = decode(UnflushedNote, body, key)
    if not key.endswith(f"/{note.run}/{note.store}.json"):
        raise IntegrityError(f"{key} is the note of {note.store} about {note.run}")
    return note


def read_part(body: bytes, run: str, rank: int, key: str) -> ReadPart:
    """Read the part of ``rank``.

    Raises:
        IntegrityError: It is damaged, or of another rank.
    """
    part = decode(PartDocument, body, key)
    if (part.run, part.rank) != (run, rank):
        raise IntegrityError(f"{key} is the part of {part.run}, rank {part.rank}")
    return part, to_hex(digests.digest_of(body))
