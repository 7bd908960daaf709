"""The base class of wrappers: every method of a store is forwarded through one method."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

from cachetier_client.bucket_format.uploads import ObjectInfo, UploadedPart

from cachetier.remote.base import (
    Body,
    Condition,
    CopyRange,
    Headers,
    Into,
    ListedPage,
    Listing,
    Metadata,
    ObjectStore,
    room_of,
    size_of,
)

Operation = Literal[
    "head",
    "get",
    "read_into",
    "put",
    "create_upload",
    "upload_part",
    "copy_part",
    "list_parts",
    "complete_upload",
    "abort_upload",
    "list_uploads",
    "list",
    "delete",
    "check",
]
Answer = TypeVar("Answer")


class WrappedObjectStore:
    """An ``ObjectStore`` that forwards; ``_around`` says what happens around each call."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def _around(
        self, _operation: Operation, _size_bytes: int, call: Callable[[], Answer], /
    ) -> Answer:
        """Do ``call``, once or more often, and return its answer.

        The size is that of the body that a call carries: 0 where it has none, or where its answer
        is the body. Here the call is only forwarded.
        """
        return call()

    @property
    def keeps_digests(self) -> bool:
        return self._store.keeps_digests

    def head(self, key: str) -> ObjectInfo | None:
        return self._around("head", 0, lambda: self._store.head(key))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self._around("get", 0, lambda: self._store.get(key, start, length))

    def read_into(self, key: str, start: int, into: Into, etag: str | None = None) -> None:
        return self._around(
            "read_into", room_of(into), lambda: self._store.read_into(key, start, into, etag)
        )

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
        return self._around(
            "put",
            size_of(body),
            lambda: self._store.put(
                key,
                body,
                digest=digest,
                metadata=metadata,
                condition=condition,
                headers=headers,
            ),
        )

    def create_upload(
        self, key: str, metadata: Metadata | None = None, headers: Headers | None = None
    ) -> str:
        return self._around(
            "create_upload", 0, lambda: self._store.create_upload(key, metadata, headers)
        )

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        return self._around(
            "upload_part",
            size_of(body),
            lambda: self._store.upload_part(key, upload_id, number, body, digest=digest),
        )

    def copy_part(
        self, key: str, upload_id: str, number: int, source: CopyRange, *, digest: int
    ) -> UploadedPart:
        return self._around(
            "copy_part",
            0,
            lambda: self._store.copy_part(key, upload_id, number, source, digest=digest),
        )

    def list_parts(self, key: str, upload_id: str) -> dict[int, tuple[str, int]]:
        return self._around("list_parts", 0, lambda: self._store.list_parts(key, upload_id))

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, digest: int
    ) -> ObjectInfo:
        return self._around(
            "complete_upload",
            0,
            lambda: self._store.complete_upload(key, upload_id, parts, digest=digest),
        )

    def abort_upload(self, key: str, upload_id: str) -> None:
        return self._around("abort_upload", 0, lambda: self._store.abort_upload(key, upload_id))

    def list_uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        # Read to its end inside the call, as a failure half-way belongs to the call.
        found = self._around(
            "list_uploads", 0, lambda: builtins.list(self._store.list_uploads(prefix))
        )
        return iter(found)

    def list(self, prefix: str, delimiter: str | None = None) -> Listing:
        return self._around("list", 0, lambda: self._store.list(prefix, delimiter))

    def list_page(self, prefix: str, delimiter: str, after: str, limit: int) -> ListedPage:
        return self._around(
            "list", 0, lambda: self._store.list_page(prefix, delimiter, after, limit)
        )

    def delete(self, key: str, etag: str | None = None) -> None:
        return self._around("delete", 0, lambda: self._store.delete(key, etag))

    def check(self) -> None:
        # The store is looked up when it is called, as above: by then it may be another one.
        return self._around("check", 0, lambda: self._store.check())  # noqa: PLW0108
