"""Whole steps that somebody wants back on this node, one after the other, before they are read.

A node that was replaced, or whose cache had to let a step go, has it again while a job is still
starting. What is here stays as it is; the rest comes as readers would have it, and is kept whatever
``restore_keep`` says. The bytes go through the same link and pace as everybody's, a few shards at
a time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from cachetier_client.bucket_format.documents import ShardSummary
from cachetier_client.clock import Clock
from cachetier_client.units import shown_size

from cachetier.errors import CachetierError, InvalidRequestError, NotFoundError, StoppingError
from cachetier.local.catalog import saves, shards
from cachetier.local.store import Store
from cachetier.model.shard import Shard
from cachetier.restore.published import FoundStep
from cachetier.restore.restore import Restore
from cachetier.steps.waits import Question
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

SHARDS_AT_ONCE = 4  # each comes over many connections; more would only share them
SHARD_SECONDS = 120.0  # to wait for room; its bytes may take longer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemainingShards:
    """The part of a step that is not here and is being fetched."""

    shards: int
    size_bytes: int

    @classmethod
    def of(cls, wanted: Sequence[ShardSummary]) -> RemainingShards:
        return cls(len(wanted), sum(each.size_bytes for each in wanted))


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """A request for a step, or for the shards of some of its ranks."""

    run: str
    step: int
    ranks: frozenset[int]


class WholeSteps:
    """Brings steps back behind the caller. Thread-safe.

    Args:
        store: What is here.
        restore: Brings shards.
        clock: For what is told.
        on_ended: Called when a step is here, or will not come.
    """

    def __init__(
        self,
        store: Store,
        restore: Restore,
        clock: Clock,
        on_ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._restore = restore
        self._clock = clock
        self._on_ended = on_ended
        self._stopping = threading.Event()
        self._turn = ThreadPoolExecutor(1, thread_name_prefix="whole-steps")
        self._coming: dict[RestoreTarget, Future[None]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Begin nothing more: shards that are on their way arrive, or end with the link."""
        self._stopping.set()
        self._turn.shutdown(wait=False, cancel_futures=True)

    def is_coming(self, run: str, step: int) -> bool:
        """Return whether a step is being brought, or will be after others."""
        with self._lock:
            coming = [each for each, end in self._coming.items() if not end.done()]
        return any((each.run, each.step) == (run, step) for each in coming)

    def begin(self, run: str, step: int, ranks: Collection[int] = ()) -> RemainingShards:
        """Have a step brought back, or what ``ranks`` put of it; return how much is not here.

        Raises:
            NotFoundError: No remote has published it.
            InvalidRequestError: None of ``ranks`` put anything, or the cache is smaller than what
                would come.
            RemoteError: No remote that has it answers.
        """
        asked = RestoreTarget(run, step, frozenset(ranks))
        return self._begun(asked, *self._sought(asked))[0]

    def restored(
        self, run: str, step: int, ranks: Collection[int] = ()
    ) -> Question[RemainingShards]:
        """Have a step brought back as ``begin`` does; return the question whether all is here.

        The answer is what is still to come, at the deadline, or what kept it from coming. Raises as
        ``begin`` does.
        """
        asked = RestoreTarget(run, step, frozenset(ranks))
        found, shards = self._sought(asked)
        coming, future = self._begun(asked, found, shards)

        def look() -> RemainingShards | None:
            if future is None:
                return coming
            if not future.done():
                return None
            future.result()
            return RemainingShards(0, 0)

        def late(_seconds: float) -> RemainingShards:
            return RemainingShards.of(self._not_here(found, shards))

        return Question(("restored", asked, future), look, late)

    def _sought(self, asked: RestoreTarget) -> tuple[FoundStep, list[ShardSummary]]:
        """Return the step as remotes have it, and which of its shards are meant."""
        run, step = asked.run, asked.step
        found = self._restore.published.find(run, step)
        if found is None:
            raise NotFoundError(
                f"no remote has {run}/{step}",
                hint="A step that is not published yet is only on the nodes that saved it.",
                run=run,
                step=step,
            )
        shards = found.manifest.shards
        meant = [each for each in shards if not asked.ranks or each.rank in asked.ranks]
        if asked.ranks and not meant:
            raise InvalidRequestError(
                f"these ranks put nothing into {run}/{step}",
                hint=f"The step has ranks 0 to {found.manifest.world_size - 1}.",
            )
        return found, meant

    def _begun(
        self, asked: RestoreTarget, found: FoundStep, shards: Sequence[ShardSummary]
    ) -> tuple[RemainingShards, Future[None] | None]:
        """Have what is not here brought, unless it comes already; return what that is, and its end.

        Raises:
            InvalidRequestError: The cache is smaller.
        """
        wanted = self._not_here(found, shards)
        coming, limit_bytes = RemainingShards.of(wanted), self._store.space.limit_bytes
        if coming.size_bytes > limit_bytes:
            raise InvalidRequestError(
                f"{shown_size(coming.size_bytes)} are to be restored, and the cache has room for "
                f"{shown_size(limit_bytes)}",
                hint="Name the ranks that this node needs, or raise `capacity`.",
            )
        with self._lock:
            self._coming = {each: end for each, end in self._coming.items() if not end.done()}
            if wanted and asked not in self._coming:
                self._coming[asked] = self._turn.submit(self._bring, found, wanted)
            return coming, self._coming.get(asked)

    def _not_here(self, found: FoundStep, shards: Sequence[ShardSummary]) -> list[ShardSummary]:
        known = self._known(found)
        return [each for each in shards if each.name not in known or known[each.name].lacks_bytes]

    def _known(self, found: FoundStep) -> dict[str, Shard]:
        """Return the shards of the step that are in the catalog, by name."""
        manifest = found.manifest
        ids = manifest.run, manifest.step, manifest.save_id
        save = self._store.read(saves.save_named, *ids)
        listed = self._store.read(shards.shards_of, save.number) if save is not None else []
        return {shard.name: shard for shard in listed}

    def _bring(self, found: FoundStep, wanted: Sequence[ShardSummary]) -> None:
        """Bring what is ``wanted``, and tell how it ended: perhaps nobody waits to hear of it."""
        began_at = self._clock.monotonic()
        what = {"run": found.manifest.run, "step": found.manifest.step}
        try:
            shards = self._brought(found, wanted)
            if self._stopping.is_set():
                raise StoppingError("the service stopped before all of the step was here")
        except StoppingError:
            raise
        except CachetierError as error:
            tell(log, events.STEP_NOT_RESTORED, **what, reason=error.message)
            raise
        except Exception as error:
            tell(log, events.STEP_NOT_RESTORED, **what, reason="a defect", error=error)
            raise
        else:
            if shards:
                size_bytes = sum(shard.content.size_bytes for shard in shards)
                seconds = self._clock.monotonic() - began_at
                done = {"shards": len(shards), "size_bytes": size_bytes, "seconds": seconds}
                tell(log, events.STEP_RESTORED, **what, **done)
        finally:
            self._on_ended()

    def _brought(self, found: FoundStep, wanted: Sequence[ShardSummary]) -> list[Shard]:
        """Return the shards that came; others had brought the rest meanwhile."""
        self._learn(found, wanted)
        names = {each.name for each in wanted}
        known = self._known(found).values()
        shards = [each for each in known if each.name in names and each.lacks_bytes]
        with (
            self._restore.pace.wanting(shards),
            ThreadPoolExecutor(SHARDS_AT_ONCE, thread_name_prefix="whole-step") as threads,
        ):
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
