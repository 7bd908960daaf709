"""The one interface between cachetier and an object store.

``ObjectStore`` is narrow on purpose: what S3, SeaweedFS, Ceph and MinIO all do. Behaviour (retries,
pace, measurement) is added by wrappers that are ``ObjectStore`` themselves. Which kinds of stores
there are, and what else differs between them, is in ``scheme``.

A digest is our CRC-64/NVME of the whole object as an unsigned integer; an ETag is only a version
name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from cachetier_client.bucket_format.uploads import ObjectInfo, UploadedPart

Metadata = Mapping[str, str]
Headers = Mapping[str, str]


class Pieces(Protocol):
    """A body that is read while it is sent, from its begin for each send, two of them at once too.

    Its pieces last until the next one is asked for. What goes wrong with it is raised from between
    them: the request is broken off before its end then, so that no store accepts it, and the call
    raises the same.
    """

    @property
    def size_bytes(self) -> int:
        """The size of all pieces together."""

    def __iter__(self) -> Iterator[memoryview]:
        """Begin to read."""


Body: TypeAlias = bytes | memoryview | Pieces


def size_of(body: Body) -> int:
    return memoryview(body).nbytes if isinstance(body, bytes | memoryview) else body.size_bytes


def pieces_of(body: Body) -> Iterator[memoryview]:
    """Yield ``body`` piece by piece; what is in memory is one."""
    if isinstance(body, bytes | memoryview):
        return iter([memoryview(body).cast("B")])
    return iter(body)


@dataclass(frozen=True, slots=True)
class CopyRange:
    """A range of an object in the same bucket, of the very version ``etag``."""

    key: str
    etag: str
    start: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Condition:
    """When a put may take effect: only if the key is absent, or only over the version ``etag``."""

    absent: bool = False
    etag: str | None = None


IF_ABSENT = Condition(absent=True)


def if_match(etag: str) -> Condition:
    return Condition(etag=etag)


@dataclass(frozen=True, slots=True)
class Listing:
    """One listing: objects under the prefix, and common prefixes where a delimiter was given."""

    keys: tuple[str, ...]
    prefixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as a listing describes it; its ETag is as ``head`` gives it."""

    key: str
    size_bytes: int
    etag: str
    modified_at: float


@dataclass(frozen=True, slots=True)
class ListedPage:
    """A page of a listing; ``next_after`` is what the next one begins behind, None at the end."""

    objects: tuple[ListedObject, ...]
    prefixes: tuple[str, ...]
    next_after: str | None


def listing_of(keys: Iterable[str], prefix: str, delimiter: str | None) -> Listing:
    """Return the listing of a store that has these keys."""
    found: list[str] = []
    prefixes: dict[str, None] = {}
    for key in sorted(key for key in keys if key.startswith(prefix)):
        head, mark, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        if mark:
            prefixes[prefix + head + mark] = None
        else:
            found.append(key)
    return Listing(tuple(found), tuple(prefixes))


def page_of(
    objects: Iterable[ListedObject], prefix: str, delimiter: str, after: str, limit: int
) -> ListedPage:
    """Return a page of the listing of a store that has these objects."""
    found = {each.key: each for each in objects}
    whole = listing_of(found, prefix, delimiter)
    page = sorted(each for each in (*whole.keys, *whole.prefixes) if each > after)
    shown, more = page[:limit], len(page) > limit
    prefixes = set(whole.prefixes)  # an object may be called as its prefix is: `a/`
    listed = tuple(found[each] for each in shown if each not in prefixes)
    rest = tuple(each for each in shown if each in prefixes)
    return ListedPage(listed, rest, shown[-1] if more else None)


class RangeSink(Protocol):
    """Takes the bytes of a range as they come, so that no buffer has to hold them all."""

    @property
    def size_bytes(self) -> int:
        """How many it takes in all."""

    def restart(self) -> None:
        """They come from the first on: a read begins, for the first time or again."""

    def take(self, piece: bytes | memoryview) -> None:
        """Take the next bytes. What this raises, ``read_into`` raises."""


Into: TypeAlias = memoryview | RangeSink


def room_of(into: Into) -> int:
    return into.nbytes if isinstance(into, memoryview) else into.size_bytes


def deliver(pieces: Iterable[bytes | memoryview], into: Into) -> None:
    """Give ``into`` the bytes of ``pieces``, of which it has room for all."""
    if not isinstance(into, memoryview):
        into.restart()
        for piece in pieces:
            into.take(piece)
        return
    rest = into.cast("B")
    for piece in pieces:
        rest[: len(piece)] = piece
        rest = rest[len(piece) :]


