"""Knowledge of steps at the durable remote: it has an age, is refreshed, and goes into the catalog.

The manifest of a step decides which save is the step. Other nodes publish, replace and delete, so
this node asks the manifest before it serves, lists, defends or refuses something on the word of its
catalog alone, and writes down what it reads at once (``model.checkpoint.learned_state``).

A caller waits for a refresh a quarter of a second at most, and not at all while the remote is away:
it answers from what is known, and says how old that is. All callers of a node share one request for
a step, and its answer counts even if nobody waited for it.

Whoever deletes a step writes its tombstone before objects go, and whoever replaces one publishes
first. So the manifest also says why an object that was verified is missing: it was deleted or
replaced, or else lost (the manifest publishes the save) or unpublished (it is gone, or claims the
step). Then there is an incident, what is here is sent again, and an unpublished step is published
again. Nothing is decided while the bucket itself is missing or cannot say.

Source: docs/design/0036-knowledge-has-an-age.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from cachetier_client.bucket_format.documents import (
    Manifest,
    ManifestState,
    SeenManifest,
    manifest_of,
)
from cachetier_client.clock import Clock
from cachetier_client.identity.places import has_one_step

from cachetier import callers
from cachetier.errors import (
    AbortedError,
    BackpressureError,
    CachetierError,
    FencedError,
    IntegrityError,
    NotFoundError,
    ObjectMissingError,
    RemoteError,
    SaveSupersededError,
    StepPublishedError,
)
from cachetier.local.catalog import copies, manifests, saves, shards
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save, ended_by
from cachetier.model.lifecycle import DURABLE_SAVES, LIVE_SAVES, SaveState
from cachetier.model.shard import Shard
from cachetier.remote.bucket import Remote
from cachetier.restore.replica_choice import Absences
from cachetier.telemetry import events
from cachetier.telemetry.events import of, tell

log = logging.getLogger(__name__)

FRESH_SECONDS = 5.0
FILE_FRESH_SECONDS = 0.2  # what stands for one step alone may be written again on any node
LISTED = -1  # stands for the list of a run's steps
WAIT_SECONDS = 0.25
LIST_SECONDS = 2.0  # a person waits
PROBE_SECONDS = 1.0  # between requests while the remote is away
THREADS = 8
ASKED_AT_ONCE = 64
REMEMBERED = 1024
LISTS_KEPT = 64
SWEPT_AT_ONCE = 32

Result = TypeVar("Result")
Step = tuple[str, int]

_WHO_DELETES = "Find out who deletes in the bucket: a person, a lifecycle rule, another program."


class Absence(StrEnum):
    DELETED = "deleted"
    REPLACED = "replaced"
    LOST = "lost"
    UNPUBLISHED = "unpublished"


_TEXT = {
    Absence.DELETED: "step {step} was deleted by another node",
    Absence.REPLACED: "save {save_id} of step {step} was replaced by another save",
    Absence.LOST: "objects of step {step} (save {save_id}) are missing in the bucket, though it is "
    "published: somebody removed them",
    Absence.UNPUBLISHED: "objects of step {step} (save {save_id}) are missing in the bucket, and "
    "nothing there says that it is published: somebody removed them, or they expired",
}


def max_age_of(run: str) -> float:
    """Return how old knowledge of a published step may be when it is served."""
    return FILE_FRESH_SECONDS if has_one_step(run) else FRESH_SECONDS


def absence_of(save: Save, seen: Manifest | None) -> Absence:
    """Return why an object of ``save`` is missing, given the manifest of its step."""
    ended = ended_by(save, seen)
    if ended is not None:
        return Absence.DELETED if ended is SaveState.DELETED else Absence.REPLACED
    published = seen is not None and seen.state is ManifestState.PUBLISHED
    return Absence.LOST if published else Absence.UNPUBLISHED


@dataclass(frozen=True, slots=True)
class Stale:
    """Knowledge that could not be refreshed; ``checked_at`` is None if nobody ever asked."""

    checked_at: float | None


@dataclass(frozen=True, slots=True)
class Look:
    """A manifest as it was last seen, without its shards; ``checked_at`` is UTC."""

    seen: SeenManifest | None
    asked_at: float
    checked_at: float


class Knowledge:
    """The knowledge of this node about steps at the durable remote. Thread-safe.

    Args:
        store: The catalog, which gets what is learned.
        durable: The durable remote.
        clock: For ages.
        on_change: Called when something was learned, there is an incident, or work for the drain.
        on_published: Called with a save that this node took part in, and that others published.
        is_cut_off: Says whether the circuit of the drain to the remote is open.
    """

    def __init__(
        self,
        store: Store,
        durable: Remote,
        clock: Clock,
        *,
        on_change: Callable[[], None] = lambda: None,
        on_published: Callable[[Save], None] = lambda _save: None,
        is_cut_off: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._durable = durable
        self._clock = clock
        self._on_change = on_change
        self.absences = Absences(clock)
        self._on_published = on_published
        self._is_cut_off = is_cut_off
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="knowledge")
        self._changed = threading.Condition()
        self._looks: dict[Step, Look] = {}  # the oldest first
        self._listed: dict[str, Collection[int]] = {}
        self._asking: set[Step] = set()
        self._begun_at = float("-inf")
        self._silent = False  # somebody waited in vain, and nothing was answered since
        self._closed = False
        self._passed_over: dict[Step, frozenset[int]] = {}

    def close(self) -> None:
        """Ask nothing more; requests under way end by themselves."""
        with self._changed:
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- its age ---------------------------------------------------------------------------------

    def look(self, run: str, step: int) -> Look | None:
        """Return the manifest of a step as it was last seen; None if nobody asked yet."""
        return self._looks.get((run, step))

    def is_fresh(self, run: str, step: int) -> bool:
        """Return whether nobody need ask about a published step now."""
        return self._is_known_since((run, step), self._clock.monotonic() - FRESH_SECONDS)

    def refresh(self, run: str, step: int, max_age_seconds: float = FRESH_SECONDS) -> Stale | None:
        """Know of a step what its manifest said so long ago at most; return Stale if that failed.

        Raises:
            CallerGoneError: The caller hung up meanwhile.
        """
        if self._refreshed([(run, step)], max_age_seconds):
            return None
        look = self._looks.get((run, step))
        return Stale(look.checked_at if look is not None else None)

    def refresh_listed(self, run: str, steps: Sequence[int]) -> bool:
        """Refresh what is known of ``steps``, the first ones first; return False if that was vain.

        A list of the run's steps spares the requests for those of which nothing is there any more.
        The answers that nobody waited for count at the next call.
        """
        due = [(run, step) for step in steps if not self.is_fresh(run, step)]
        ends_at = self._clock.monotonic() + WAIT_SECONDS
        if not due or not self._refreshed([(run, LISTED)], FRESH_SECONDS):
            return False
        left_seconds = max(0.0, ends_at - self._clock.monotonic())
        self._refreshed(due[:ASKED_AT_ONCE], FRESH_SECONDS, left_seconds)
        return True

    def listed(self, run: str, besides: Collection[int]) -> set[int] | None:
        """Return the steps of a run that the remote has but for ``besides``; None if it is silent.

        Of the newest the manifests are looked at, so that those that were deleted are left out.
        """
        ends_at = self._clock.monotonic() + LIST_SECONDS
        asked = self._refreshed([(run, LISTED)], FRESH_SECONDS, LIST_SECONDS)
        listed = self._listed.get(run) if asked else None
        if listed is None:
            return None
        steps = set(listed).difference(besides)
        newest = [(run, step) for step in sorted(steps, reverse=True)[:ASKED_AT_ONCE]]
        self._refreshed(newest, FRESH_SECONDS, max(0.0, ends_at - self._clock.monotonic()))
        return {step for step in steps if not self._is_deleted(run, step)}

    def _is_deleted(self, run: str, step: int) -> bool:
        look = self._looks.get((run, step))
        if look is None:
            return False
        return look.seen is None or look.seen.manifest.state is not ManifestState.PUBLISHED

    def _refreshed(
        self, steps: Sequence[Step], max_age_seconds: float, wait_seconds: float = WAIT_SECONDS
    ) -> bool:
        since = self._clock.monotonic() - max_age_seconds

        def settled() -> bool:
            due = [step for step in steps if not self._is_known_since(step, since)]
            away = bool(due) and self._is_away()
            for step in due:
                self._begin(step, away=away)
            return not due or away

        with self._changed:
            if not settled() and not callers.wait_for(self._changed, settled, wait_seconds):
                self._silent = True
            return all(self._is_known_since(step, since) for step in steps)

    def _is_known_since(self, step: Step, since: float) -> bool:
        look = self._looks.get(step)
        return look is not None and look.asked_at >= since

    def _is_away(self) -> bool:
        """Return whether nobody is to wait for the remote."""
        if not self._silent and self._is_cut_off():
            self._silent = True
        return self._silent or self._closed or self.absences.away(self._durable.name)

    def _begin(self, step: Step, *, away: bool) -> None:
        """Ask for a step in the background, unless that is under way, or enough is."""
        now = self._clock.monotonic()
        if self._closed or step in self._asking or len(self._asking) >= ASKED_AT_ONCE:
            return
        if away and (now - self._begun_at < PROBE_SECONDS or len(self._asking) >= THREADS // 2):
            return
        self._begun_at = now
        self._asking.add(step)
        self._threads.submit(self._ask, step)

    def _ask(self, step: Step) -> None:
        look, asked_at = self._looks.get(step), self._clock.monotonic()
        known = look.seen if look is not None else None
        try:
            if step[1] == LISTED:
                self._list(step[0])
            else:
                self._read(*step, known)
        except RemoteError:
            pass  # callers go by ``_is_away``
        except CachetierError:  # a damaged manifest, or a disk that takes no writes: nothing is new
            self._remember(step, known, asked_at)
        finally:
            with self._changed:
                self._asking.discard(step)
                self._changed.notify_all()

    def sweep(self) -> None:
        """Refresh some published steps that have bytes here, those not asked for longest first."""
        found = self._store.read(saves.saves_with_bytes)
        steps = {(save.run, save.step) for save in found if save.state in DURABLE_SAVES}
        looks = {step: self._looks.get(step) for step in steps if not self.is_fresh(*step)}
        asked_at = {step: look.asked_at if look else 0.0 for step, look in looks.items()}
        with self._changed:
            away = self._is_away()
            for step in sorted(asked_at, key=asked_at.__getitem__)[:SWEPT_AT_ONCE]:
                self._begin(step, away=away)

    def after_asking(
        self,
        run: str,
        step: int,
        call: Callable[[], Result],
        again: Callable[[], Result] | None = None,
    ) -> Result:
        """Do ``call``; if what is known of the step refuses it, ask, and do it (``again``).

        Raises:
            StepPublishedError, SaveSupersededError, AbortedError: It is refused all the same.
        """
        try:
            return call()
        except (StepPublishedError, SaveSupersededError, AbortedError) as refusal:
            stale = self.refresh(run, step, 0.0)
            if stale is not None:
                refusal.context["checked_at"] = stale.checked_at
                raise
            return (again or call)()

    # --- asking, and learning --------------------------------------------------------------------

    def manifest(self, run: str, step: int) -> Manifest | None:
        """Read the manifest of a step now, whatever its state, and learn from it.

        Raises:
            RemoteError: The durable remote cannot be asked.
            IntegrityError: It is no manifest of this step.
        """
        return manifest_of(self._read(run, step, None))

    def _read(self, run: str, step: int, known: SeenManifest | None) -> SeenManifest | None:
        """Read the manifest, or return ``known`` if that is what is there, and learn from it."""
        asked_at = self._clock.monotonic()
        before = self._store.read(manifests.settled, run, step)
        seen = self._answer(lambda: self._durable.bucket.manifest(run, step, known))
        if self._learn(run, step, manifest_of(seen), before):
            self._remember((run, step), seen, asked_at)
        return seen

    def _list(self, run: str) -> None:
        """Note of which steps of a run, that are published here, the bucket has nothing."""
        asked_at = self._clock.monotonic()
        there = set(self._answer(lambda: self._durable.bucket.steps(run)))
        for save in self._store.read(saves.saves_of_run, run):
            if save.state in DURABLE_SAVES and save.step not in there:
                self._remember((run, save.step), None, asked_at)
        self._listed[run] = there
        if len(self._listed) > LISTS_KEPT:
            del self._listed[next(iter(self._listed))]
        self._remember((run, LISTED), None, asked_at)

    def _answer(self, ask: Callable[[], Result]) -> Result:
        """Ask the durable remote, and note whether it answers."""
        try:
            answer = ask()
        except RemoteError:
            self.absences.note(self._durable.name)
            raise
        self.absences.forget(self._durable.name)
        self._silent = False
        return answer

    def _remember(self, step: Step, seen: SeenManifest | None, asked_at: float) -> None:
        with self._changed:
            if seen is not None:
                seen = replace(seen, manifest=replace(seen.manifest, shards=()))
            self._looks.pop(step, None)
            self._looks[step] = Look(seen, asked_at, self._clock.now())
            if len(self._looks) > REMEMBERED:
                del self._looks[next(iter(self._looks))]
            self._changed.notify_all()

    def _learn(
        self, run: str, step: int, seen: Manifest | None, before: Sequence[manifests.Settled]
    ) -> bool:
        """Write down what a manifest says; return False if ``before`` is not how it is any more.

        Then it may have been read before something else was learned.
        """
        if seen is None or not self._store.read(manifests.changes, seen):
            return self._store.read(manifests.settled, run, step) == before
        what = self._store.policy, seen, before, self._clock.now()
        try:
            learned = self._store.write(manifests.learn, *what)
        except (FencedError, BackpressureError):
            return True  # the disk takes nothing, which is told; the answer still counts
        if learned is None:
            return False
        self._store.drop(learned.removed)
        for save in learned.published:
            self._on_published(save)
        for save in learned.ended:
            tell(log, events.SAVE_ENDED_ELSEWHERE, state=save.state, **of(save))
        self._on_change()
        return True

    # --- the save that readers were told of ------------------------------------------------------

    def named(self, run: str, step: int, save_id: str) -> None:
        """Remember that ``latest`` named a save: readers of the step get that one.

        A newer one that is whole here, and not published yet, is passed over by them if ``latest``
        named the published one beside it.
        """
        found = self._store.read(saves.saves_of, run, step)
        whole = self._store.read(saves.whole_of, found)
        passed = {save.number for save in found if save.number in whole and save.save_id != save_id}
        with self._changed:
            self._passed_over.pop((run, step), None)
            if passed:
                self._passed_over[run, step] = frozenset(passed)

    def passed_over(self, run: str, step: int) -> frozenset[int]:
        """Return the numbers of the saves that readers of a step do not get: see ``named``."""
        return self._passed_over.get((run, step), frozenset())

    # --- objects that are missing ----------------------------------------------------------------

    def look_into(self, shard: Shard) -> Absence | None:
        """Act on it that the object of ``shard`` is missing; return why, None if that is over.

        Raises:
            RemoteError: The durable remote cannot say, or there is no bucket any more.
        """
        save = self._store.read(saves.save_by_number, shard.save)
        if save is None or save.state not in LIVE_SAVES:
            return None  # also of a mount: see ``mounted``
        self._durable.bucket.objects.check()  # a bucket that is gone looks the same
        try:
            absence = absence_of(save, self.manifest(save.run, save.step))
        except IntegrityError:  # whatever it was, the bytes here may be the only ones
            absence = Absence.LOST
        try:
            if absence in (Absence.LOST, Absence.UNPUBLISHED) and save.location is not None:
                self._send_again(shard, save, absence)  # else it is known from a replica alone
        except NotFoundError:
            return None  # replaced or deleted meanwhile
        return absence

    def error_of(self, shard: Shard) -> Exception | None:
        """Look into the missing object of a shard that is nowhere else; return what readers get.

        None where another look at the step helps. Raises as ``look_into`` does.
        """
        absence = self.look_into(shard)
        known = self._store.read(shards.shard_by_version, shard.version)
        if absence is None or (absence is Absence.REPLACED and known is None):
            return None
        message = _TEXT[absence].format(step=shard.step, save_id=shard.save_id)
        if absence in (Absence.DELETED, Absence.REPLACED):
            return NotFoundError(message, **shard.context)
        hint = f"{_WHO_DELETES} This node has no bytes of it: save the step again."
        return IntegrityError(f"{message}: {shard.name}", hint=hint, **shard.context)

    def _send_again(self, shard: Shard, save: Save, absence: Absence) -> None:
        message = _TEXT[absence].format(step=save.step, save_id=save.save_id)
        hint = f"{_WHO_DELETES} What is on this node is sent again."
        incident = IncidentRecord(ObjectMissingError.code, message, hint, save.run, save.step)
        new = self._store.write(
            copies.record_missing,
            *(shard.version, self._durable.name, incident, self._clock.now()),
            publish_again=absence is Absence.UNPUBLISHED,
        )
        if new:
            tell(log, events.OBJECTS_MISSING, reason=incident.message, **of(save))
        self._on_change()
