"""Puts and deletions of whole objects, and waiting until the bucket shows them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

from cachetier_client.bucket_format.stored import Content

from cachetier.errors import InvalidRequestError, NotDurableError
from cachetier.local.catalog import objects
from cachetier.local.catalog.objects import (
    UNCONDITIONAL,
    CommittedObject,
    DeletedKeys,
    InBucket,
    KeyCondition,
    NewObject,
)
from cachetier.local.identity import FileMark, ObjectIdentity
from cachetier.local.store import Staged
from cachetier.model.levels import HERE, Level
from cachetier.model.lifecycle import ObjectState
from cachetier.model.objects import KEY_LIMIT_BYTES, NO_HEAD, Mount, etag_of
from cachetier.objects.base import PutAnswer, PutObject
from cachetier.objects.intake import ObjectIntake, piece_of, refuse_read_only
from cachetier.objects.ordering import Ordering, PlaceInOrder

LOOK_AGAIN_SECONDS = 2.0
NONCE_BYTES = 8

LookInBucket = Callable[[Mount, str], InBucket]


class ObjectPuts:
    """The putting side of ``Objects``. Thread-safe.

    ``look`` says what the bucket has under a key: asked only where a put has a condition, and this
    node does not know the key. ``hurry`` has the drain bring a mount first.
    """

    def __init__(
        self,
        intake: ObjectIntake,
        ordering: Ordering,
        look: LookInBucket,
        hurry: Callable[[str, None], None] = lambda _run, _step: None,
    ) -> None:
        self._intake = intake
        self._store = intake.store
        self._ordering = ordering
        self._look = look
        self._hurry = hurry

    def watermark(self, _mount: Mount) -> int:
        return self._store.read(objects.watermark)

    def commit(
        self,
        mount: Mount,
        put: PutObject,
        *,
        content: Content,
        bytes_of: Staged | bytes,
        timeout_seconds: float = 0.0,
    ) -> PutAnswer:
        condition = self._intake.checked(bytes_of, lambda: self.condition(mount, put))
        etag = etag_of(content.digest, nonce(), md5=put.md5)
        piece, at = piece_of(content, bytes_of), self._intake.store_clock.now()

        def mark() -> FileMark:
            of_bytes = content.size_bytes, content.digest, self._intake.clock.now()
            return ObjectIdentity(
                *(self._store.store_id, mount.run, put.key, *of_bytes),
                pieces=1,
                etag=etag,
                head=put.head,
                follows=put.follows,
                acknowledged_at=at,
            ).mark

        with self._ordering.before_commit(mount, [put.key]) as place:
            new = replace(_new_object(mount, put, content, etag, place), acknowledged_at=at)
            committed = self._intake.commit(
                *(mount, bytes_of, content, timeout_seconds, mark),
                lambda sql, now: objects.commit_object(sql, mount.run, new, piece, condition, now),
            )
        self._intake.store_clock.acknowledged(committed.version, at)
        return answer_of(committed, place)

    def delete(
        self, mount: Mount, keys: Sequence[str], condition: KeyCondition = UNCONDITIONAL
    ) -> list[PutAnswer]:
        refuse_read_only(mount)
        for key in keys:
            check_key(mount, key)
            condition = self._looked(mount, key, condition)
        with self._ordering.before_commit(mount, keys) as place:
            places = [place.of(mount, key) for key in keys]
            at = self._intake.store_clock.now()
            gone = NewObject("", NO_HEAD, 0, "", 0, 0, deleted=True, acknowledged_at=at)
            deletions = [
                replace(gone, key=key, epoch=epoch, waits=waits)
                for key, (epoch, waits) in zip(keys, places, strict=True)
            ]

            def write() -> DeletedKeys:
                of_mount = mount.run, deletions
                return self._intake.write(
                    mount,
                    lambda sql, now: objects.delete_keys(sql, *of_mount, now, condition),
                )

            deleted = self._intake.recorded(mount, len(keys), write)
        for each in deleted.versions:
            self._intake.store_clock.acknowledged(each.version, at)
        return [answer_of(each, place) for each in deleted.versions]

    def wait(self, mount: Mount, version: int, level: Level, timeout_seconds: float) -> None:
        if level in HERE:
            return

        def is_shown() -> bool:
            found = self._store.read(objects.by_version, version)
            if found is not None and found.state is ObjectState.CONFLICT:
                raise _not_shown(mount, f"{found.key} is in conflict, and waits for a person")
            return found is None or found.shown

        self._hurry(mount.run, None)
        if not self._intake.changes.wait_for(is_shown, timeout_seconds, LOOK_AGAIN_SECONDS):
            raise _not_shown(mount, f"not within {timeout_seconds:g} s")

    def condition(self, mount: Mount, put: PutObject) -> KeyCondition:
        """Return what a put asks of its key, with what the bucket has where only that knows.

        Raises:
            ReadOnlyMountError, InvalidRequestError: Nothing is put under this key.
            RemoteError: Only the bucket could say, and does not.
        """
        refuse_read_only(mount)
        check_key(mount, put.key)
        return self._looked(mount, put.key, put.condition)

    def _looked(self, mount: Mount, key: str, condition: KeyCondition) -> KeyCondition:
        if not condition.asks or self._store.read(objects.current, mount.run, key) is not None:
            return condition
        return replace(condition, looked=self._look(mount, key))


def check_key(mount: Mount, key: str) -> None:
    """Refuse a key that no object of a mount has.

    Raises:
        InvalidRequestError: It is none.
    """
    of_mount = key.startswith(mount.prefix) and not mount.is_reserved(key)
    if not of_mount or not 0 < len(key.encode()) <= KEY_LIMIT_BYTES:
        raise InvalidRequestError(f"{ascii(key)[:100]} is no key of the mount {mount.name}")


def nonce() -> str:
    """Return what makes an ETag another than that of any other put."""
    return secrets.token_hex(NONCE_BYTES)


def answer_of(committed: CommittedObject, place: PlaceInOrder) -> PutAnswer:
    of_object = committed.version, committed.etag, Level.LOCAL, place.kept
    return PutAnswer(*of_object, committed.checksums)


def _new_object(
    mount: Mount, put: PutObject, content: Content, etag: str, place: PlaceInOrder
) -> NewObject:
    epoch, waits = place.of(mount, put.key)
    of_bytes = etag, content.size_bytes, content.digest
    return NewObject(put.key, put.head, put.follows, *of_bytes, epoch=epoch, waits=waits)


def _not_shown(mount: Mount, why: str) -> NotDurableError:
    return NotDurableError(
        f"the object is safe on this node, but not visible in the bucket yet: {why}",
        run=mount.run,
    )
