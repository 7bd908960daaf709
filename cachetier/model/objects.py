"""Objects beside checkpoints: what programs that speak S3 put here, and in which order it is shown.

A *mount* is a part of a bucket that the S3 door offers. What is put there lies in the catalog as
*versions* of keys, in the order of their acknowledgement; a deletion is a version too. The bytes of
a version are its *pieces*, one for each part of a multipart upload: shards of the mount's own save,
so that files, room, eviction, repair and figures know them already.

The bucket never shows a version before all that it may speak of: what was acknowledged before its
last byte had come. That is what ``follows`` says.

Source: docs/design/0030-objects.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from cachetier_client.identity.names import MOUNT_MARK, RESERVED_SEGMENT
from cachetier_client.io.digests import to_hex

from cachetier.model.levels import Level
from cachetier.model.lifecycle import ObjectState

KEY_LIMIT_BYTES = 1024
LAST_CODE_POINT = "\U0010ffff"  # keys are in the order of their bytes, and so of code points
OBJECT_PART_LIMIT = 10_000
PART_MINIMUM_BYTES = 5 << 20  # of every part but the last
UPLOAD_EXPIRES_SECONDS = 7 * 86_400.0
RECORD_BYTES = 2048  # of the catalog, for a deletion that waits, or an upload that is open
SAVE_ID = "objects"  # of a mount's one save
NOTHING_THERE = ""  # what a version may replace, where that is no ETag
WHATEVER_IS_THERE = "*"  # a person said so
OUR_METADATA = "cachetier-"  # what the names of all metadata begin with that is the service's own
# S3 keeps these for whoever reads an object; our own names of them are in lower case.
CONTENT_HEADERS = (
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
)
DEFAULT_MARKERS = (".metadata", "latest*", "*.index.json", "_SUCCESS", "COMMIT*", "*.json")


class Mode(StrEnum):
    """``write_through``: a put is answered once the bucket shows it."""

    WRITE_BACK = "write_back"
    WRITE_THROUGH = "write_through"
    READ_ONLY = "read_only"


class Order(StrEnum):
    """``node``: as acknowledged on a node. ``cluster``: markers wait for other nodes' data too."""

    NODE = "node"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Mount:
    """A part of a bucket that the S3 door offers; ``name`` is to principals what a run's is.

    Args:
        name: By the grammar of runs.
        bucket: At the durable remote's endpoint, with its credentials.
        prefix: What keys begin with; empty for all of the bucket, else it ends with a slash.
        mode: What becomes of puts.
        order: Whose earlier writes the bucket must show first.
        ack: The level that a put waits for which asks for none.
        markers: Globs of the last segments of keys that may speak of other nodes' objects.
        release_seconds: How long a marker waits for other nodes, while the bucket answers and
            nothing comes of what it waits for, before it goes by itself.
    """

    name: str
    bucket: str
    prefix: str = ""
    mode: Mode = Mode.WRITE_BACK
    order: Order = Order.NODE
    ack: Level = Level.LOCAL
    markers: tuple[str, ...] = DEFAULT_MARKERS
    release_seconds: float = 3600.0

    @property
    def run(self) -> str:
        """Its name in the catalog and the status."""
        return f"{MOUNT_MARK}{self.name}"

    def is_reserved(self, key: str) -> bool:
        """Return whether a key, or a common prefix, is that of our own notes."""
        return key.startswith(f"{self.prefix}{RESERVED_SEGMENT}/")

    @property
    def behind_reserved(self) -> str:
        """A key after all names of our own notes, and before most other keys."""
        return f"{self.prefix}{RESERVED_SEGMENT}/~"

    def covers(self, bucket: str, key: str) -> bool:
        return bucket == self.bucket and key.startswith(self.prefix)

    def is_marker(self, key: str) -> bool:
        """Return whether the object under ``key`` may speak of objects of other nodes."""
        last = key.rstrip("/").rpartition("/")[2]
        return any(fnmatchcase(last, glob) for glob in self.markers)


def is_mount(run: str) -> bool:
    """Return whether the catalog's ``run`` is a mount of the S3 door."""
    return run.startswith(MOUNT_MARK)


_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True)  # made once


