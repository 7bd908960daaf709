"""Answer the drain's requests and reports about packs."""

from __future__ import annotations

import json

from cachetier.drain.channel import Reply
from cachetier.drain.serve.context import Answers, DrainContext, Request
from cachetier.local.catalog.queries import small_of
from cachetier.model.packs import PACK_MEMBERS, Member, next_pack
from cachetier.model.stored import InPack, Stored


class PackReports:
    """Answers requests about packs. Thread-safe."""

    def __init__(self, context: DrainContext) -> None:
        self._context = context

    def answers(self) -> Answers:
        """Return what is answered, by the name of the request."""
        return {"pack_members": self._members, "packed": self._packed}

    def _members(self, request: Request) -> Reply:
        """Answer with the members of a rank's next pack; what is on its way already stays out."""
        number, rank = request["save"], request["rank"]
        busy = self._context.queue.names_in_flight(number)
        small = self._context.remote_state.wanted(number, PACK_MEMBERS + len(busy), small_of(rank))
        members = next_pack(Member.of(shard) for shard in small if shard.name not in busy)
        return Reply({}, json.dumps(members).encode())

    def _packed(self, request: Request) -> Reply:
        """Record a pack that was verified: all its members in one transaction."""
        name, size_bytes, digest = request["pack"]
        packs = {
            version: InPack(name, start, size_bytes, digest)
            for version, start in request["members"]
        }
        context = self._context
        recorded = context.remote_state.packed(packs, context.clock.now())
        context.stats.packed(len(recorded), size_bytes)
        for shard in recorded:
            seconds = request["seconds"] * shard.content.size_bytes / max(1, size_bytes)
            context.stats.drained(shard, Stored.raw(shard.content), seconds)
        context.changes.ring()
        return Reply({})
