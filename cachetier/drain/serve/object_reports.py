"""What the drain asks and reports of objects of the S3 door, as ``serve`` answers it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from cachetier_client.identity.names import MOUNT_MARK

from cachetier.drain import messages
from cachetier.drain.messages import LocalObject, LocalPiece, ObjectRequest, replied
from cachetier.drain.serve.context import DrainContext
from cachetier.errors import (
    IntegrityError,
    NotFoundError,
    PreconditionFailedError,
    RemoteRefusedError,
)
from cachetier.local.catalog import object_writes, objects, queries
from cachetier.local.catalog.records import IncidentRecord
from cachetier.model.lifecycle import ForbiddenTransitionError, ShardState
from cachetier.model.objects import ObjectState, ObjectVersion
from cachetier.model.shard import Shard

_REPLACED, _REFUSED = "replaces what is there", "sends it again, once the bucket takes it"


class ObjectReports:
    """Answers requests about objects. Thread-safe."""

    def __init__(self, context: DrainContext) -> None:
        self._context = context
        self._store = context.store
        self._remote = context.remote_state.remote
        self._stats = context.stats

    def answer(self, request: ObjectRequest) -> object:
        """Do what ``request`` asks, and return the reply that it names."""
        match request:
            case messages.OpenObject():
                return replied(request, self._open(request.version))
            case messages.ObjectLookedAt():
                self._store.write(object_writes.record_base, request.version, request.base)
            case messages.ObjectShown():
                self._shown(request)
            case messages.ObjectConflict():
                version = self._version(request.version)
                if request.refused:
                    what = f"the bucket does not take {version.key}: {request.message}"
                    self._conflict(version, RemoteRefusedError.code, what, _REFUSED)
                else:
                    self._conflict(version, PreconditionFailedError.code, request.message)
            case _:
                assert_never(request)
        return None

    def _version(self, number: int) -> ObjectVersion:
        """Return a version that is to be brought to the bucket, or raise NotFoundError."""
        version = self._store.read(objects.by_version, number)
        if version is None or version.state is not ObjectState.DIRTY:
            raise NotFoundError(f"version {number} is not to be drained any more")
        return version

    def _open(self, number: int) -> LocalObject:
        version = self._version(number)
        pieces = self._store.read(objects.pieces_of, number)
        if not _is_sound(version, pieces):
            what = f"{version.key} is damaged on this node: the bucket never shows it"
            self._conflict(version, IntegrityError.code, what)
            raise NotFoundError(what)
        progress = self._store.read(
            queries.progress_of, pieces[0].version if pieces else 0, self._remote
        )
        return LocalObject(
            version.deleted,
            version.etag,
            version.head.headers,
            version.head.metadata,
            version.base,
            tuple(
                LocalPiece(each.version, each.content.size_bytes, each.content.digest)
                for each in pieces
            ),
            progress.upload_id,
            progress.part_bytes,
        )

    def _shown(self, request: messages.ObjectShown) -> None:
        version = self._version(request.version)
        now = self._context.clock.now()
        try:
            removed = self._store.write(
                object_writes.record_shown, version.version, request.etag, self._remote, now
            )
        except ForbiddenTransitionError:
            # A reader met damage meanwhile: the bucket has the bytes, and this node cannot say so.
            what = f"{version.key} is damaged on this node, and sound in the bucket"
            self._conflict(version, IntegrityError.code, what)
            return
        self._store.drop(removed)
        self._stats.shown(version, request.seconds, request.phases)
        self._context.changes.ring()

    def _conflict(
        self, version: ObjectVersion, code: str, message: str, ours: str = _REPLACED
    ) -> None:
        """Let a person decide about a version: what follows it waits until then."""
        mount = version.run.removeprefix(MOUNT_MARK)
        hint = (
            f"What was put after it waits. Decide with `cachetier s3 keep ours {mount} KEY`, which "
            f"{ours}, or `cachetier s3 keep theirs {mount} KEY`, which drops ours."
        )
        incident = IncidentRecord(code, message, hint, version.run, 0, version.key)
        now = self._context.clock.now()
        self._store.write(object_writes.record_conflict, version.version, incident, now)
        self._stats.object_conflict(version, message)
        self._context.announce()


def _is_sound(version: ObjectVersion, pieces: Sequence[Shard]) -> bool:
    there = len(pieces) == version.pieces
    return there and all(each.state is ShardState.DIRTY for each in pieces)
