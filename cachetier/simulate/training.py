"""A training run of the simulation: its ranks save, train on, and start again after a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cachetier_client.identity.names import SaveIds

from cachetier.local.catalog.figures import Dirty, DurableStep, OpenSave
from cachetier.local.catalog.figures import Run as KnownRun
from cachetier.model.lifecycle import SaveState
from cachetier.simulate.events import Events
from cachetier.simulate.scenario import ScenarioRun
from cachetier.simulate.tier import Tier
from cachetier.status.exposure import of_runs


@dataclass(slots=True)
class SaveRecord:
    """The outcome of one save; instants in seconds since the start.

    ``waited_seconds`` is how long the rank waited for room that waited longest in all.
    """

    ids: SaveIds
    began_at: float
    left: int
    acked_at: float | None = None
    durable_at: float | None = None
    waited_seconds: float = 0.0
    refused: int = 0
    lost: bool = False
    local_only: bool = False

    @property
    def state(self) -> str:
        if self.durable_at is not None:
            return "durable"
        if self.lost or self.refused:
            return "lost" if self.lost else "refused"
        return "local_only" if self.local_only else "open"


class SimulatedTraining:
    """One run on its ``nodes``, which the simulation replaces where one is lost."""

    def __init__(self, events: Events, run: ScenarioRun, nodes: list[Tier], ranks: int) -> None:
        self.run = run
        self.nodes = nodes
        self.records: list[SaveRecord] = []
        self.lost_seconds = 0.0
        self._events = events
        self._ranks = ranks  # of a node
        self._world_size = ranks * len(nodes)
        self._shard_bytes = run.checkpoint // (self._world_size * run.shards)
        self._step = 0
        self._starts = 1
        self._stopped = False
        events.after(run.first_at, partial(self._save, self._starts))

    # --- saving ----------------------------------------------------------------------------------

    def _save(self, start: int) -> None:
        if self._over(start) or (self.run.saves is not None and self._step >= self.run.saves):
            return
        self._step += 1
        ids = SaveIds(self.run.name, self._step, f"start-{start}", 0, self._world_size)
        record = SaveRecord(ids, self._events.seconds, self._world_size)
        self.records.append(record)
        for number, node in enumerate(self.nodes):
            for rank in range(number * self._ranks, (number + 1) * self._ranks):
                self._next_shard(record, start, node, rank, 0, 0.0)

    def _next_shard(
        self, record: SaveRecord, start: int, node: Tier, rank: int, shard: int, waited: float
    ) -> None:
        if shard == self.run.shards:
            node.seal(record.ids, rank, self._ranks)
            self._rank_ended(record, start, waited, refused=False)
            return

        def ended(taken: bool, waited_seconds: float) -> None:
            if self._over(start):
                return
            if taken:
                self._next_shard(record, start, node, rank, shard + 1, waited + waited_seconds)
            else:
                self._rank_ended(record, start, waited + waited_seconds, refused=True)

        node.put(record.ids, rank, f"rank-{rank}.{shard}", self._shard_bytes, ended)

    def _rank_ended(
        self, record: SaveRecord, start: int, waited_seconds: float, *, refused: bool
    ) -> None:
        record.left -= 1
        record.refused += refused
        record.waited_seconds = max(record.waited_seconds, waited_seconds)
        if not record.left:
            record.acked_at = self._events.seconds
            self._events.after(self.run.every, partial(self._save, start))

    def published(self, step: int, save_id: str) -> None:
        """A node has seen that a save is published."""
        for record in reversed(self.records):
            if (record.ids.step, record.ids.save_id) == (step, save_id):
                if record.durable_at is None:
                    record.durable_at = self._events.seconds
                return

    # --- a loss ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """A node is lost: nothing goes on before ``restart``."""
        self._stopped = True

    def restart(self, lost_at: float) -> None:
        """Go on from the newest durable step; what was trained since is lost."""
        self._stopped = False
        self._starts += 1
        durable = self._newest_durable()
        self._step = durable.ids.step if durable is not None else 0
        self.lost_seconds += lost_at - (durable.began_at if durable is not None else 0.0)
        for record in self.records:
            record.lost |= record.durable_at is None
        self._events.after(self.run.every, partial(self._save, self._starts))

    def _over(self, start: int) -> bool:
        return self._stopped or start != self._starts

    def _newest_durable(self) -> SaveRecord | None:
        return next((each for each in reversed(self.records) if each.durable_at is not None), None)

    # --- what losing a node would cost -----------------------------------------------------------

    def exposure_seconds(self) -> float:
        """Return how much training a node would take along now, as ``status`` has it."""
        self._look_at_policies()
        newest = self._newest_durable()
        durable = {}
        if newest is not None:
            number = self.records.index(newest)
            durable[self.run.name] = DurableStep(number, newest.ids.step, newest.began_at)
        saves = [
            OpenSave(
                number,
                self.run.name,
                each.ids.step,
                each.began_at,
                each.local_only,
                each.acked_at,
                each.acked_at or each.began_at,
                False,
                Dirty(),
            )
            for number, each in enumerate(self.records)
            if each.state in ("open", "local_only")
        ]
        run = KnownRun(self.run.name, 0.0)
        (found,) = of_runs([run], durable, saves, {}, self._events.seconds)
        return found.exposure_seconds

    def _look_at_policies(self) -> None:
        """See which saves a policy has kept from the bucket meanwhile."""
        for record in self.records:
            if record.state in ("open", "local_only"):
                record.local_only = _is_local_only(record, self.nodes)


def _is_local_only(record: SaveRecord, nodes: Sequence[Tier]) -> bool:
    saves = nodes[0].saves.of_step(record.ids.run, record.ids.step)
    mine = [save.state for save in saves if save.save_id == record.ids.save_id]
    return SaveState.LOCAL_ONLY in mine
