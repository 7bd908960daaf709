"""The messages on the socket between the process that decides and a carrier, as JSON by msgspec.

An error crosses by the name of its class, so that it is the same error on both sides.
"""

from __future__ import annotations

from typing import Any

from cachetier_client.bucket_format.uploads import ObjectInfo, UploadedPart, UploadPartRange
from msgspec import Struct, field, json

from cachetier.carriers.checked_file import DamagedError
from cachetier.carriers.stored_blocks import StoredBlocks
from cachetier.errors import CachetierError, error_kinds
from cachetier.remote.base import Condition
from cachetier.remote.settings import RemoteSettings

MESSAGE_BYTES = 512 << 10  # a part of 5 GiB has 1,280 digests


class Start(Struct, frozen=True, tag=True):
    """The first message of a carrier: what it connects to, and how many jobs come at once."""

    remote: RemoteSettings
    at_once: int
    connect_seconds: float
    read_seconds: float


class Job(Struct, frozen=True, tag=True):
    """One request with a part of a file as its body; the file's descriptor goes along.

    It is ``upload_part`` with an ``upload_id``, else ``put``. ``block_digests`` are those of the
    blocks of ``part``.
    """

    number: int
    remote: RemoteSettings
    key: str
    part: UploadPartRange
    block_digests: tuple[int, ...]
    digest: int
    upload_id: str | None = None
    upload_part: int = 0
    metadata: dict[str, str] | None = None
    condition: Condition | None = None
    headers: dict[str, str] | None = None

    @property
    def name(self) -> tuple[str, str, int]:
        """The name by which a repeated try of the same job is recognised."""
        return self.remote.bucket, self.key, self.part.start


class Fetch(Struct, frozen=True, tag=True):
    """One request for blocks of a shard, which come into the file whose descriptor goes along."""

    number: int
    remote: RemoteSettings
    key: str
    start: int
    blocks: StoredBlocks
    etag: str | None = None

    @property
    def name(self) -> tuple[str, str, int]:
        return self.remote.bucket, self.key, self.start


class Cut(Struct, frozen=True, tag=True):
    """Break off the job ``number``: it fails as on a broken connection."""

    number: int


class Failure(Struct, frozen=True):
    """An error: the name of its class, and what it says."""

    kind: str
    message: str
    hint: str = ""
    context: dict[str, Any] = field(default_factory=dict)
    retry_after_seconds: float | None = None
    errno: int | None = None

    @classmethod
    def of(cls, error: Exception) -> Failure:
        kind = type(error).__name__
        if isinstance(error, CachetierError):
            after = error.retry_after_seconds
            return cls(kind, error.message, error.hint, error.context, after)
        if isinstance(error, OSError):
            return cls("OSError", error.strerror or str(error), errno=error.errno)
        return cls(kind, str(error) if isinstance(error, DamagedError) else repr(error))

    def as_error(self) -> Exception:
        """Return the error that this describes; a defect is one of our base class."""
        if self.kind == DamagedError.__name__:
            return DamagedError(self.message)
        if self.errno is not None:
            return OSError(self.errno, self.message)
        kinds = {kind.__name__: kind for kind in error_kinds()}
        error = kinds.get(self.kind, CachetierError)(self.message, hint=self.hint)
        error.context.update(self.context)
        error.retry_after_seconds = self.retry_after_seconds
        return error


class Came(Struct, frozen=True, tag=True):
    """A block of the job ``number`` is in its file, and sound."""

    number: int
    block: int


class Done(Struct, frozen=True, tag=True):
    """How the job ``number`` ended, and for how long it read the disk."""

    number: int
    read_seconds: float
    part: UploadedPart | None = None
    stored: ObjectInfo | None = None
    failure: Failure | None = None


MESSAGES: json.Decoder[Start | Job | Fetch | Cut] = json.Decoder(Start | Job | Fetch | Cut)
REPLIES: json.Decoder[Came | Done] = json.Decoder(Came | Done)