@dataclass(frozen=True, slots=True)
class Head:
    """The description of an object besides its bytes: S3's content headers and user metadata.

    ``headers`` are by their names in lower case, ``metadata`` without ``x-amz-meta-``,
    ``checksums`` in base64 by their algorithms as the client declared them (``CRC32``); of an
    upload that is not complete their types by them (``COMPOSITE``).
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)

    def as_text(self) -> str:
        fields = {
            "headers": dict(self.headers),
            "metadata": dict(self.metadata),
            "checksums": dict(self.checksums),
        }
        return _ENCODER.encode(fields)

    @classmethod
    def of_text(cls, text: str) -> Head:
        return cls(**json.loads(text))


NO_HEAD = Head()


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """One version of a key, or its deletion.

    Attributes:
        version: Grows with every acknowledgement on this node.
        save: The number of the mount's save.
        run: See ``Mount.run``.
        etag: Without quotes, and for life.
        part_sizes: Of a multipart upload, in order; empty for an object that was put whole.
        follows: The highest version that was acknowledged before this one's last byte came.
        base: The bucket's ETag that this version may replace: empty for none there, None where
            nobody has looked yet.
        remote_etag: What the bucket calls it, once it is there; empty for a deletion.
        epoch: Of other nodes' order, which it belongs to.
        waits: What it waits for at other nodes; see ``Ordering`` of ``objects.ordering``.
        acknowledged_at: By the clock of the bucket's store; None where that was not known.
        conditional: The client said what it may replace.
        stamped: The version that its stamp names, where that is not its own: it was taken back
            from a file, which knew only what had come before it.
        request: Of a deletion that the bucket has no record of: the first of those deleted with it.
    """

    version: int
    save: int
    run: str
    key: str
    deleted: bool
    size_bytes: int
    digest: int
    etag: str
    head: Head
    part_sizes: tuple[int, ...]
    committed_at: float
    follows: int
    state: ObjectState = ObjectState.DIRTY
    base: str | None = None
    remote_etag: str | None = None
    epoch: str | None = None
    waits: str | None = None
    acknowledged_at: float | None = None
    conditional: bool = False
    stamped: int | None = None
    request: int | None = None

    @property
    def stamp_version(self) -> int:
        """Its name in the bucket's stamp: of a rebuilt catalog, as it was before."""
        return self.stamped or self.version

    @property
    def shown(self) -> bool:
        """Whether the bucket shows it, or for a deletion nothing."""
        return self.state is ObjectState.CLEAN

    @property
    def pieces(self) -> int:
        """How many shards its bytes are."""
        return 0 if self.deleted else max(1, len(self.part_sizes))

    @property
    def context(self) -> dict[str, Any]:
        """The ids that an error about it names."""
        return {"run": self.run, "name": self.key}


def piece_name(version: int, number: int) -> str:
    """Return the name of the shard that is piece ``number``, from 1, of a version."""
    return f"{version:016x}/{number:05d}"


def placed_piece(name: str) -> tuple[int, int] | None:
    """Return version and number of the piece that is called ``name``; None of an upload's."""
    version, _, number = name.partition("/")
    return None if version.startswith("upload-") else (int(version, 16), int(number))


def upload_piece_name(upload_id: str, number: int) -> str:
    """Return the name of the shard that is part ``number`` of an upload that is not complete."""
    return f"upload-{upload_id}/{number:05d}"


def may_show(follows: int, unshown: Sequence[int]) -> bool:
    """Return whether a version may become visible in the bucket.

    Args:
        follows: Of the version.
        unshown: The versions of its mount that are not visible there yet, in any order.
    """
    return not any(version <= follows for version in unshown)


def etag_of(digest: int, nonce: str, parts: int = 0, md5: str | None = None) -> str:
    """Return the ETag of a new object: its MD5 where that is known, else what is no MD5.

    The number behind the dash tells clients so, as in the ETags of multipart uploads; whoever reads
    it finds the parts.

    Args:
        digest: CRC-64/NVME of all bytes.
        nonce: 16 hexadecimal digits, another for each put.
        parts: Of a multipart upload.
        md5: In hexadecimal, of an object that was put whole.
    """
    if md5 is not None and not parts:
        return md5
    return f"{to_hex(digest)}{nonce}-{max(1, parts)}"
