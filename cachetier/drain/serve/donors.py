"""Find in the catalog the donor of a shard: an object that has some of its bytes already.

First a *twin*: another shard of the same save with the same bytes, as parameters that all ranks
hold; it is copied whole. Else the shard of the same name in the run's save before. What is named
here was verified once; whether it still lies there, the drain finds out.
"""

from __future__ import annotations

from cachetier_client.io import digests

from cachetier.drain.channel import Reply
from cachetier.drain.serve.context import Answers, DrainContext, Request
from cachetier.local.catalog import drain_queries, queries
from cachetier.model.shard import Shard
from cachetier.model.stored import pack_frames


class Donors:
    """Answers what lies at the remote that a shard may be put together from. Thread-safe."""

    def __init__(self, context: DrainContext) -> None:
        self._context = context

    def answers(self) -> Answers:
        """Return what is answered, by the name of the request."""
        return {"donor": self._donor}

    def _donor(self, request: Request) -> Reply:
        shard = self._context.shard(request["version"])
        remote = self._context.remote
        found = self._context.store.read(lambda sql: drain_queries.donor_of(sql, shard, remote))
        if found is None:
            return Reply({"found": False})
        donor, stored = found
        location = self._location(donor)
        if location is None:
            return Reply({"found": False})
        fields = {
            "found": True,
            "run": donor.run,
            "location": location,
            "name": donor.name,
            "save_id": donor.save_id,
            "size_bytes": donor.content.size_bytes,
            "digest": donor.content.digest,
            "codec": stored.codec,
            "stored_bytes": stored.size_bytes,
            "stored_digest": stored.digest,
            "element_size": stored.element_size,
        }
        return Reply(fields, digests.pack(donor.content.block_digests) + pack_frames(stored.frames))

    def _location(self, donor: Shard) -> str | None:
        """Return where the remote has the donor's save."""
        save = self._context.store.read(
            lambda sql: queries.save_named(sql, donor.run, donor.step, donor.save_id)
        )
        there = self._context.remote_state.save(save.number) if save is not None else None
        return there.location if there is not None else None
