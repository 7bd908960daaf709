"""The drain of a replica without a process: remote state and publisher, one call after another."""

from __future__ import annotations

from cachetier_client.bucket_format.documents import ShardEntry
from cachetier_client.bucket_format.publication import Claimant
from cachetier_client.bucket_format.stored import Stored
from cachetier_client.bucket_format.uploads import object_metadata
from cachetier_client.clock import Clock
from cachetier_client.io.digests import digest_of

from cachetier.drain.publish.publisher import Ended, Located, Publisher
from cachetier.drain.serve.remote_state import RemoteState
from cachetier.errors import RemoteError
from cachetier.local.catalog import saves, shards
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.lifecycle import PartState, SaveState
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Bucket
from tests.stateful.reading import bytes_of


class FakeReplica:
    """Brings saves to a replica; a remote that is away ends a round, as it would."""

    def __init__(
        self, store: Store, bucket: Bucket, clock: Clock, remote_state: RemoteState
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._clock = clock
        self._remote_state = remote_state
        self._publisher = Publisher(bucket, clock)

    def drain_all(self) -> None:
        """Do what can be done now, for every save."""
        for save in self._remote_state.unfinished():
            try:
                self._advance(save)
            except RemoteError:
                return

    def _advance(self, save: Save) -> None:
        if save.state is SaveState.OPEN:
            self._bring(save)
        elif save.location is None:
            return
        elif save.state is SaveState.DELETED:
            location = save.location or self._publisher.location_of(self._claimant(save))
            if location is not None:
                self._publisher.delete(self._claimant(save), location, set)
            self._remote_state.removed(save.number)
        else:
            self._publisher.sweep(self._claimant(save), save.location, set)
            self._remote_state.swept(save.number)

    def _bring(self, save: Save) -> None:
        if self._remote_state.out_of_reach(save):
            self._remote_state.give_up(save.number, self._clock.now())
            return
        location = save.location
        if location is None:
            match self._publisher.claim(self._claimant(save)):
                case Located(location):
                    self._remote_state.locate(save.number, location)
                case Ended() as ended:
                    self._end(save, ended)
                    return
        assert location is not None
        for shard in self._remote_state.wanted(save.number, -1):
            self._send(shard, location)
        if not self._remote_state.wanted(save.number, -1):
            self._publish(save, location)

    def _send(self, shard: Shard, location: str) -> None:
        body = bytes_of(self._store, shard)
        if body is None or digest_of(body) != shard.content.digest:
            return
        key = self._bucket.layout.shard_key(shard.run, location, shard.name)
        metadata = object_metadata(
            shard.save_id, self._store.store_id, shard.version, shard.content
        )
        self._bucket.objects.put(key, body, digest=shard.content.digest, metadata=metadata)
        self._remote_state.verified(shard.version, self._clock.now(), Stored.raw(shard.content))

    def _publish(self, save: Save, location: str) -> None:
        unsound = self._store.read(lambda sql: shards.unsound_ranks(sql, save.number))
        parts = [
            part for part in self._remote_state.parts(save.number) if part.state is PartState.SEALED
        ]
        for part in parts:
            if part.uploaded or not part.final or part.rank in unsound:
                continue
            found = [
                shard
                for shard in self._store.read(lambda sql: shards.shards_of(sql, save.number))
                if shard.rank == part.rank
            ]
            entries = [ShardEntry.of(each.name, each.rank, each.content) for each in found]
            self._publisher.write_part(self._claimant(save), location, part.rank, entries)
            self._remote_state.part(save.number, part.rank, uploaded=True)
        if parts and all(part.uploaded for part in self._remote_state.parts(save.number)):
            ended = self._publisher.publish(self._claimant(save), location)
            if isinstance(ended, Ended):
                self._end(save, ended)

    def _end(self, save: Save, ended: Ended) -> None:
        self._remote_state.ended(save.number, ended.state, None, self._clock.now())

    def _claimant(self, save: Save) -> Claimant:
        return self._store.read(saves.claimant, save)
