"""May a version of an object of the S3 door be written under its key, or be deleted there?

Its bytes go as they are, under the headers and the metadata that its client gave it. One piece that
is not large goes in one conditional put; several pieces go as one upload part each, so that the
object has the parts of the upload that it was, and none is read twice.

A version replaces only what is older than itself: see ``model.superseding``. Our own write, whose
reply was lost, is recognised by the stamp that it bears.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

from cachetier_client.bucket_format.stored import Stored
from cachetier_client.bucket_format.uploads import (
    DIGEST_KEY,
    ETAG_KEY,
    STORE_KEY,
    VERSION_KEY,
    ObjectInfo,
)

from cachetier.drain.upload.source import Lend
from cachetier.drain.upload.target import ConflictError, UploadTarget, VerifiedObject, is_verified
from cachetier.drain.upload.uploader import ROUNDS, UploadContext
from cachetier.errors import PreconditionFailedError, RemoteDigestError, RemoteError
from cachetier.model.objects import NOTHING_THERE, WHATEVER_IS_THERE
from cachetier.model.superseding import MARGIN_SECONDS, Stamp, Verdict, judge
from cachetier.remote.base import IF_ABSENT, Condition, ObjectStore, if_match


class SupersededError(Exception):
    """Something newer than a version lies under its key, or was deleted there."""


@dataclass(frozen=True, slots=True)
class ObjectTarget(UploadTarget):
    """The object to write under a key, and the one it replaces.

    ``base`` is None where that is not known.

    The metadata are the client's, and ours. ``conditional``: the client said what it may replace.
    ``margin_seconds``: see ``judge``. ``saw`` hears of a version of our own that this directory has
    not had yet. ``is_deleted`` is asked whether somebody deleted the key since, before anything is
    written where nothing lies.
    """

    stamp: Stamp = field(default_factory=Stamp)
    base: str | None = None
    conditional: bool = False
    margin_seconds: float = MARGIN_SECONDS
    saw: Callable[[int], None] = lambda _version: None
    is_deleted: Callable[[], bool] = lambda: False
    is_contended: ClassVar[bool] = True

    def look(
        self,
        store: ObjectStore,
        lend: Lend,
        _sent: Stored | None = None,
        answered: str | None = None,
    ) -> VerifiedObject | Condition:
        """Return the version as it lies there, verified; or the condition to write it under.

        ``answered`` is the ETag of the last write, as its answer said.

        Raises:
            SupersededError, ConflictError: See ``over``.
        """
        info, raw = confirmed_head(store, self.key, (answered, self.base)), Stored.raw(self.content)
        if info is None or not (self.is_folder(info) or self.wrote(info)):
            return self.over(info)
        if self.is_folder(info) or is_verified(store, info, raw.size_bytes, raw.digest, lend):
            return VerifiedObject(info.etag, raw)
        return if_match(info.etag)  # ours, and damaged on the way

    def is_folder(self, info: ObjectInfo) -> bool:
        """Return whether this is the mark of a folder, and ``info`` one too.

        pyarrow, for one, puts such marks. Stores that have folders themselves, as SeaweedFS, keep
        neither their metadata nor a digest; of no bytes there is none to hold against.
        """
        return self.key.endswith("/") and not self.size_bytes and not info.size_bytes

    def wrote(self, info: ObjectInfo) -> bool:
        """Return whether ``info`` is this very version, as far as its metadata can say.

        Objects that were put before there were stamps have none.
        """
        stamped = (STORE_KEY, VERSION_KEY) if STORE_KEY in info.metadata else ()
        names = ETAG_KEY, DIGEST_KEY, *stamped
        same = all(info.metadata.get(name) == self.metadata[name] for name in names)
        return same and info.size_bytes == self.size_bytes

    @property
    def first_condition(self) -> Condition | None:
        """The condition of a first write, before a look at the key: most keys are new.

        Raises:
            SupersededError: As ``over`` where nothing lies.
        """
        if self.base == WHATEVER_IS_THERE:
            return None
        return if_match(self.base) if self.base else self._if_absent()

    def over(self, info: ObjectInfo | None) -> Condition:
        """Return the condition to replace ``info`` under.

        Raises:
            SupersededError: It is newer, or was deleted since.
            ConflictError: It is not what a conditional put may replace.
        """
        if info is None:
            if self.conditional and self.base not in (None, NOTHING_THERE, WHATEVER_IS_THERE):
                raise ConflictError(f"{self.key} holds nothing in the bucket, {self._expected}")
            return self._if_absent()
        there = Stamp.of(info)
        if self.stamp.is_behind(there):
            self.saw(there.version)
        replaces = self.base in (info.etag, WHATEVER_IS_THERE)
        verdict = judge(
            self.stamp,
            there,
            replaces=replaces,
            conditional=self.conditional,
            margin_seconds=self.margin_seconds,
        )
        if verdict is Verdict.CONFLICT:
            what = f"{self.key} holds {info.etag} in the bucket"
            raise ConflictError(f"{what}, {self._expected}: somebody else changed it")
        if verdict is Verdict.SUPERSEDED:
            behind = self.stamp.is_behind(there)
            why = "this node put it before its disk went back in time" if behind else _WHY
            raise SupersededError(f"the bucket has {info.etag} under its key: {why}")
        return if_match(info.etag)

    def _if_absent(self) -> Condition:
        if self.base != WHATEVER_IS_THERE and self.is_deleted():
            raise SupersededError("its key was deleted since")
        return IF_ABSENT

    @property
    def _expected(self) -> str:
        return f"where {self.base} was before" if self.base else "where nothing was before"


_WHY = "it was put later, or nobody can say which of the two was"


def delete_object(context: UploadContext, target: ObjectTarget) -> None:
    """Delete what a deletion may, and look that it is gone; what is gone already is deleted.

    Only the version that was looked at goes: a deletion that arrives late, long after its caller
    gave up, would take what was put since.

    Raises:
        SupersededError: Something newer lies there; it was left alone.
        RemoteError: Try again later.
    """
    for _ in range(ROUNDS):
        info = confirmed_head(context.store, target.key, (target.base,))
        if info is None:
            return
        target.over(info)
        with suppress(PreconditionFailedError):
            context.store.delete(target.key, info.etag)
    raise RemoteError(f"{target.key} was deleted in the bucket, and is still there", key=target.key)


def confirmed_head(
    store: ObjectStore, key: str, known: Collection[str | None]
) -> ObjectInfo | None:
    """Return what lies under a key, as two answers say it: by it is decided, and it is remembered.

    A wrong ETag would be a conflict with nobody. That nothing is there a HEAD says of a bucket that
    is not there, too: a deletion would be taken for done. ``known`` are ETags that were said
    before, or that nothing was there.

    Raises:
        RemoteDigestError: Two answers differ: try again later.
        RemoteError: There is no second answer.
    """
    info = store.head(key)
    if (NOTHING_THERE if info is None else info.etag) in known:
        return info
    if info is not None:
        again = store.head(key)
        agrees = again is not None and again.etag == info.etag
    else:  # the mark of a folder is listed in ways of its own
        listed = () if key.endswith("/") else store.list_page(key, "", "", 1).objects
        agrees = not any(each.key == key for each in listed)
    if not agrees:
        raise RemoteDigestError(f"two answers of the store about {key} differ", key=key)
    return info
