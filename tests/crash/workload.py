"""A scripted life of a node, and what it was promised at every instant."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import BLOCK_BYTES

from cachetier.drain.schedule.tasks import Task, TaskKind
from cachetier.errors import BackpressureError, CachetierError, FencedError
from tests.fakes.fake_clock import FakeClock
from tests.stateful.model import OK, Model
from tests.stateful.node import Node

RUN = "run"
WORLD_SIZE = 2
STEPS = (1, 2)
NAMES = ("a", "b/c", "d")
KEYS = ("in/a", "in/b/c", "in/latest")
ENDLESS_TASKS = 200
Place = tuple[int, tuple[Any, ...]]  # how many calls came before, and the state of the dice
SMALL, LARGE, TWO_BLOCKS = 300, 70_000, BLOCK_BYTES + 5_000


@dataclass(frozen=True, slots=True)
class Promise:
    """What readers may rely on: ``before`` the call that is under way, or ``after`` it."""

    before: Model
    after: Model

    @classmethod
    def nothing(cls) -> Promise:
        return cls(Model(), Model())


class Workload:
    """Plays calls on a node and keeps its promise up to date."""

    def __init__(
        self, make_node: Callable[[], Node], clock: FakeClock, seed: int, *, overture: bool = True
    ) -> None:
        self._make_node = make_node
        self._clock = clock
        self._dice = random.Random(seed)
        self._saves = dict.fromkeys(STEPS, 0)
        self._played = 0
        self._overture = self._one_of_everything() if overture else []
        self.place: Place = self._played, self._dice.getstate()
        self.promise = Promise.nothing()
        self.node: Node
        self.make_room: Callable[[], None] | None = None

    def play(self, calls: int) -> None:
        """Play a life: its overture, if it has one, and then so many calls at random."""
        self.start()
        for _ in range(len(self._overture) + calls):
            self.play_next()

    def start(self) -> None:
        self.node = self._make_node()

    def play_next(self) -> None:
        """Make the next call, or the next few that belong together."""
        self.place = self._played, self._dice.getstate()
        at_random = self._played >= len(self._overture)
        call = self._any_call() if at_random else self._overture[self._played]
        call()
        self._played += 1

    def go_back_to(self, place: Place, promise: Promise, *, done: bool = False) -> None:
        """Let the next call be the one that began at ``place``: it was cut, and is made again.

        Until then readers get what there was before it, or after it. If it is ``done`` the next
        call is another.
        """
        self._played, state = place
        self._dice.setstate(state)
        if done:
            self._played += 1
            self._dice.random()
        self.place = self._played, self._dice.getstate()
        self.promise = promise

    def _any_call(self) -> Callable[[], None]:
        kinds = [
            self.put,
            self.put,
            self.put,
            self.seal,
            self.seal,
            self.abort,
            self.drain_one,
            self.drain_one,
            self.drain_one,
            self.drain_one,
            self.drain_all,
            self.evict,
            self.get,
            self.delete,
            self.save_again,
            self.restart,
            self.kill,
        ]
        return self._dice.choice(kinds)

    def _one_of_everything(self) -> list[Callable[[], None]]:
        def both_ranks(step: int) -> list[Callable[[], None]]:
            return [
                lambda: self._put(self._ids(step, 0), "a", SMALL),
                lambda: self._put(self._ids(step, 0), "d", SMALL),
                lambda: self._put(self._ids(step, 1), "b/c", LARGE),
                lambda: self._put(self._ids(step, 1), "b/c", LARGE),
                lambda: self._seal(self._ids(step, 0)),
                lambda: self._seal(self._ids(step, 1)),
            ]

        return [
            *both_ranks(1),
            *[self.drain_one] * 2,
            self.evict,
            self.drain_one,
            self.kill,
            self.drain_all,
            self.evict,
            self.get,
            lambda: self._put(self._ids(2, 0), "a", TWO_BLOCKS),
            lambda: self._put(self._ids(2, 1), "b/c", LARGE),
            self.drain_all,
            lambda: self._put(self._ids(2, 1), "b/c", LARGE),
            self.drain_all,
            lambda: self._abort(self._ids(2, 0)),
            lambda: self._delete(1),
            self.restart,
            *both_ranks(2),
        ]

    # --- calls -----------------------------------------------------------------------------------

    def put(self) -> None:
        ids = self._some_ids()
        size = self._dice.choice((0, SMALL, SMALL, LARGE, LARGE))
        self._put(ids, self._name_of(ids.rank), size)

    def seal(self) -> None:
        self._seal(self._some_ids())

    def abort(self) -> None:
        self._abort(self._some_ids())

    def delete(self) -> None:
        self._delete(self._dice.choice(STEPS))

    def drain_one(self) -> None:
        """Let the drain do its most urgent task, if there is any."""
        self._drain_one()

    def drain_all(self) -> None:
        """Let the drain go on to its end; what never ends for want of room gets some."""
        for count in itertools.count(1):
            if not self._drain_one():
                return
            if count % ENDLESS_TASKS == 0:
                assert self.make_room is not None, "the drain never ends"
                self.make_room()

    def _drain_one(self) -> bool:
        drain = self.node.real_drain
        task = drain.next_task()
        if task is not None:
            self._call(lambda model: self._drained(model, task), lambda: drain.perform(task))
        return task is not None

    def evict(self) -> None:
        """Try to evict every shard: only those that the remote holds may go."""
        for shard in self.node.rows():
            self._call(lambda _model: OK, lambda shard=shard: self.node.evict(shard))  # type: ignore[misc]

    def get(self) -> None:
        """Read everything: what is only remote comes back."""
        for step in STEPS:
            for name in NAMES:
                self._get(step, name)

    def save_again(self) -> None:
        """Let the next calls belong to a new save of a step."""
        step = self._dice.choice(STEPS)
        self._saves[step] += 1

    def restart(self) -> None:
        self.node.close()
        self.node = self._make_node()

    def kill(self) -> None:
        self.node.die()
        self.node = self._make_node()

    def _put(self, ids: SaveIds, name: str, size_bytes: int) -> None:
        data = self._dice.randbytes(size_bytes)
        self._call(lambda model: model.put(ids, name, data), lambda: self.node.put(ids, name, data))

    def _get(self, step: int, name: str) -> None:
        self._call(
            lambda model: OK if name in model.readable(RUN, step) else "not_found",
            lambda: self.node.get(RUN, step, name),
        )

    def _seal(self, ids: SaveIds) -> None:
        self._call(
            lambda model: model.seal(ids), lambda: self.node.checkpoints.seal(ids, WORLD_SIZE)
        )

    def _abort(self, ids: SaveIds) -> None:
        self._call(lambda model: model.abort(ids), lambda: self.node.checkpoints.abort_rank(ids))

    def _delete(self, step: int) -> None:
        self._call(
            lambda model: model.delete_step(RUN, step),
            lambda: self.node.checkpoints.delete_step(RUN, step),
        )

    # --- promises --------------------------------------------------------------------------------

    def _call(self, effect: Callable[[Model], str], act: Callable[[], object]) -> None:
        self._clock.advance(1.0)
        after = self.promise.before.copy()
        expected = effect(after)
        self.promise = Promise(self.promise.before, after)
        try:
            act()
            answer = OK
        except FencedError:
            raise
        except BackpressureError:
            if self.make_room is None:
                raise
            self.make_room()
            self.promise = Promise(self.promise.before, self.promise.before)
            return
        except CachetierError as error:
            answer = error.code
        assert answer == expected, f"answered {answer}, not {expected}"
        self.promise = Promise(after, after)

    def _drained(self, model: Model, task: Task) -> str:
        """Publish in ``model`` what ``task`` publishes: a save of which everything is durable."""
        save = model.save_named(RUN, task.claimant.step, task.claimant.save_id)
        if task.kind is TaskKind.PUBLISH and save is not None and save.whole():
            model.publish(save, RUN, task.claimant.step)
        return OK

    def _some_ids(self) -> SaveIds:
        return self._ids(self._dice.choice(STEPS), self._dice.randrange(WORLD_SIZE))

    def _ids(self, step: int, rank: int) -> SaveIds:
        number = self._saves[step]
        return SaveIds(RUN, step, f"save-{number}", rank, WORLD_SIZE, overwrite=number % 2 == 1)

    def _name_of(self, rank: int) -> str:
        """Choose a name: rank 0 has two to pack, and now and then one takes the other's."""
        own = ("a", "d") if rank == 0 else ("b/c",)
        return self._dice.choice(own if self._dice.random() < 0.9 else NAMES)


