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
from cachetier.local.catalog import objects, uploads
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.model.lifecycle import ForbiddenTransitionError, ObjectState, ShardState
from cachetier.model.objects import ObjectVersion
from cachetier.model.shard import Shard

_REPLACED, _REFUSED = "replaces what is there", "sends it again, once the bucket takes it"


class ObjectReports:
    """Answers requests about objects. Thread-safe."""

    def __init__(self, context: DrainContext) -> None:
        self._context = context
        self._store = context.store
        self._remote = context.remote_state.remote
        self._stats = context.stats
        self._clock = context.store_clock

    def answer(self, request: ObjectRequest) -> object:
        """Do what ``request`` asks, and return the reply that it names."""
        match request:
            case messages.OpenObject():
                self._clock.learn(request.clock)
                return replied(request, self._open(request.version))
            case messages.ObjectShown():
                self._shown(request)
            case messages.ObjectSuperseded():
                self._superseded(request)
            case messages.ObjectConflict():
                version = self._version(request.version)
                if request.refused:
                    what = f"the bucket does not take {version.key}: {request.message}"
                    self._conflict(version, RemoteRefusedError.code, what, _REFUSED)
                elif request.damaged:
                    what = f"{version.key} is damaged on this node: the bucket never shows it"
                    self._conflict(version, IntegrityError.code, what)
                else:
                    self._conflict(version, PreconditionFailedError.code, request.message)
            case messages.OwnVersionSeen():
                self._store.write(objects.raise_versions, request.seen)
            case messages.DeletionsRecorded():
                self._store.write(objects.record_deletions_recorded, request.request)
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
        progress = self._store.read(
            uploads.progress_of, pieces[0].version if pieces else 0, self._remote
        )
        request, deletions = version.request, {}
        if request is not None:
            deletions = self._store.read(objects.deleted_with, request)
        at = version.acknowledged_at
        at = self._clock.acknowledged_at(number) if at is None else at
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
            self._context.mounts[version.run].prefix,
            version.stamp_version,
            at,
            version.committed_at,
            self._clock.is_from_before(at),
            version.conditional,
            not _is_sound(version, pieces),
            request,
            deletions,
        )

    def _shown(self, request: messages.ObjectShown) -> None:
        version = self._version(request.version)
        now = self._context.clock.now()
        try:
            removed = self._store.write(
                objects.record_shown, version.version, request.etag, self._remote, now
            )
        except ForbiddenTransitionError:
            # A reader met damage meanwhile, and the bucket has the bytes.
            why = "the bucket has it, and its bytes here are damaged"
            self._superseded(messages.ObjectSuperseded(version.version, why))
            return
        self._store.drop(removed)
        self._stats.shown(version, request.seconds, request.phases)
        self._context.changes.ring()

    def _superseded(self, request: messages.ObjectSuperseded) -> None:
        version = self._version(request.version)
        now = self._context.clock.now()
        self._store.drop(
            self._store.write(objects.record_superseded, version.version, request.reason, now)
        )
        self._stats.superseded(version, request.reason)
        self._context.changes.ring()

    def _conflict(
        self, version: ObjectVersion, code: str, message: str, ours: str = _REPLACED
    ) -> None:
        """Let a person decide about a version: what follows it under its key waits until then."""
        mount = version.run.removeprefix(MOUNT_MARK)
        hint = (
            "What is put under this key waits. Decide with "
            f"`cachetier s3 resolve ours {mount} KEY`, which {ours}, "
            f"or `cachetier s3 resolve theirs {mount} KEY`, which drops ours."
        )
        incident = IncidentRecord(code, message, hint, version.run, 0, version.key)
        now = self._context.clock.now()
        self._store.drop(self._store.write(objects.record_conflict, version.version, incident, now))
        self._stats.object_conflict(version, message)
        self._context.announce()


def _is_sound(version: ObjectVersion, pieces: Sequence[Shard]) -> bool:
    there = len(pieces) == version.pieces
    return there and all(each.state is ShardState.DIRTY for each in pieces)
