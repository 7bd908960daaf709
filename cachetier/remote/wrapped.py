"""The base class of wrappers: every method of a store is forwarded through one method."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Concatenate, Literal, ParamSpec, TypeVar

from cachetier.remote.base import ObjectStore, room_of, size_of

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
_Given = ParamSpec("_Given")


def _forwarded(
    method: Callable[Concatenate[ObjectStore, _Given], Answer],
    operation: Operation,
    size_bytes: Callable[..., int] = lambda *_arguments: 0,
) -> Callable[Concatenate[WrappedObjectStore, _Given], Answer]:
    """Return ``method`` as wrappers have it; ``size_bytes`` is called with its first arguments.

    The store is looked up when it is called, as by then it may be another one.
    """
    name = method.__name__

    def forward(
        self: WrappedObjectStore, /, *arguments: _Given.args, **options: _Given.kwargs
    ) -> Answer:
        def call() -> Answer:
            return getattr(self._store, name)(*arguments, **options)  # type: ignore[no-any-return]

        return self._around(operation, size_bytes(*arguments), call)

    return forward


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

    head = _forwarded(ObjectStore.head, "head")
    get = _forwarded(ObjectStore.get, "get")
    read_into = _forwarded(
        ObjectStore.read_into, "read_into", lambda _key, _start, into, *_: room_of(into)
    )
    put = _forwarded(ObjectStore.put, "put", lambda _key, body: size_of(body))
    create_upload = _forwarded(ObjectStore.create_upload, "create_upload")
    upload_part = _forwarded(
        ObjectStore.upload_part, "upload_part", lambda _key, _id, _number, body: size_of(body)
    )
    copy_part = _forwarded(ObjectStore.copy_part, "copy_part")
    list_parts = _forwarded(ObjectStore.list_parts, "list_parts")
    complete_upload = _forwarded(ObjectStore.complete_upload, "complete_upload")
    abort_upload = _forwarded(ObjectStore.abort_upload, "abort_upload")
    list = _forwarded(ObjectStore.list, "list")
    list_page = _forwarded(ObjectStore.list_page, "list")
    delete = _forwarded(ObjectStore.delete, "delete")
    check = _forwarded(ObjectStore.check, "check")

    def list_uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        # Read to its end inside the call, as a failure half-way belongs to the call.
        found = self._around(
            "list_uploads", 0, lambda: builtins.list(self._store.list_uploads(prefix))
        )
        return iter(found)