class ObjectWorkload(Workload):
    """Plays what programs do that speak S3, among steps that are saved beside."""

    def _any_call(self) -> Callable[[], None]:
        kinds = [
            *[self.put_object] * 4,
            self.delete_objects,
            *[self.upload] * 3,
            *[self.drain_one] * 4,
            self.drain_all,
            self.evict,
            self.get_objects,
            self.put,
            self.seal,
            self.restart,
            self.kill,
        ]
        return self._dice.choice(kinds)

    def _one_of_everything(self) -> list[Callable[[], None]]:
        first, second, third = KEYS
        return [
            lambda: self._put_object(first, SMALL),
            lambda: self._put_object(first, LARGE),
            self.drain_one,
            lambda: self._put_object(second, LARGE),
            lambda: self._delete_objects([first, third]),
            lambda: self._begin_upload(third),
            lambda: self._put_part(third, 2, LARGE),
            lambda: self._put_part(third, 7, SMALL),
            lambda: self._put_part(third, 2, LARGE),
            lambda: self._put_part(third, 5, LARGE),
            self.kill,
            lambda: self._complete_upload(third, [2, 7]),
            self.drain_all,
            self.evict,
            self.get_objects,
            lambda: self._put_object(third, LARGE),
            lambda: self._put_object(second, SMALL),
            lambda: self._begin_upload(first),
            lambda: self._put_part(first, 1, LARGE),
            lambda: self._abort_upload(first),
            self.restart,
            self.drain_all,
            lambda: self._delete_objects([second]),
        ]

    def put_object(self) -> None:
        self._put_object(self._dice.choice(KEYS), self._dice.choice((0, SMALL, SMALL, LARGE)))

    def delete_objects(self) -> None:
        self._delete_objects(self._dice.sample(KEYS, self._dice.choice((1, 2))))

    def upload(self) -> None:
        """Go on with an upload: begin it, put a part of it, or end it."""
        key = self._dice.choice(KEYS)
        parts = self.promise.before.uploads.get(key)
        if parts is None:
            return self._begin_upload(key)
        if len(parts) < 2 or self._dice.random() < 0.3:
            size = self._dice.choice((SMALL, LARGE))
            return self._put_part(key, self._dice.choice((1, 2, 5)), size)
        if self._dice.random() < 0.2:
            return self._abort_upload(key)
        listed = self._dice.sample(sorted(parts), self._dice.randint(1, len(parts)))
        return self._complete_upload(key, sorted(listed))

    def get_objects(self) -> None:
        """Read everything: what is only remote comes back."""
        for key in KEYS:
            assert self.node.objects.get(key) == self.promise.before.objects.get(key)

    def _put_object(self, key: str, size_bytes: int) -> None:
        data = self._dice.randbytes(size_bytes)
        self._call(
            lambda model: model.put_object(key, data), lambda: self.node.objects.put(key, data)
        )

    def _delete_objects(self, keys: Sequence[str]) -> None:
        self._call(
            lambda model: model.delete_objects(keys), lambda: self.node.objects.delete(*keys)
        )

    def _begin_upload(self, key: str) -> None:
        self._call(
            lambda model: model.begin_upload(key), lambda: self.node.objects.begin_upload(key)
        )

    def _put_part(self, key: str, number: int, size_bytes: int) -> None:
        data = self._dice.randbytes(size_bytes)
        self._call(
            lambda model: model.put_part(key, number, data),
            lambda: self.node.objects.part(key, self._upload_of(key), number, data),
        )

    def _complete_upload(self, key: str, numbers: Sequence[int]) -> None:
        def complete() -> None:
            objects, upload_id = self.node.objects, self._upload_of(key)
            _, parts = objects.objects.parts(objects.mount, key, upload_id)
            objects.complete(key, upload_id, [part for part in parts if part.number in numbers])

        self._call(lambda model: model.complete_upload(key, numbers), complete)

    def _abort_upload(self, key: str) -> None:
        objects = self.node.objects
        self._call(
            lambda model: model.abort_upload(key),
            lambda: objects.objects.abort_upload(objects.mount, key, self._upload_of(key)),
        )

    def _upload_of(self, key: str) -> str:
        objects = self.node.objects
        (upload,) = objects.objects.uploads(objects.mount, key)
        return upload.upload_id
