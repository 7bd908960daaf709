"""Save parts straight to the bucket: put, seal and abort as the service does them.

A shard put this way is verified in the bucket, hence durable, when the put returns. A part of which
the service holds nothing is sealed here: its document is written, and the step published by
whoever's part is the last. Of any other a *pending seal* is left in the bucket, which the service
completes once it is back.

Source: docs/guarantees.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from cachetier_client.bucket_format import publication
from cachetier_client.bucket_format.documents import (
    PendingSeal,
    ShardEntry,
    read_unflushed,
)
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.publication import Claimant
from cachetier_client.bucket_format.stored import Content
from cachetier_client.calls.unflushed import merged, steps_in, verdict
from cachetier_client.clock import Clock
from cachetier_client.deadline import Deadline
from cachetier_client.errors import CachetierClientError, IncompleteError, SealedError
from cachetier_client.fallback.direct.parts import DirectRankPart
from cachetier_client.fallback.direct.publisher import DirectPublisher
from cachetier_client.fallback.direct.remote import DirectBucket
from cachetier_client.fallback.direct.uploads import DirectTarget, Uploads, content_of, is_there
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.buffers import Gathered
from cachetier_client.io.digests import to_hex
from cachetier_client.io.workers import Workers
from cachetier_client.results import UnflushedStep
from cachetier_client.transport.base import PutRequest, Reply

NOTES_SECONDS = 5.0


class Engine:
    """Saves to one bucket. Thread-safe.

    Args:
        objects: The bucket.
        workers: Threads to upload with.
        clock: For documents and pauses.
        is_back: Returns whether the service is: a large shard that begins its part turns back, and
            a step is not claimed any more.
    """

    def __init__(
        self,
        objects: DirectBucket,
        workers: Workers,
        clock: Clock,
        is_back: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_back = is_back
        self.address = objects.address
        self.objects = objects
        self._layout = Layout(self.address.prefix)
        self.uploads = Uploads(objects, workers, clock)
        self._publisher = DirectPublisher(objects, clock)
        self._claiming = DirectPublisher(objects.giving_up(is_back), clock)
        self._workers = workers
        self._warned: set[str] = set()

    # --- shards ----------------------------------------------------------------------------------

    def put(
        self, state: DirectRankPart, request: PutRequest, data: Gathered, deadline: Deadline
    ) -> Reply:
        """Store one shard; return its receipt.

        Raises:
            SealedError: The part is sealed, or the service holds other bytes under that name.
            SaveSupersededError, StepPublishedError, AbortedError: The save has no future.
            RemoteUnavailableError, RemoteRefusedError: The bucket does not take it.
        """
        content = content_of(data, self._workers)
        known = self.receipt_of_known(state, request.name, content)
        if known is not None:
            return known
        target = DirectTarget.of(self.key(state, request.name, deadline), state.part, content)
        self.uploads.put(target, data, deadline, lambda: state.turns_back(self._is_back))
        return self.stored(state, request, content)

    def receipt_of_known(self, state: DirectRankPart, name: str, content: Content) -> Reply | None:
        """Return the receipt of a shard that was put before; None for a new one.

        Raises:
            SealedError: Other bytes were, and cannot be replaced.
        """
        held = state.held.get(name)
        if held is not None:
            if (held.size_bytes, held.digest) == (content.size_bytes, to_hex(content.digest)):
                return _receipt(state, name, content, "local")
            raise SealedError(
                f"the service, which is away, holds other bytes of shard {name}",
                hint="Save the step again under another save_id, or wait for the service.",
            )
        stored = state.stored.get(name)
        if stored is not None and stored.content() == content:
            return _receipt(state, name, content, "durable")
        if state.final:
            raise SealedError(
                f"rank {state.part.rank} has sealed step {state.part.step}",
            )
        return None

    def key(self, state: DirectRankPart, name: str, deadline: Deadline) -> str:
        """Return the key of a shard, with the step claimed."""
        part, location = state.part, self._location(state, deadline)
        with state.locked(deadline):
            state.begun += 1  # from here on something may lie in the bucket
        return self._layout.shard_key(part.run, location, name)

    def stored(self, state: DirectRankPart, request: PutRequest, content: Content) -> Reply:
        """Note a shard that is verified in the bucket; return its receipt."""
        name, rank = request.name, state.part.rank
        entry = ShardEntry.of(name, rank, content, facts=request.facts)
        with state.lock:
            state.stored[name] = entry
        return _receipt(state, name, content, "durable")

    # --- parts -----------------------------------------------------------------------------------

    def seal(
        self, state: DirectRankPart, ranks_on_node: int | None, deadline: Deadline, *, follows: bool
    ) -> bool:
        """Seal a part; return whether that is done, False where the service has to complete it.

        Raises:
            IncompleteError: A shard is not in the bucket any more as it was verified.
            SaveSupersededError, StepPublishedError, AbortedError: The save has no future.
        """
        with state.locked(deadline):
            location = self._location(state, deadline)
            self._check_all(state, location, deadline)
            claimant, part = self._claimant(state), state.part
            document = publication.part_of(part, part.rank, state.stored.values())
            if state.held:
                if follows and state.stored and not state.pending:
                    self._publisher.check_growing(claimant, location, deadline)
                pending = PendingSeal(
                    run=document.run,
                    step=document.step,
                    rank=document.rank,
                    world_size=document.world_size,
                    save_id=document.save_id,
                    overwrite=state.part.overwrite,
                    ranks_on_node=ranks_on_node,
                    follows=follows,
                    shards=document.shards,
                    held=tuple(held for _, held in sorted(state.held.items())),
                )
                self._publisher.write_pending(pending, location, deadline)
                state.pending, state.final = True, not follows
                return False
            if state.sealed not in (None, document):
                self._publisher.check_growing(claimant, location, deadline)
            self._publisher.write_part(document, location, deadline, over=state.sealed)
            state.sealed, state.final = document, not follows
            self._publisher.publish(claimant, location, deadline)
            return True

    def abort(self, state: DirectRankPart, deadline: Deadline) -> None:
        """Delete what went straight to the bucket of a part that is not sealed for good."""
        with state.locked(deadline):
            if state.location is None:
                return
            if state.sealed is not None:
                self._publisher.check_growing(self._claimant(state), state.location, deadline)
                self._publisher.remove_part(state.part, state.location, deadline)
                state.sealed = None
            run, location = state.part.run, state.location
            names = list(state.stored)

            def delete(number: int) -> None:
                name = names[number]
                self.objects.delete(self._layout.shard_key(run, location, name), deadline)
                del state.stored[name]

            self._workers.for_each(len(names), delete)

    def _location(self, state: DirectRankPart, deadline: Deadline) -> str:
        with state.locked(deadline):
            if state.location is None:
                state.location = self._claiming.claim(self._claimant(state), deadline)
                state.address = self.address
                self._warn_of_unflushed(state.part, deadline)
            return state.location

    def _warn_of_unflushed(self, part: SaveIds, deadline: Deadline) -> None:
        """Warn, once a run, of steps from this one on that nodes hold and that are not durable."""
        if part.run in self._warned:
            return
        self._warned.add(part.run)
        newer: list[UnflushedStep] | None = None
        soon = deadline.at_most(NOTES_SECONDS)
        with suppress(CachetierClientError):
            keys = self.objects.list(self._layout.unflushed_prefix(part.run), soon)
            bodies = [(self.objects.get(key, soon), key) for key in keys]
            notes = [read_unflushed(found[0], key) for found, key in bodies if found is not None]
            steps = merged(step for note in notes for step in steps_in(note))
            newer = [each for each in steps if each.is_newer(part.step, part.save_id)]
        verdict(part.run, newer, found=True, ignored=False)  # it warns: nothing is refused here

    def _claimant(self, state: DirectRankPart) -> Claimant:
        return Claimant.of(state.part, state.started_at)

    def _check_all(self, state: DirectRankPart, location: str, deadline: Deadline) -> None:
        shards, part = list(state.stored.items()), state.part
        lost: list[str] = []

        def look(number: int) -> None:
            name, entry = shards[number]
            key = self._layout.shard_key(part.run, location, name)
            if not is_there(self.objects.head(key, deadline), part.save_id, entry.content()):
                lost.append(name)

        self._workers.for_each(len(shards), look)
        for name in lost:
            del state.stored[name]
        if lost:
            raise IncompleteError(
                f"changed or missing in the bucket since verified: {', '.join(sorted(lost)[:5])}"
            )


def _receipt(state: DirectRankPart, name: str, content: Content, level: str) -> Reply:
    return {
        "run": state.part.run,
        "step": state.part.step,
        "name": name,
        "save_id": state.part.save_id,
        "size_bytes": content.size_bytes,
        "digest": to_hex(content.digest),
        "level": level,
    }
