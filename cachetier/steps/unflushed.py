"""Steps that a node acknowledged and that are not durable yet, as notes in the bucket tell of them.

Each node keeps one note for each run of which it has such steps, and takes it away when there is
none left. A job that starts elsewhere reads the notes, so that it does not begin again beside steps
that will be published later. No acknowledgement waits for a note: it is written a second later,
unless the step is durable by then, and while the bucket is away it is owed.

A request that failed, or was made by the process before, may take effect later. So a while after a
failure and after the start the node looks which notes of its own are there, and sends or removes
all of them once more; none is forgotten, whatever happened to the catalog. While notes stand that
is repeated, because somebody may have removed one (``cachetier forget``).

Source: docs/design/0037-unflushed-steps.md.
"""

from __future__ import annotations

import functools
import logging
import math
import re
import socket
import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cachetier_client.bucket_format.documents import (
    UNFLUSHED_LIMIT,
    UNFLUSHED_LIMIT_BYTES,
    UnflushedNote,
    UnflushedSave,
    encode,
    read_unflushed,
)
from cachetier_client.calls.unflushed import merged, steps_in
from cachetier_client.clock import Clock
from cachetier_client.identity import names
from cachetier_client.io.digests import digest_of
from cachetier_client.results import UnflushedStep
from cachetier_client.units import counted

from cachetier.errors import (
    CachetierError,
    IntegrityError,
    NotFoundError,
    ObjectMissingError,
    RemoteError,
)
from cachetier.local.catalog.figures import unflushed_saves
from cachetier.local.store import Store
from cachetier.notifier import Changes
from cachetier.remote.base import ListedObject
from cachetier.remote.bounded_calls import BoundedCalls
from cachetier.remote.bucket import Bucket
from cachetier.restore.published import PublishedSteps
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

ROUND_SECONDS = 0.5
IDLE_SECONDS = 30.0
YOUNG_SECONDS = 0.8  # a step that is durable by then needs no note
ANNOUNCED_SECONDS = 2.0
LATE_SECONDS = 60.0  # a request that failed takes effect no later
AGAIN_SECONDS = 300.0
FRESH_SECONDS = 5.0
NOTES_LIMIT = 1000
STEPS_LIMIT = 16
UNKNOWN = b""


@dataclass(slots=True)
class _Note:
    """The note of a run as the bucket has it: ``body`` is None for nothing."""

    body: bytes | None = UNKNOWN
    saves: Mapping[int, UnflushedSave] = field(default_factory=dict)


