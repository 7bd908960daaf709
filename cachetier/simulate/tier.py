"""One node of the simulation: its drive, its room, its saves and its drain."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cachetier_client.identity.names import SaveIds

from cachetier.local.files.space import Space
from cachetier.model.backpressure import WhenFull
from cachetier.model.lifecycle import KEPT_SAVES, OPEN_SAVES
from cachetier.model.policy import Policy, surplus
from cachetier.reclaim.evict import Watermarks
from cachetier.reclaim.loop import COLLECT_SECONDS
from cachetier.simulate.link import SimulatedLink
from cachetier.simulate.node_drain import DrainSetup, NodeDrain, World
from cachetier.simulate.saves import HeldSave, Saves

Ended = Callable[[bool, float], None]


@dataclass(frozen=True, slots=True)
class TierSetup:
    """The hardware of a node; ``nvme`` in bytes a second."""

    drain: DrainSetup
    nvme: float
    capacity_bytes: int
    policy: Policy
    when_full: WhenFull
    watermarks: Watermarks
    put_timeout_seconds: float


@dataclass(slots=True, eq=False)
class _Put:
    held: HeldSave
    rank: int
    name: str
    size_bytes: int
    ended: Ended
    asked_at: float
    waited_seconds: float = 0.0


class Tier:
    """Takes puts while there is room, drains them, and makes room again."""

    def __init__(
        self,
        world: World,
        setup: TierSetup,
        chance: random.Random,
        published: Callable[[str, int, str], None],
    ) -> None:
        """An empty node; ``published`` hears of each save (run, step, id) that it knows to be."""
        self.lost = False
        self._events = world.events
        self._setup = setup
        self.saves = Saves(setup.policy, published)
        self.space = Space(setup.capacity_bytes)
        self.drain = NodeDrain(world, setup.drain, self.saves, chance)
        self.drain.changed.listen(self._make_room)
        self._nvme = SimulatedLink(world.events, setup.nvme, setup.nvme)
        self._waiting: deque[_Put] = deque()
        if setup.policy.keep_local:
            world.events.after(COLLECT_SECONDS, self._trim)

    @property
    def waiting(self) -> int:
        """How many ranks wait for room."""
        return len(self._waiting)

    def lose(self) -> None:
        """The node is gone, with all it has."""
        self.lost = self.drain.lost = True
        self._waiting.clear()

    # --- puts ------------------------------------------------------------------------------------

    def put(self, ids: SaveIds, rank: int, name: str, size_bytes: int, ended: Ended) -> None:
        """Store a shard; ``ended`` hears whether it is safe here, and how long it waited for room.

        It hears nothing where the node is lost first.
        """
        now = self._events.seconds
        put = _Put(self.saves.admitted(ids, now), rank, name, size_bytes, ended, now)
        if not self._waiting and self.space.try_reserve(size_bytes):
            self._write(put)
            return
        self._waiting.append(put)
        patience = self._setup.put_timeout_seconds
        self._events.after(
            patience if self._setup.when_full is WhenFull.WAIT else 0.0, partial(self._expire, put)
        )
        self._make_room()
        self.drain.poke()  # what is unsealed may go as well now

    def seal(self, ids: SaveIds, rank: int, ranks_on_node: int) -> None:
        """Take the part of a rank as whole."""
        held = self.saves.admitted(ids, self._events.seconds)
        self.saves.seal(held, rank, ranks_on_node, self._events.seconds)
        self.drain.poke()

    def _write(self, put: _Put) -> None:
        put.waited_seconds = self._events.seconds - put.asked_at
        self._nvme.move(put.size_bytes, partial(self._commit, put))

    def _commit(self, put: _Put) -> None:
        if self.lost:
            return
        if put.held.save.state in OPEN_SAVES:
            now = self._events.seconds
            self.saves.commit(put.held, put.rank, put.name, put.size_bytes, now)
            put.ended(True, put.waited_seconds)
        else:
            self.space.release(put.size_bytes)
            put.ended(False, put.waited_seconds)
        self.drain.poke()

    def _refuse(self, put: _Put) -> None:
        self.saves.abort(put.held, put.rank)
        put.ended(False, self._events.seconds - put.asked_at)

    def _expire(self, put: _Put) -> None:
        if put in self._waiting:
            self._waiting.remove(put)
            self._refuse(put)

    # --- room ------------------------------------------------------------------------------------

    def _make_room(self) -> None:
        """Evict as the evictor does, then give up local-only steps as retention does."""
        space, marks = self.space, self._setup.watermarks
        target = space.limit_bytes - sum(put.size_bytes for put in self._waiting)
        if space.used_bytes > marks.high * space.capacity_bytes:
            target = min(target, int(marks.low * space.capacity_bytes))
        if space.used_bytes > target:
            for shard in self.saves.clean():
                if space.used_bytes <= target:
                    break
                space.release(self.saves.drop(shard.save, [shard.version]))
        self._admit()
        if self._waiting:
            self._give_up_local_only()
        self.drain.wants_room = bool(self._waiting)

    def _admit(self) -> None:
        for put in list(self._waiting):
            if self.space.try_reserve(put.size_bytes):
                self._waiting.remove(put)
                self._write(put)

    def _give_up_local_only(self) -> None:
        steps = self.saves.local_steps().values()
        for save in [save for of_run in steps for save in surplus(of_run, 1)]:
            if self._waiting and save.state in KEPT_SAVES:
                self.space.release(self.saves.drop(save.number))
                self._admit()
        if self._waiting and not self.saves.dirty_bytes():
            left = [step.save for of_run in self.saves.local_steps().values() for step in of_run]
            local_only = [save for save in left if save.state in KEPT_SAVES]
            if local_only:
                self.saves.want(min(local_only, key=lambda save: save.number).number)
                self.drain.poke()

    def _trim(self) -> None:
        if self.lost:
            return
        for steps in self.saves.local_steps().values():
            for save in surplus(steps, self._setup.policy.keep_local):
                self.space.release(self.saves.drop(save.number))
        self._events.after(COLLECT_SECONDS, self._trim)
