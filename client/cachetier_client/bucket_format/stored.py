"""The bytes of a shard, what its rank says of it, and how the bucket stores it.

That is raw, or as zstd frames with a seek table. One frame holds one block, so the digest of a
block verifies a frame, and a range of blocks is a range of frames. The table is the one of zstd's
seekable format: a skippable frame, so that any zstd tool decodes the whole object.
``zstd-planes-1`` differs in that the bytes of each block are split into planes first, by the size
of the shard's elements.

A small raw shard may lie in a *pack*, one object for many shards of a rank.

What a rank says of a shard beside its bytes are its *facts*. Client, doors, catalog, drain,
documents and ``fsck`` carry them as one value, and only this module knows which there are. A new
fact is a field of ``ShardFacts`` with its check in ``of_fields``, a column of the same name in the
catalog's table ``shards`` (with the same default), and whoever shows it. A fact that is its default
was not said, and is left out wherever facts are written. A *hint* is for the node that has the
bytes: no document, mark or listing has it, and a repair may lose it.

Source: docs/compression.md.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from cachetier_client.bucket_format.strict_json import checked, sparse
from cachetier_client.errors import DigestMismatchError, InvalidRequestError, SizeMismatchError
from cachetier_client.identity.names import plain_integer, shown
from cachetier_client.io import digests
from cachetier_client.io.digests import BLOCK_BYTES, blocks_of

# S3 takes 10,000 parts, and a part is read into memory whole: 64 MiB of it at most.
SHARD_LIMIT_BYTES = 10_000 * (64 << 20)
# zstd's own bound for a block that does not compress.
FRAME_LIMIT_BYTES = BLOCK_BYTES + (BLOCK_BYTES >> 8)
# Below this a request costs more than the bytes saved.
COMPRESSED_FROM_BYTES = 1 << 20
# What stays above this share of its size is stored raw.
WORTHWHILE_RATIO = 0.97
ELEMENT_SIZES = (2, 4, 8)

_TABLE_ENTRY_BYTES = 8
_TABLE_FRAME_BYTES = 17  # a skippable frame's header, and the table's footer
_FRAME = struct.Struct("!IQ")
_ELEMENT_HINT = "Pass the bytes of one value: 2 for bf16, 4 for fp32, 8 for fp64; or nothing."
_COUNT = re.compile(r"\s*\d{1,18}\s*", re.ASCII)


class Codec(StrEnum):
    RAW = "raw"
    ZSTD = "zstd"
    PLANES = "zstd-planes-1"


# The sizes of the elements that each codec splits blocks by; 0: it does not split.
ELEMENT_SIZES_OF = {Codec.RAW: (0,), Codec.ZSTD: (0,), Codec.PLANES: ELEMENT_SIZES}


class StoredFrame(NamedTuple):
    """One zstd frame: its size, and the digest of its bytes as stored."""

    size_bytes: int
    digest: int


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of a shard, described: size, digest of the whole, digest of each block."""

    size_bytes: int
    digest: int
    block_digests: tuple[int, ...]

    @classmethod
    def of_block(cls, body: bytes | memoryview) -> Content:
        """Describe bytes that are one block, or none."""
        digest = digests.digest_of(body)
        return cls(len(body), digest, (digest,) if body else ())

    def checked(self) -> Content:
        """Return self, or refuse digests of blocks that are not those of the whole.

        Raises:
            SizeMismatchError: They do not cover the size.
            DigestMismatchError: They do not combine to the digest.
        """
        try:
            whole = digests.combine(self.block_digests, self.size_bytes)
        except ValueError as error:
            raise SizeMismatchError(str(error)) from None
        if whole != self.digest:
            raise DigestMismatchError("the block digests do not combine to the shard's digest")
        return self


def checked_element_size(element_size: object) -> int:
    """Return ``element_size``, 0 for None; raise InvalidRequestError if no shard can have it."""
    if element_size is None:
        return 0
    number = plain_integer(element_size)
    if number is None or number not in ELEMENT_SIZES:
        raise InvalidRequestError(
            f"element_size {shown(element_size)} is not one of 2, 4 and 8", hint=_ELEMENT_HINT
        )
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """The facts that a rank gives of a shard besides its bytes.

    Shards of the same bytes may differ in it.

    Attributes:
        element_size: Bytes of one value, 0 if unknown: a hint for compression, which then splits
            the bytes into planes.
    """

    element_size: Annotated[int, checked(checked_element_size)] = sparse(0)

    @classmethod
    def of_put(cls, element_size: object) -> ShardFacts:
        """Return the facts of a shard that this process puts; raises as ``of_fields``."""
        return cls.of_fields({"element_size": element_size})

    @classmethod
    def of_fields(cls, values: Mapping[str, Any]) -> ShardFacts:
        """Return the facts among ``values``, by their names; one that is None was not said.

        Raises:
            InvalidRequestError: A fact is outside its grammar.
        """
        return cls(element_size=checked_element_size(values.get("element_size")))

    @classmethod
    def of_headers(cls, headers: Mapping[str, str]) -> ShardFacts:
        """Return the facts that the headers of an HTTP request say; raises as ``of_fields``."""
        found = {name: headers.get(header) for name, header in FACT_HEADERS.items()}
        numbers = {
            name: int(text)
            for name, text in found.items()
            if text is not None and type(_DEFAULTS[name]) is int and _COUNT.fullmatch(text)
        }
        return cls.of_fields(found | numbers)

    def check(self, size_bytes: int) -> None:
        """Refuse facts that no shard of ``size_bytes`` can have.

        Raises:
            InvalidRequestError: The bytes are not whole elements.
        """
        if self.element_size and size_bytes % self.element_size:
            raise InvalidRequestError(
                f"{size_bytes} bytes are not whole elements of {self.element_size}",
                hint=_ELEMENT_HINT,
            )

    def __bool__(self) -> bool:
        """Return whether anything was said."""
        return self != NO_FACTS

    def without_hints(self) -> ShardFacts:
        """Return what documents, marks and listings have of them."""
        return replace(self, element_size=0) if self.element_size else self

    def fields(self) -> dict[str, Any]:
        """Return the facts by their names, as a request carries them: None if not said."""
        return {name: getattr(self, name) or None for name in FACT_NAMES}

    def headers(self) -> dict[str, str]:
        """Return the headers of an HTTP request that say them."""
        fields = self.fields().items()
        return {FACT_HEADERS[name]: str(value) for name, value in fields if value is not None}

    def recorded(self) -> dict[str, Any]:
        """Return the facts by their names, as a mark or a listing has them."""
        fields = self.without_hints().fields().items()
        return {name: value for name, value in fields if value is not None}


