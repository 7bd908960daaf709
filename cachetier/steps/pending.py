"""The steps and objects that are not durable yet: what a flush waits for, and names if it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from cachetier_client.identity.names import is_of_run
from cachetier_client.units import counted, shown_size

from cachetier.errors import NotDurableError, NotFoundError
from cachetier.local.catalog import objects, saves
from cachetier.local.store import Store
from cachetier.model.objects import is_mount
from cachetier.steps.waits import AskBucket, Question

STEPS_LISTED = 20
STEPS_NAMED = 5


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step with something left to do; one that only waits to be published counts as a shard.

    Or a mount of the S3 door, whose objects count as shards of its step 0.
    """

    run: str
    step: int
    shards: int
    size_bytes: int

    def __str__(self) -> str:
        if is_mount(self.run):
            return f"{self.run} ({counted(self.shards, 'object')}, {shown_size(self.size_bytes)})"
        return f"{self.run}/{self.step} ({_counted(self)})"


@dataclass(frozen=True, slots=True)
class Pending:
    """The steps, oldest first, and how many ``puts`` still bring more; true while there is any."""

    steps: tuple[PendingStep, ...] = ()
    puts: int = 0

    def __bool__(self) -> bool:
        return bool(self.steps) or self.puts > 0

    @property
    def shards(self) -> int:
        return sum(step.shards for step in self.steps) + self.puts

    @property
    def size_bytes(self) -> int:
        return sum(step.size_bytes for step in self.steps)

    def __str__(self) -> str:
        named = [str(each) for each in self.steps[:STEPS_NAMED]]
        if len(self.steps) > STEPS_NAMED:
            named.append(f"{len(self.steps) - STEPS_NAMED} more")
        of_steps = f"{_counted(replace(self, puts=0))} of steps {', '.join(named)}"
        puts = f"{counted(self.puts, 'put')} under way"
        return " and ".join([of_steps] * bool(self.steps) + [puts] * bool(self.puts))

    def as_json(self) -> dict[str, Any]:
        """Return what ``flush`` answers; see docs/protocol.md."""
        return {
            "pending_shards": self.shards,
            "pending_bytes": self.size_bytes,
            "pending_steps": [asdict(step) for step in self.steps[:STEPS_LISTED]],
        }


def _counted(left: Pending | PendingStep) -> str:
    return f"{counted(left.shards, 'shard')}, {shown_size(left.size_bytes)}"


def pending_of(store: Store, run: str | None, step: int | None) -> Pending:
    """Return what is left of a step, of a run and its branches, or (None) of everything."""
    found = []
    for each in store.read(saves.backlog):
        save, shards = each.save, each.dirty_shards or int(each.whole)
        asked = (run is None or is_of_run(save.run, run)) and step in (None, save.step)
        if shards and asked:
            found.append(PendingStep(save.run, save.step, shards, each.dirty_bytes))
    for mount, listed, size_bytes in store.read(objects.unshown_by_mount):
        if run in (None, mount) and step is None:
            found.append(PendingStep(mount, 0, listed, size_bytes))
    return Pending(tuple(found))


def drained(
    store: Store, run: str | None, step: int | None, is_durable_elsewhere: Callable[[], bool]
) -> Question[Pending]:
    """Return the question whether nothing is left; after its time the answer is what is.

    What this node knows nothing of is not durable for that: the bucket is asked, and raises what
    ``is_durable_elsewhere`` does, or one of these:

    Raises:
        NotFoundError: Nobody knows it.
        NotDurableError: The bucket has not answered in time.
    """
    named = f"run {run}" if step is None else f"step {step} of run {run}"

    def is_known() -> bool:
        return run is None or store.read(saves.is_known, run, step)

    def ask() -> Pending:
        if is_durable_elsewhere():
            return Pending()
        hint = "List what there is with `cachetier ls`; flush a step on the node that has it."
        message = f"neither this node nor S3 knows {named}"
        raise NotFoundError(message, hint=hint, run=run, step=step)

    def look() -> Pending | AskBucket[Pending] | None:
        left = pending_of(store, run, step)
        if left:
            return left if store.fenced is not None else None
        return left if is_known() else AskBucket(ask)

    def late(seconds: float) -> Pending:
        left = pending_of(store, run, step)
        if left or is_known():
            return left
        raise NotDurableError(
            f"this node has nothing of {named}, and S3 has not answered in {seconds:g} s",
            hint="Check the name with `cachetier ls`, and S3 with `cachetier status`.",
            run=run,
            step=step,
        )

    return Question(("drained", run, step), look, late)