class UnflushedNotes:
    """Keeps the notes of this node. ``round`` is called by one thread."""

    def __init__(self, store: Store, bucket: Bucket, changes: Changes, clock: Clock) -> None:
        self._store = store
        self._bucket = bucket
        self._changes = changes
        self._clock = clock
        self._calls = BoundedCalls(2, "unflushed-note")
        self._host = re.sub(r"[^A-Za-z0-9._\-]", "-", socket.gethostname())[:253] or "unnamed"
        self._notes: dict[str, _Note] = {}
        not_young = clock.monotonic() - 2 * YOUNG_SECONDS  # the bucket may have their notes
        self._since = dict.fromkeys(store.read(unflushed_saves), not_young)
        self._sweeps, self._sweep_at = 2, clock.monotonic()  # how many are due, and the next one
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="unflushed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End the thread; one that hangs in the remote is left to die with the process."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)
        self._calls.close()

    def warnings(self) -> list[str]:
        """Return a sentence if steps are not announced in the bucket that should be by now."""
        announced = {number for note in list(self._notes.values()) for number in note.saves}
        oldest = self._clock.monotonic() - ANNOUNCED_SECONDS
        late = [e.run for e, at in self._since.items() if at < oldest and e.number not in announced]
        steps, runs = counted(len(late), "step"), ", ".join(sorted(set(late))[:3])
        text = f"{steps} of {runs} could not be announced in the bucket"
        warning = f"{text}: a job that starts elsewhere does not hear of what is not durable"
        return [warning] if late else []

    def _run(self) -> None:
        rings = 0
        while not self._stopping.is_set():
            try:
                self.round()
            except CachetierError as error:  # the bucket is away, or the disk: the next round comes
                tell(log, events.UNFLUSHED_PUT_OFF, code=error.code, reason=error.message)
            except Exception:
                if self._stopping.is_set():
                    return  # it came back from the remote after the store was closed
                raise
            busy = self._since or self._notes
            rings = self._changes.next_ring(rings, 0.0 if busy else IDLE_SECONDS)
            self._stopping.wait(ROUND_SECONDS)

    def round(self) -> None:
        """Send the notes that changed, and remove those that say nothing any more.

        Raises:
            RemoteError: The bucket is away, or refuses one, which comes last in the next round.
        """
        now, before = self._clock.monotonic(), self._since
        if now >= self._sweep_at and (self._notes or self._sweeps):
            self._sweep(now)
        owed = self._store.read(unflushed_saves)
        self._since = {each: before.get(each, now) for each in owed}
        wanted: dict[str, dict[int, UnflushedSave]] = defaultdict(dict)
        for each, since in self._since.items():
            note = self._notes.get(each.run, _Note())
            young = now - since < YOUNG_SECONDS
            save = note.saves.get(each.number) if young else each.save  # what it said before
            if save is not None:
                wanted[each.run][each.number] = save
        for run in [*self._notes, *(wanted.keys() - self._notes.keys())]:
            self._settle(run, wanted[run], now)

    def _settle(self, run: str, saves: Mapping[int, UnflushedSave], now: float) -> None:
        """Have the bucket hold the note of ``run`` with ``saves``, or none."""
        newest, store_id = tuple(saves.values())[:UNFLUSHED_LIMIT], self._store.store_id
        note = UnflushedNote(run=run, store=store_id, host=self._host, saves=newest)
        body = encode(note) if saves else None
        if body == self._notes.get(run, _Note()).body:
            return
        key, objects = self._bucket.layout.unflushed_key(run, store_id), self._bucket.objects
        try:
            if body is None:
                self._calls(functools.partial(objects.delete, key))
                self._notes.pop(run, None)
            else:
                self._calls(functools.partial(objects.put, key, body, digest=digest_of(body)))
                self._notes[run] = _Note(body, saves)
        except RemoteError:
            self._notes.pop(run, None)
            self._notes[run] = _Note()  # the last in the next round
            self._sweeps = max(1, self._sweeps)
            self._sweep_at = min(self._sweep_at, now + LATE_SECONDS)
            raise

    def _sweep(self, now: float) -> None:
        """Find notes of ours that nobody remembers; have all be sent, or removed, once more."""
        self._sweep_at = now + LATE_SECONDS
        prefix, objects = self._bucket.layout.unflushed_prefix(), self._bucket.objects
        own = [key for key in self._calls(lambda: objects.list(prefix)).keys if self._is_own(key)]
        self._sweeps = max(0, self._sweeps - 1)
        if not self._sweeps:
            self._sweep_at = now + AGAIN_SECONDS
        for run in {*self._notes, *(key.split("/")[-2] for key in own)}:
            self._notes.setdefault(run, _Note()).body = UNKNOWN

    def _is_own(self, key: str) -> bool:
        return _store_of(key) == self._store.store_id


