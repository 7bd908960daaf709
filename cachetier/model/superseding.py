"""Which of two writers of a key is newer, wherever they are: what may replace what in a bucket.

Of two plain puts the older one loses, as at S3. In this order: a put that is known to have replaced
the other is newer; else the time of the acknowledgement decides, in the clock of the *store*, as
the clocks of two nodes are never compared; if that does not decide, what is in the bucket stays.

Source: docs/design/0035-superseded-objects.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import Annotated

from cachetier_client.bucket_format.uploads import (
    ACKNOWLEDGED_KEY,
    PLACE_KEY,
    STORE_KEY,
    VERSION_KEY,
    ObjectInfo,
)
from cachetier_client.io.digests import digest_of, to_hex
from msgspec import Meta, Struct, json
from msgspec.structs import replace

MARGIN_SECONDS = 5.0  # what two readings of the store's clock may differ by
TRUNCATED_SECONDS = 1.0  # of what HTTP says of times
DELETED = ".cachetier/deleted/"
RECORD_KEPT_SECONDS = 14 * 86_400.0
VERSION_LIMIT = 10**15  # of what others say that we wrote


class Verdict(Enum):
    """The verdict on a version: it is written, it is dropped, or a person decides."""

    NEWER = auto()
    SUPERSEDED = auto()
    CONFLICT = auto()


@dataclass(frozen=True, slots=True)
class Stamp:
    """The node that acknowledged a version of a key or its deletion, and the time.

    Attributes:
        store_id: Of the cache directory; None where nobody says.
        version: What that called it.
        acknowledged_at: In the store's clock; None where that is unknown.
    """

    store_id: str | None = None
    version: int = 0
    acknowledged_at: float | None = None

    def as_metadata(self, key: str) -> dict[str, str]:
        at = self.acknowledged_at
        return {
            STORE_KEY: self.store_id or "",
            VERSION_KEY: str(self.version),
            PLACE_KEY: _place(key),
            **({ACKNOWLEDGED_KEY: f"{at:.3f}"} if at is not None else {}),
        }

    @classmethod
    def of(cls, info: ObjectInfo) -> Stamp:
        """Read what an object says, which anybody may have written.

        An object without a stamp of its own was acknowledged when the store says that it was
        written, or before; so was one that was copied from another key, metadata and all.
        """
        until = info.modified_at
        found = info.metadata
        version = _version(found.get(VERSION_KEY, ""))
        if found.get(PLACE_KEY) != _place(info.key) or version is None:
            return cls(acknowledged_at=until)
        at = _earliest(found.get(ACKNOWLEDGED_KEY), until)
        return cls(found.get(STORE_KEY), version, at)

    def is_of(self, other: Stamp) -> bool:
        """Return whether both are of one cache directory."""
        return self.store_id is not None and self.store_id == other.store_id

    def is_behind(self, other: Stamp) -> bool:
        """Return whether this directory went back in time: it had put ``other`` already."""
        return self.is_of(other) and other.version >= self.version


def judge(
    ours: Stamp,
    there: Stamp,
    *,
    replaces: bool,
    conditional: bool = False,
    margin_seconds: float = MARGIN_SECONDS,
) -> Verdict:
    """Return what becomes of a version where the bucket has another object under its key.

    A put that comes to the bucket at once finds what it was put over, as at S3, so the times need
    no margin then: who puts through one node what was just put through another replaces it.

    Args:
        ours: Of the version, or the deletion.
        there: Of the object in the bucket.
        replaces: The object is what the version was put over, by its ETag.
        conditional: The client named what the version may replace: it replaces nothing else.
        margin_seconds: How much later it has to be; none where it comes to the bucket at once.
    """
    if replaces or (ours.is_of(there) and there.version < ours.version):
        return Verdict.NEWER
    if conditional:
        return Verdict.CONFLICT
    return Verdict.NEWER if _is_later(ours, there, margin_seconds) else Verdict.SUPERSEDED


def is_deleted(ours: Stamp, deletion: Stamp) -> bool:
    """Return whether a put came before a ``deletion`` of its key, which a record tells of."""
    if ours.is_of(deletion) and deletion.version < ours.version:
        return False
    if ours.is_behind(deletion):
        return not _is_later(ours, deletion, MARGIN_SECONDS)
    return _is_later(deletion, ours, 0.0)


def _is_later(one: Stamp, other: Stamp, by_seconds: float) -> bool:
    if one.acknowledged_at is None or other.acknowledged_at is None:
        return False
    return one.acknowledged_at - other.acknowledged_at >= by_seconds


# --- records of deletions ------------------------------------------------------------------------


class DeletionRecord(Struct, frozen=True):
    """The result of a deletion request: the versions that its deletions got, by their keys."""

    store_id: str
    acknowledged_at: float
    versions: Annotated[dict[str, Annotated[int, Meta(ge=0, lt=VERSION_LIMIT)]], Meta(min_length=1)]

    def name(self, prefix: str) -> str:
        """Return the key of the record; by their keys, records are in the order of their times."""
        first = min(self.versions.values())
        return f"{records_behind(prefix, self.acknowledged_at)}-{self.store_id}-{first}.json"

    def as_bytes(self) -> bytes:
        return json.encode(self)

    @classmethod
    def of_bytes(cls, body: bytes, written_at: float) -> DeletionRecord:
        """Undo ``as_bytes``; nothing is deleted after the store says that it was ``written_at``.

        Raises:
            ValueError, RecursionError: It is no record.
        """
        record = _RECORDS.decode(body)
        at = min(record.acknowledged_at, written_at + TRUNCATED_SECONDS)
        return replace(record, acknowledged_at=at)


_RECORDS = json.Decoder(DeletionRecord)


def records_behind(prefix: str, at: float) -> str:
    """Return what the keys of records lie behind that tell of deletions from ``at`` on."""
    return f"{prefix}{DELETED}{max(0, int(at)):012d}"


def _place(key: str) -> str:
    return to_hex(digest_of(key.encode()))


def _version(text: str) -> int | None:
    sound = text.isascii() and text.isdigit() and len(text) < len(str(VERSION_LIMIT))
    return int(text) if sound else None


def _earliest(text: str | None, until: float | None) -> float | None:
    """Return when something was acknowledged, at the latest ``until`` the store wrote it."""
    try:
        at = float(text or "")
    except ValueError:
        return until
    if not math.isfinite(at):
        return until
    return at if until is None else min(at, until + TRUNCATED_SECONDS)
