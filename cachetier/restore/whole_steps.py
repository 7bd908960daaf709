"""Whole steps that somebody wants back on this node, one after the other, before they are read.

A node that was replaced, or whose cache had to let a step go, has it again while a job is still
starting. What is here stays as it is; the rest comes as readers would have it, and is kept whatever
``restore_keep`` says. The bytes go through the same link and pace as everybody's, a few shards at
a time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cachetier_client.bucket_format.documents import ShardSummary
from cachetier_client.clock import Clock
from cachetier_client.units import shown_size

from cachetier.errors import CachetierError, InvalidRequestError, NotFoundError
from cachetier.local.catalog import queries
from cachetier.local.store import Store
from cachetier.model.shard import Shard
from cachetier.restore.published import FoundStep
from cachetier.restore.restore import Restore
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

SHARDS_AT_ONCE = 4  # each comes over many connections; more would only share them
SHARD_SECONDS = 120.0  # to wait for room; its bytes may take longer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ComingBack:
    """What of a step is not here, and comes now."""

    shards: int
    size_bytes: int


class WholeSteps:
    """Brings steps back behind the caller. Thread-safe."""

    def __init__(self, store: Store, restore: Restore, clock: Clock) -> None:
        self._store = store
        self._restore = restore
        self._clock = clock
        self._stopping = threading.Event()
        self._turn = ThreadPoolExecutor(1, thread_name_prefix="whole-steps")

    def close(self) -> None:
        """Begin nothing more: shards that are on their way arrive, or end with the link."""
        self._stopping.set()
        self._turn.shutdown(wait=False, cancel_futures=True)

    def begin(self, run: str, step: int, ranks: Collection[int] = ()) -> ComingBack:
        """Have a step brought back, or what ``ranks`` put of it; return how much is not here.

        Raises:
            NotFoundError: No remote has published it.
            InvalidRequestError: None of ``ranks`` put anything, or the cache is smaller than what
                would come.
            RemoteError: No remote that has it answers.
        """
        found = self._restore.published.find(run, step)
        if found is None:
            raise NotFoundError(
                f"no remote has {run}/{step}",
                hint="What is not published yet is on the nodes that saved it.",
                run=run,
                step=step,
            )
        asked = [each for each in found.manifest.shards if not ranks or each.rank in ranks]
        if ranks and not asked:
            raise InvalidRequestError(
                f"these ranks put nothing into {run}/{step}",
                hint=f"It is of the ranks 0 to {found.manifest.world_size - 1}.",
            )
        wanted = self._not_here(found, asked)
        size_bytes = sum(each.size_bytes for each in wanted)
        if size_bytes > self._store.space.limit_bytes:
            raise InvalidRequestError(
                f"{shown_size(size_bytes)} would come, and the cache has room for "
                f"{shown_size(self._store.space.limit_bytes)}",
                hint="Name the ranks that this node needs, or raise `capacity`.",
            )
        if wanted:
            self._turn.submit(self._bring, found, wanted)
        return ComingBack(len(wanted), size_bytes)

    def _not_here(self, found: FoundStep, asked: Sequence[ShardSummary]) -> list[ShardSummary]:
        known = self._known(found)
        return [each for each in asked if each.name not in known or known[each.name].lacks_bytes]

    def _known(self, found: FoundStep) -> dict[str, Shard]:
        """Return the shards of the step that are in the catalog, by name."""
        manifest = found.manifest
        ids = manifest.run, manifest.step, manifest.save_id
        save = self._store.read(queries.save_named, *ids)
        shards = self._store.read(queries.shards_of, save.number) if save is not None else []
        return {shard.name: shard for shard in shards}

    def _bring(self, found: FoundStep, wanted: Sequence[ShardSummary]) -> None:
        """Bring what is ``wanted`` and tell how it ended, as nobody waits who would hear of it."""
        began_at = self._clock.monotonic()
        what = {"run": found.manifest.run, "step": found.manifest.step}
        shards: list[Shard] = []
        failure: Exception | None = None
        try:
            shards = self._brought(found, wanted)
        except Exception as error:
            failure = error
        if self._stopping.is_set():
            return
        if isinstance(failure, CachetierError):
            tell(log, events.STEP_NOT_RESTORED, **what, reason=failure.message)
        elif failure is not None:
            tell(log, events.STEP_NOT_RESTORED, **what, reason="a defect", error=failure)
        elif shards:
            size_bytes = sum(shard.content.size_bytes for shard in shards)
            seconds = self._clock.monotonic() - began_at
            done = {"shards": len(shards), "size_bytes": size_bytes, "seconds": seconds}
            tell(log, events.STEP_RESTORED, **what, **done)

    def _brought(self, found: FoundStep, wanted: Sequence[ShardSummary]) -> list[Shard]:
        """Return the shards that came; others had brought the rest meanwhile."""
        self._learn(found, wanted)
        names = {each.name for each in wanted}
        known = self._known(found).values()
        shards = [each for each in known if each.name in names and each.lacks_bytes]
        with ThreadPoolExecutor(SHARDS_AT_ONCE, thread_name_prefix="whole-step") as threads:
            list(threads.map(self._bring_one, shards))  # raises the first failure
        return shards

    def _learn(self, found: FoundStep, wanted: Sequence[ShardSummary]) -> None:
        """Have the catalog know what ranks put of whom it does not know all."""
        known = self._known(found)
        for rank in sorted({each.rank for each in wanted if each.name not in known}):
            if not self._stopping.is_set():
                self._restore.adopt_rank(found, rank)

    def _bring_one(self, shard: Shard) -> None:
        if not self._stopping.is_set():
            self._restore.bring_back(shard, SHARD_SECONDS)