NO_FACTS = ShardFacts()
_DEFAULTS = {each.name: each.default for each in fields(ShardFacts)}
FACT_NAMES = tuple(_DEFAULTS)
FACT_SCHEMAS = {"element_size": {"type": "integer", "enum": list(ELEMENT_SIZES)}}  # as JSON Schema
FACT_HEADERS = {name: f"Cachetier-{name.title().replace('_', '-')}" for name in FACT_NAMES}


@dataclass(frozen=True, slots=True)
class InPack:
    """Where in which pack a shard lies; size and digest are those of the pack."""

    name: str
    start: int
    size_bytes: int
    digest: int


@dataclass(frozen=True, slots=True)
class Stored:
    """How one shard is stored: its size and digest as stored.

    Of zstd also its frames, and of planes the size of the elements.
    """

    codec: Codec
    size_bytes: int
    digest: int
    frames: tuple[StoredFrame, ...] = ()
    element_size: int = 0
    pack: InPack | None = None

    @classmethod
    def raw(cls, content: Content) -> Stored:
        return cls(Codec.RAW, content.size_bytes, content.digest)

    @property
    def pack_name(self) -> str | None:
        """Name of the pack it lies in; None where it is an object of its own."""
        return self.pack.name if self.pack is not None else None

    def check(self, raw_bytes: int) -> None:
        """Refuse frames that cannot hold a shard of ``raw_bytes``.

        Raises:
            ValueError: They contradict it, or themselves.
        """
        if self.codec is Codec.RAW:
            self._check_raw(raw_bytes)
            return
        if self.pack is not None:
            raise ValueError("only raw shards are packed")
        if self.element_size not in ELEMENT_SIZES_OF[self.codec]:
            raise ValueError(f"{self.codec} has no elements of {self.element_size} bytes")
        if len(self.frames) != blocks_of(raw_bytes):
            raise ValueError(f"{len(self.frames)} frames are not a shard of {raw_bytes} bytes")
        if not all(0 < frame.size_bytes <= FRAME_LIMIT_BYTES for frame in self.frames):
            raise ValueError(f"a frame has more than {FRAME_LIMIT_BYTES} bytes, or none")
        if frames_bytes(self.frames) + table_bytes(len(self.frames)) != self.size_bytes:
            raise ValueError(f"the frames and their table do not add up to {self.size_bytes} bytes")

    def _check_raw(self, raw_bytes: int) -> None:
        if self.frames or self.element_size:
            raise ValueError("raw bytes have neither frames nor planes")
        if self.size_bytes != raw_bytes:
            raise ValueError(f"{self.size_bytes} raw bytes are not a shard of {raw_bytes}")
        pack = self.pack
        if pack is not None and not 0 <= pack.start <= pack.size_bytes - raw_bytes:
            raise ValueError(f"{raw_bytes} bytes from {pack.start} on are not in the pack")


def frames_bytes(frames: Iterable[StoredFrame]) -> int:
    """Return the size of ``frames``, without their table."""
    return sum(frame.size_bytes for frame in frames)


def table_bytes(frames: int) -> int:
    """Return the size of the seek table of so many frames, with its frame."""
    return frames * _TABLE_ENTRY_BYTES + _TABLE_FRAME_BYTES


def limit_bytes(raw_bytes: int) -> int:
    """Return what a shard of ``raw_bytes`` takes at most when compressed."""
    frames = blocks_of(raw_bytes)
    return frames * FRAME_LIMIT_BYTES + table_bytes(frames)


def is_worthwhile(stored_bytes: int, raw_bytes: int) -> bool:
    return stored_bytes <= raw_bytes * WORTHWHILE_RATIO


def pack_frames(frames: Iterable[StoredFrame]) -> bytes:
    """Pack frames, 12 bytes each: size and digest, big-endian."""
    return b"".join(_FRAME.pack(*frame) for frame in frames)


def unpack_frames(packed: bytes) -> tuple[StoredFrame, ...]:
    """Undo ``pack_frames``.

    Raises:
        ValueError: The length is not a multiple of twelve.
    """
    if len(packed) % _FRAME.size:
        raise ValueError(f"packed frames are {len(packed)} bytes, not a multiple of {_FRAME.size}")
    return tuple(StoredFrame(*fields) for fields in _FRAME.iter_unpack(packed))