class UnflushedSteps:
    """Reads the notes of other nodes. Thread-safe; all who ask in five seconds share one look."""

    def __init__(
        self, store: Store, bucket: Bucket, published: PublishedSteps, clock: Clock
    ) -> None:
        self._store = store
        self._bucket = bucket
        self._published = published
        self._clock = clock
        self._calls = BoundedCalls(8, "unflushed-look")
        self._locks: dict[str, threading.Lock] = {}
        self._looks: dict[str, tuple[float, tuple[UnflushedStep, ...] | RemoteError]] = {}
        self.close = self._calls.close

    def of_run(self, run: str) -> tuple[UnflushedStep, ...]:
        """Return the steps of ``run`` that other nodes hold, newer than what is durable.

        The newest are first; there are at most ``STEPS_LIMIT``.

        Raises:
            RemoteError: The bucket cannot be asked.
        """
        with self._locks.setdefault(run, threading.Lock()):
            at, found = self._looks.get(run, (-math.inf, ()))
            if self._clock.monotonic() - at >= FRESH_SECONDS:
                try:
                    found = self._look(run)
                except RemoteError as error:
                    found = error
                if len(self._looks) >= NOTES_LIMIT:
                    self._looks.clear()
                    self._locks.clear()
                self._looks[run] = self._clock.monotonic(), found
        if isinstance(found, RemoteError):
            raise found
        return found

    def heard(self, run: str) -> tuple[UnflushedStep, ...] | None:
        """Return the steps ``of_run``; None if nobody can say.

        Who compares them with what is durable asks for that afterwards: a note goes once its step
        is durable, so each step is in one of both.
        """
        try:
            return self.of_run(run)
        except RemoteError:
            return None

    def listed(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to the operation ``unflushed``; raises as ``of_run`` does."""
        return {"unflushed": list(map(asdict, self.of_run(names.checked_run(wish.get("run")))))}

    def forgotten(self, wish: Mapping[str, Any]) -> dict[str, Any]:
        """Remove the notes of another node, by host name or store id; return what is given up.

        Raises:
            NotFoundError: That node has no note.
            RemoteError: The bucket cannot be asked.
        """
        node, run = str(wish.get("node")), wish.get("run")
        prefix = self._bucket.layout.unflushed_prefix(run and names.checked_run(run))
        found = []
        for each in self._listed(prefix):
            note = self._note(each)
            if node in (_store_of(each.key), note and note.host):
                self._calls(functools.partial(self._bucket.objects.delete, each.key))
                found.append(steps_in(note) if note is not None else [])
        self._looks.clear()
        if not found:
            hint = "`cachetier ls RUN --latest` names the nodes that do."
            raise NotFoundError(f"no other node {node} holds steps that are not durable", hint=hint)
        return {"forgotten": [asdict(step) for steps in found for step in steps]}

    def _look(self, run: str) -> tuple[UnflushedStep, ...]:
        listed = self._listed(self._bucket.layout.unflushed_prefix(run))
        notes = self._calls.each(functools.partial(self._note, each) for each in listed)
        found = merged(step for note in notes if note is not None for step in steps_in(note))
        if not found:
            return ()
        durable = self._calls(lambda: next(self._published.durable_steps(run), None))
        owed = self._store.read(unflushed_saves)
        here = {(e.save.step, e.save.save_id): e.save.ranks for e in owed if e.run == run}
        newest = (durable.step, durable.save_id) if durable is not None else (None, "")
        newer = [each for each in found if each.is_newer(*newest)][:STEPS_LIMIT]
        return tuple(
            each.with_ranks_here(here.get((each.step, each.save_id), ())) for each in newer
        )

    def _listed(self, prefix: str) -> list[ListedObject]:
        """Return the notes of other nodes."""
        objects = self._bucket.objects
        page = self._calls(lambda: objects.list_page(prefix, "", "", NOTES_LIMIT))
        others = [each for each in page.objects if _store_of(each.key) != self._store.store_id]
        return [each for each in others if each.size_bytes <= UNFLUSHED_LIMIT_BYTES]

    def _note(self, listed: ListedObject) -> UnflushedNote | None:
        """Return a note, or None for one that is gone, or that no node of ours can have written."""
        try:
            return read_unflushed(self._bucket.objects.get(listed.key), listed.key)
        except ObjectMissingError:
            return None
        except IntegrityError as error:
            tell(log, events.UNFLUSHED_UNREADABLE, key=listed.key, reason=error.message)
            return None


def _store_of(key: str) -> str:
    return key.rpartition("/")[2].removesuffix(".json")
