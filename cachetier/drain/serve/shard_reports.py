"""Answer the drain's requests and reports about shards."""

from __future__ import annotations

import json

from cachetier_client.io import digests

from cachetier.drain.channel import Reply
from cachetier.drain.serve.context import Answers, DrainContext, Request
from cachetier.drain.upload.reports import finished_of_report, report_of_finished, stored_of_report
from cachetier.errors import NotFoundError
from cachetier.local.catalog import drain_writes, local_copies, queries
from cachetier.local.catalog.records import IncidentRecord
from cachetier.local.store import LocalCopy
from cachetier.model.lifecycle import ForbiddenTransitionError, ShardState
from cachetier.model.shard import Shard
from cachetier.model.stored import Codec


class ShardReports:
    """Answers requests about shards. Thread-safe."""

    def __init__(self, context: DrainContext) -> None:
        self._context = context
        self._store = context.store
        self._remote_state = context.remote_state

    def answers(self) -> Answers:
        """Return what is answered, by the name of the request."""
        return {
            "open": self._open,
            "parts": self._parts,
            "upload_begun": self._upload_begun,
            "upload_gone": self._upload_gone,
            "parts_done": self._parts_done,
            "verified": self._verified,
            "damaged": self._damaged,
            "lost": self._lost,
        }

    # --- what a worker needs to know -------------------------------------------------------------

    def _open(self, request: Request) -> Reply:
        shard = self._context.shard(request["version"])
        if not self._remote_state.wants(shard):
            raise NotFoundError(f"shard version {shard.version} is {shard.state}")
        copy = self._local_copy(shard)
        remote = self._context.remote
        progress = self._store.read(lambda sql: queries.progress_of(sql, shard.version, remote))
        fields = {
            "inline": copy.body is not None,
            "upload_id": progress.upload_id,
            "part_bytes": progress.part_bytes,
            "codec": progress.codec,
            "element_size": progress.element_size,
        }
        if copy.body is not None:
            return Reply(fields, copy.body)
        return Reply(fields, digests.pack(shard.content.block_digests), copy.descriptor)

    def _local_copy(self, shard: Shard) -> LocalCopy:
        try:
            copy = self._store.local_copy(shard)
        except FileNotFoundError:
            if self._context.shard(shard.version).file_id == shard.file_id:
                self._quarantine(shard, "its data file is missing")
            copy = None
        if copy is None:
            raise NotFoundError(f"shard version {shard.version} has no bytes here")
        return copy

    def _parts(self, request: Request) -> Reply:
        version, remote = request["version"], self._context.remote
        progress = self._store.read(lambda sql: queries.progress_of(sql, version, remote))
        parts = [report_of_finished(part) for part in progress.parts]
        return Reply({}, json.dumps(parts).encode())

    # --- reports on shards -----------------------------------------------------------------------

    def _upload_begun(self, request: Request) -> Reply:
        self._store.write(
            drain_writes.begin_upload,
            request["version"],
            self._context.remote,
            request["upload_id"],
            request["part_bytes"],
            Codec(request["codec"]),
            request["element_size"],
        )
        return Reply({})

    def _upload_gone(self, request: Request) -> Reply:
        self._store.write(drain_writes.forget_upload, request["version"], self._context.remote)
        return Reply({})

    def _parts_done(self, request: Request) -> Reply:
        parts = [finished_of_report(part) for part in request["parts"]]
        self._store.write(
            drain_writes.record_parts, request["version"], self._context.remote, parts
        )
        self._context.stats.progressed()
        return Reply({})

    def _verified(self, request: Request) -> Reply:
        version = request["version"]
        shard, stored = self._context.shard(version), stored_of_report(request["stored"])
        try:
            self._remote_state.verified(version, self._context.clock.now(), stored)
        except ForbiddenTransitionError:
            return Reply({})  # a reader met damage meanwhile: the shard stays quarantined
        self._context.stats.drained(shard, stored, request["seconds"], request.get("phases"))
        self._context.changes.ring()
        return Reply({})

    def _damaged(self, request: Request) -> Reply:
        self._quarantine(self._context.shard(request["version"]), request["message"])
        return Reply({})

    def _quarantine(self, shard: Shard, what: str) -> None:
        incident = IncidentRecord(
            code="integrity",
            message=f"shard {shard.name} is damaged on this node and was not sent: {what}",
            hint="Save the step again, or restore another one.",
            run=shard.run,
            step=shard.step,
            name=shard.name,
            rank=shard.rank,
        )
        now = self._context.clock.now()
        before = self._store.write(local_copies.record_damage, shard.version, incident, now)
        elsewhere = before.state is ShardState.CLEAN  # at another remote
        self._context.stats.quarantined(shard, what, lost=not elsewhere)
        if elsewhere:
            self._store.drop([before])  # only the local bytes go
        self._context.announce()

    def _lost(self, request: Request) -> Reply:
        """A shard that was verified is gone from the remote: send it again, if it is here."""
        shard = self._context.shard(request["version"])
        state = self._remote_state.lost(shard.version)
        new = self._context.stats.conflict(shard.version, request["message"])
        if new and self._remote_state.decides and state is not ShardState.DIRTY:
            hint = "Its bytes are not on this node any more: save the step again."
            self._context.add_incident(shard, request["message"], hint)
        return Reply({})
