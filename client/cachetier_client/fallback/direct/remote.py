"""A kind of remote as a direct save sees it: its address, and the calls on its bucket.

The scheme of a remote's URL says of which kind it is; ``KINDS`` has one entry for each kind that
``cachetier.remote.scheme`` has. The calls are those of ``cachetier.remote.base``, each with a
deadline and repeated until then, so that of several attempts an earlier one may have taken effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

from cachetier_client.bucket_format.uploads import ObjectInfo
from cachetier_client.clock import Clock
from cachetier_client.deadline import Deadline
from cachetier_client.fallback.direct.s3.address import S3Address

Piece = bytes | memoryview


class RemoteAddress(Protocol):
    """A bucket, where in it runs begin, and how it is reached; equal ones are the same."""

    @property
    def url(self) -> str:
        """The remote as the service's setting says it."""

    @property
    def prefix(self) -> str: ...

    @property
    def spread(self) -> bool:
        """Whether new saves spread their shards over several prefixes."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Return the remote that ``CACHETIER_REMOTE`` and ``CACHETIER_REMOTE_*`` name.

        Raises:
            ValueError: They name none.
        """

    @classmethod
    def from_hello(cls, hello: Mapping[str, Any]) -> Self | None:
        """Return the remote of which a service told; None if this client does not know such."""

    def completed(self, service: RemoteAddress) -> RemoteAddress:
        """Return this address, with what the service has found out of the same place."""

    def open(self, clock: Clock) -> DirectBucket:
        """Return the bucket, to which nothing is connected yet."""


class DirectBucket(Protocol):
    """One bucket. Thread-safe and fork-safe; nothing is connected before the first call.

    Every call may raise RemoteUnavailableError when the store does not do it before the deadline,
    and RemoteRefusedError when it will not do it at all.
    """

    @property
    def address(self) -> RemoteAddress: ...

    @property
    def keeps_digests(self) -> bool:
        """Whether ``head`` returns the store's own CRC-64/NVME; else bytes are read back."""

    def giving_up(self, gives_up: Callable[[], bool]) -> DirectBucket:
        """Return the same bucket, whose calls are not repeated any more once ``gives_up``."""

    def head(self, key: str, deadline: Deadline) -> ObjectInfo | None:
        """Describe an object; None if there is none."""

    def get(self, key: str, deadline: Deadline) -> tuple[bytes, str] | None:
        """Return a small object with its ETag; None if there is none."""

    def digest_read_back(self, key: str, deadline: Deadline) -> int | None:
        """Return the digest of what the store gives back; None if it gives nothing."""

    def put(
        self,
        key: str,
        body: Sequence[Piece],
        deadline: Deadline,
        *,
        digest: int,
        metadata: Mapping[str, str] | None = None,
        over: str | None = None,
    ) -> str:
        """Write an object where there is none, or over the version with ETag ``over``, at once.

        Returns:
            Its ETag.

        Raises:
            PreconditionFailedError: Another is there; it may be our own, of a lost reply.
        """

    def create_upload(self, key: str, metadata: Mapping[str, str], deadline: Deadline) -> str:
        """Begin an upload in parts, of which nothing shows before its end; return its id."""

    def upload_part(
        self,
        key: str,
        upload_id: str,
        number: int,
        body: Sequence[Piece],
        deadline: Deadline,
        *,
        digest: int,
    ) -> str:
        """Send a part; return its ETag.

        Raises:
            UploadGoneError: There is no such upload: ended by somebody, or completed.
        """

    def complete_upload(
        self,
        key: str,
        upload_id: str,
        parts: Sequence[tuple[str, int]],
        deadline: Deadline,
        *,
        digest: int,
        size_bytes: int,
    ) -> None:
        """Make the object of the parts, given as (ETag, digest); what is there then, HEAD tells.

        Raises:
            UploadGoneError: As ``upload_part``; an earlier attempt may have completed it.
        """

    def abort_upload(self, key: str, upload_id: str, deadline: Deadline) -> None:
        """Forget an upload; an unknown one is no error."""

    def delete(self, key: str, deadline: Deadline) -> None:
        """Remove an object; a missing one is no error."""

    def list(self, prefix: str, deadline: Deadline) -> list[str]:
        """Return all keys that begin with ``prefix``."""

    def close(self) -> None:
        """Let connections go."""


KINDS: dict[str, type[RemoteAddress]] = {"s3": S3Address}


def from_environment(environ: Mapping[str, str]) -> RemoteAddress | None:
    """Return the remote that the environment names; None if it names none.

    Raises:
        ValueError: It names something else.
    """
    url = environ.get("CACHETIER_REMOTE")
    kind = KINDS.get(url.partition("://")[0], S3Address) if url else None
    return kind.from_environment(environ) if kind is not None else None


def from_hello(hello: Any) -> RemoteAddress | None:
    """Return the remote that a service named in its greeting; None if it named none we know."""
    kind = KINDS.get(hello.get("scheme", "s3")) if isinstance(hello, Mapping) else None
    return kind.from_hello(hello) if kind is not None else None


def first_of(named: RemoteAddress | None, service: RemoteAddress | None) -> RemoteAddress | None:
    """Return what the environment names, else what the service does."""
    if named is None or service is None:
        return named or service
    return named.completed(service)