class ObjectStore(Protocol):
    """Blocking, thread-safe access to one bucket. ``tests/conformance`` checks what is promised.

    - *Writes are atomic.* An object is replaced as a whole or not at all, and a reader gets one
      version or the other. Nothing shows of an upload before ``complete_upload``.
    - *Writes are visible at once.* After a write has returned, ``head``, ``get`` and ``list`` see
      it from every node, and the store keeps it.
    - *A condition of ``put`` has one winner*, however many nodes try. Nothing else arbitrates: a
      conditional completion of an upload has several winners on some stores.
    - *Errors.* Each call may raise ThrottledError or RemoteRefusedError, and has then done nothing,
      or TransientError: then the reply is lost, and the call has taken effect, or may still, or
      never will. Each write says below what to do about a lost reply. No call is repeated here.
    """

    @property
    def keeps_digests(self) -> bool:
        """True when ``head`` returns the store's own CRC-64/NVME, so that HEAD verifies an object.

        Where it is False (declared ``verify = readback``) ``head`` reports no digest and the caller
        reads the object back to verify it.
        """

    def head(self, key: str) -> ObjectInfo | None:
        """Describe the object under ``key``, or None when there is none.

        S3 answers HEAD without a code, so a bucket that is gone looks the same; ``check`` tells
        them apart.
        """

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return ``length`` bytes from ``start`` (the rest when None, for documents).

        Raises:
            IntegrityError: Without a length: the rest is larger than any document.
            ObjectMissingError: No such object.
            RemoteDigestError: The object has no such range, or the whole of it fails the store's
                digest.
            TransientError: The body broke off; read again.
        """

    def read_into(self, key: str, start: int, into: Into, etag: str | None = None) -> None:
        """Fill ``into`` with the bytes from ``start``, without a second copy of the range.

        After an error what it holds is undefined. Raises as ``get`` does, and SourceChangedError
        where ``etag`` is given and the object has another; the range is not checked against a
        digest, as no store keeps one of it.
        """

    def put(
        self,
        key: str,
        body: Body,
        *,
        digest: int,
        metadata: Metadata | None = None,
        condition: Condition | None = None,
        headers: Headers | None = None,
    ) -> ObjectInfo:
        """Store a whole object; the store checks ``digest`` where ``keeps_digests``.

        ``headers`` label it for others, by names of ``CONTENT_HEADERS``: whatever they say, its
        bytes come back as they were put. After a lost reply put again; under a condition, HEAD and
        compare what is there.

        Raises:
            PreconditionFailedError: ``condition`` did not hold. It may be our own earlier success.
            RemoteDigestError: The store received other bytes, and keeps the version before.
        """

    def create_upload(
        self, key: str, metadata: Metadata | None = None, headers: Headers | None = None
    ) -> str:
        """Begin a multipart upload with a full-object CRC-64/NVME and return its id.

        A lost reply may leave an upload behind that nobody knows: ``list_uploads`` finds it.
        """

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        """Send part ``number`` (from 1), of at least 5 MiB unless it is the last.

        A part that is sent again, as after a lost reply, replaces the one before.

        Raises:
            UploadGoneError: The upload id is unknown.
            RemoteDigestError: The store received other bytes.
        """

    def copy_part(
        self, key: str, upload_id: str, number: int, source: CopyRange, *, digest: int
    ) -> UploadedPart:
        """Make part ``number`` of bytes that the bucket holds already; none of them come by here.

        ``digest`` is what they are expected to be. A store may copy without judging it, so only
        the digest of the object that ``complete_upload`` makes says that they were.

        Raises:
            SourceChangedError: There is no such object or range, or it is another version.
            CopiesRefusedError: The store does not copy ranges, or not for us.
            UploadGoneError: The upload id is unknown.
            RemoteDigestError: The store says that other bytes were copied.
        """

    def list_parts(self, key: str, upload_id: str) -> dict[int, tuple[str, int]]:
        """Map each part number the store holds to its (etag, size_bytes).

        Raises:
            UploadGoneError: The upload id is unknown.
        """

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, digest: int
    ) -> ObjectInfo:
        """Make the parts one object, giving the full-object digest for the store to check.

        After a lost reply complete again.

        Raises:
            UploadGoneError: The upload id, or one of the parts, is unknown: HEAD whether an earlier
                call that seemed to fail has completed it, else begin again.
            RemoteDigestError: The store's digest of the whole differs; there is no new object.
            RemoteRefusedError: A part that is not the last is too small, or there is none.
        """

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Forget a multipart upload; an unknown id, as after a lost reply, is no error."""

    def list_uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield (key, upload_id) of unfinished multipart uploads under ``prefix``."""

    def list(self, prefix: str, delimiter: str | None = None) -> Listing:
        """List every key (and common prefix) under ``prefix``, paging through all of them."""

    def list_page(self, prefix: str, delimiter: str, after: str, limit: int) -> ListedPage:
        """List up to ``limit`` keys and common prefixes under ``prefix``, from behind ``after``.

        A common prefix that ``after`` begins with was on an earlier page. An empty ``delimiter`` is
        none.
        """

    def delete(self, key: str, etag: str | None = None) -> None:
        """Remove an object; a missing one, as after a lost reply, is no error.

        Args:
            key: Where.
            etag: Remove only this version of it. A store without such a condition removes any.

        Raises:
            PreconditionFailedError: Another version lies there; of some stores also for none.
        """

    def check(self) -> None:
        """Return when the bucket answers and may be read.

        Raises:
            RemoteRefusedError: Bucket missing, access denied, or credentials unusable.
        """
