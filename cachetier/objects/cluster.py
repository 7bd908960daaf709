"""The order across nodes, kept by notes in the bucket.

Data that a node acknowledges belongs to an *epoch*, whose note is in the bucket before that. A
marker lists the notes, then closes the epoch that is open, and only then is committed. So whatever
waits for the marker on its node is of an epoch that was opened after that listing; and the marker
waits for epochs that were opened before it. However nodes wait for each other, each step leads back
in the bucket's time: no chain closes.

While the bucket is away commits go on; their notes and listings are owed, and nothing of the mount
becomes visible. When it is back, markers list first and the notes come after: the other way round a
note could be seen by a marker that the node's own one then waits for.

Source: docs/design/0030-objects.md, "Order across nodes".
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from cachetier_client.clock import Clock
from cachetier_client.io.digests import digest_of

from cachetier.errors import CachetierError, NotFoundError, RemoteError, TransientError
from cachetier.local.catalog import objects
from cachetier.local.catalog.rows import IncidentRecord
from cachetier.local.store import Store
from cachetier.model.cluster_order import (
    UNLISTED,
    Note,
    is_of_store,
    names_in,
    note_name,
    notes_prefix,
    still_waits_for,
    waits_for,
)
from cachetier.model.objects import Mount, ObjectVersion, Order
from cachetier.objects.ordering import PlaceInOrder
from cachetier.remote.base import ObjectStore
from cachetier.remote.bounded_calls import BoundedCalls
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

ROUND_SECONDS = 2.0
LONGEST_ROUND_SECONDS = 3 * ROUND_SECONDS  # after more the node slept, or was stopped
ASKERS = 16
OpenStore = Callable[[str], ObjectStore]


@dataclass(frozen=True, slots=True)
class WaitingMarker:
    """A marker that waits for other nodes, by the notes that it found of them."""

    run: str
    key: str
    since: float
    nodes: tuple[str, ...]


class MountOrder:
    """The order of one mount. Thread-safe; ``round`` is called by one thread."""

    def __init__(
        self,
        mount: Mount,
        bucket: ObjectStore,
        store: Store,
        clock: Clock,
        ring: Callable[[], None],
    ) -> None:
        self.mount = mount
        self._bucket = bucket
        self._store = store
        self._clock = clock
        self._ring = ring
        self._changed = threading.Condition()
        self._opening = False
        self._open: str | None = None
        self._written = False
        self._leases: Counter[str] = Counter()
        self._unlisted = 0  # markers that are being committed
        self._owes = self._is_held()
        self._away_until = 0.0
        self._swept = False
        self._asked = BoundedCalls(ASKERS, "order-note")  # a put waits no longer for the bucket
        self._seen: dict[str, str] = {}
        self._round_at = clock.monotonic()
        self._waited: dict[int, tuple[str | None, float]] = {}  # of versions: for what, how long

    # --- commits ---------------------------------------------------------------------------------

    @contextmanager
    def commit(self, keys: Sequence[str]) -> Iterator[PlaceInOrder]:
        """See ``Ordering.before_commit``."""
        markers = [key for key in keys if self.mount.is_marker(key)]
        waits = self._listed() if markers else None
        epoch, written = None, True
        try:
            if markers:
                self._close_epoch()
            if len(markers) < len(keys):
                epoch, written = self._leased()
            yield PlaceInOrder(epoch, waits, "cluster" if written and waits != UNLISTED else "node")
        finally:
            with self._changed:
                self._unlisted -= int(waits == UNLISTED)
                if epoch is not None:
                    self._leases[epoch] -= 1
                self._leases += Counter()  # without those that are at 0
                self._changed.notify_all()

    def _listed(self) -> str | None:
        """Return what a marker waits for; as unlisted counts one that must list later."""
        with self._changed:
            asks = self._may_ask()
            self._unlisted += int(not asks)
        if not asks:
            return UNLISTED
        try:
            return waits_for(self._names(), self._store.store_id)
        except RemoteError:
            with self._changed:
                self._unlisted += 1
                self._went_away()
            return UNLISTED

    def _leased(self) -> tuple[str, bool]:
        """Return the open epoch, and whether its note is in the bucket; a new one if need be."""
        with self._changed:
            self._changed.wait_for(lambda: not self._opening)
            if self._open is not None:
                self._leases[self._open] += 1
                return self._open, self._written
            self._opening, asks = True, self._may_ask()
        epoch, written, known = secrets.token_hex(8), False, False
        try:
            now = self._clock.now()
            self._store.write(objects.open_epoch, self.mount.run, epoch, now)
            known = True
            written = asks and self._write_note(epoch, now)
        finally:
            with self._changed:
                self._opening = False
                if known:  # else this commit fails, and nothing belongs to it
                    self._open, self._written = epoch, written
                    self._leases[epoch] += 1
                self._changed.notify_all()
        return epoch, written

    def _close_epoch(self) -> None:
        """Let nothing more join the open epoch; return once all that has joined is committed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._opening)
            self._open = None
            before = set(self._leases)
            self._changed.wait_for(lambda: before.isdisjoint(self._leases))

    def _may_ask(self) -> bool:
        """Return whether the bucket may be asked; what is owed already has to come first."""
        if self._owes:
            return False
        if self._clock.monotonic() < self._away_until:
            self._owes = True
        return not self._owes

    def _went_away(self) -> None:
        self._owes, self._swept = True, False  # a note may come late, when nobody knows it any more
        self._away_until = self._clock.monotonic() + ROUND_SECONDS

    # --- the bucket ------------------------------------------------------------------------------

    def _key(self, name: str) -> str:
        return f"{notes_prefix(self.mount.prefix)}{name}"

    def _names(self) -> set[str]:
        prefix = notes_prefix(self.mount.prefix)
        listed = self._asked(lambda: self._bucket.list(prefix))
        return {key.removeprefix(prefix) for key in listed.keys}

    def _write_note(self, epoch: str, opened_at: float) -> bool:
        """Write a note and remember that; return whether it is there for sure."""
        name = note_name(self._store.store_id, epoch)
        body = Note(socket.gethostname(), self._store.store_id, opened_at).as_bytes()
        try:
            self._asked(lambda: self._bucket.put(self._key(name), body, digest=digest_of(body)))
        except RemoteError:
            with self._changed:
                self._went_away()
            return False
        self._store.write(objects.record_written, self.mount.run, epoch)
        return True

    def _node_of(self, name: str) -> str:
        """Return whose a note is, as people know the node."""
        if name not in self._seen:
            try:
                note = Note.of_bytes(self._bucket.get(self._key(name)))
            except (RemoteError, ValueError):
                return name
            self._seen[name] = f"{note.host} ({note.store_id})"
        return self._seen[name]

    # --- what goes on behind the commits ---------------------------------------------------------

    def round(self) -> None:
        """Write what is owed, look what markers wait for still, and take away what is drained.

        Raises:
            RemoteError: The bucket is away.
        """
        before, self._round_at = self._round_at, self._clock.monotonic()
        if self._owes:
            self._pay()
        waiting = self._waiting()
        if waiting or not self._swept:
            self._look(waiting)
        if waiting:
            self._count(min(self._round_at - before, LONGEST_ROUND_SECONDS))
        self._clear()

    def _pay(self) -> None:
        self._names()  # it is away still: nothing changes
        self._close_epoch()
        run, read = self.mount.run, self._store.read
        markers = read(objects.waiting_markers, run)
        owed = [note for note in read(objects.notes_of, run) if not note.written]
        names = self._names()
        for marker in markers:
            if marker.waits == UNLISTED:
                waits = waits_for(names, self._store.store_id)
                self._store.write(objects.record_waits, marker.version, waits)
        for note in owed:
            if not self._write_note(note.epoch, note.opened_at):
                raise TransientError(f"the notes of {run} are not in the bucket yet")
        with self._changed:
            self._owes = self._unlisted > 0 or self._is_held()
        self._ring()

    def _is_held(self) -> bool:
        save = self._store.read(objects.mount_save, self.mount.run)
        return save is not None and self._store.read(objects.is_held, save)

    def _waiting(self) -> list[ObjectVersion]:
        waiting = self._store.read(objects.waiting_markers, self.mount.run)
        return [marker for marker in waiting if names_in(marker.waits)]

    def _look(self, waiting: Sequence[ObjectVersion]) -> None:
        """Let markers go whose notes are gone; take away notes of ours that nothing is known of."""
        names = self._names()
        known = {
            note_name(self._store.store_id, note.epoch)
            for note in self._store.read(objects.notes_of, self.mount.run)
        }
        for name in names - known:
            if is_of_store(name, self._store.store_id):
                self._bucket.delete(self._key(name))
        self._swept = True
        for marker in waiting:
            assert marker.waits is not None
            left = still_waits_for(marker.waits, names)
            if left != marker.waits:
                self._store.write(objects.record_waits, marker.version, left)
                self._ring()
            for name in names_in(left):
                self._node_of(name)

    def _clear(self) -> None:
        """Close what is drained, and take away its note."""
        for note in self._store.read(objects.notes_of, self.mount.run):
            with self._changed:
                busy = self._opening or note.epoch in self._leases
                run = self.mount.run
                if busy or not self._store.read(objects.is_drained, run, note.epoch):
                    continue
                if self._open == note.epoch:
                    self._open = None
            self._bucket.delete(self._key(note_name(self._store.store_id, note.epoch)))
            self._store.write(objects.forget_epoch, self.mount.run, note.epoch)

    def _count(self, seconds: float) -> None:
        """Count a round that was answered for markers that nothing came for; let old ones go.

        Neither an outage counts, nor time in which this node did not run.
        """
        before, self._waited = self._waited, {}
        for marker in self._waiting():
            waits, waited = before.get(marker.version, (None, 0.0))
            waited = waited + seconds if waits == marker.waits else 0.0
            self._waited[marker.version] = marker.waits, waited
            if waited > self.mount.release_seconds:
                nodes = ", ".join(self._nodes(marker))
                message = (
                    f"{marker.key} was shown after {waited:.0f} s in which the bucket answered, "
                    f"and nothing came of what was put before it on {nodes}"
                )
                self._release(marker, message)

    def _release(self, marker: ObjectVersion, message: str | None) -> None:
        hint = "Look at that node: what it has is safe there until it reaches the bucket."
        incident = (
            IncidentRecord("order", message, hint, marker.run, 0, marker.key) if message else None
        )
        self._store.write(objects.release, marker.version, incident, self._clock.now())
        tell(log, events.MARKER_RELEASED, run=marker.run, name=marker.key, by_itself=bool(message))
        self._ring()

    def close(self) -> None:
        """Ask no more; what hangs is left behind."""
        self._asked.close()

    # --- asked -----------------------------------------------------------------------------------

    def release(self, key: str) -> None:
        """Let a marker wait no more: a person says so.

        Raises:
            NotFoundError: It does not wait.
        """
        waiting = [marker for marker in self._waiting() if marker.key == key]
        if not waiting:
            raise NotFoundError(f"no marker {key} of mount {self.mount.name} waits for other nodes")
        for marker in waiting:
            self._release(marker, None)

    def waiting(self) -> list[WaitingMarker]:
        """Return the markers that wait for other nodes."""
        return [
            WaitingMarker(marker.run, marker.key, marker.committed_at, self._nodes(marker))
            for marker in self._waiting()
        ]

    def _nodes(self, marker: ObjectVersion) -> tuple[str, ...]:
        names = names_in(marker.waits)
        return tuple(dict.fromkeys(self._seen.get(name, name) for name in names))


class ClusterOrdering:
    """Keeps the order of all mounts, on a thread of its own; only some ask for it across nodes."""

    def __init__(
        self,
        mounts: Sequence[Mount],
        open_store: OpenStore,
        store: Store,
        clock: Clock,
        ring: Callable[[], None],
    ) -> None:
        """Order ``mounts``; ``open_store`` opens a bucket by its name, ``ring`` wakes the drain."""
        self._mounts = {
            mount.name: MountOrder(mount, open_store(mount.bucket), store, clock, ring)
            for mount in mounts
            if mount.order is Order.CLUSTER
        }
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cluster-order", daemon=True)

    def before_commit(
        self, mount: Mount, keys: Sequence[str]
    ) -> AbstractContextManager[PlaceInOrder]:
        order = self._mounts.get(mount.name)
        return order.commit(keys) if order is not None else nullcontext(PlaceInOrder())

    def start(self) -> None:
        if self._mounts:
            self._thread.start()

    def stop(self, grace_seconds: float) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(grace_seconds)
        for order in self._mounts.values():
            order.close()

    def release(self, mount: str, key: str) -> None:
        """Let a marker wait no more for other nodes; raises as ``MountOrder.release``."""
        order = self._mounts.get(mount)
        if order is None:
            raise NotFoundError(f"no mount {mount} keeps an order across nodes")
        order.release(key)

    def waiting(self) -> list[WaitingMarker]:
        """Return all markers that wait for other nodes."""
        return [marker for order in self._mounts.values() for marker in order.waiting()]

    def _run(self) -> None:
        while not self._stopping.wait(ROUND_SECONDS):
            for order in self._mounts.values():
                self._round(order)

    def _round(self, order: MountOrder) -> None:
        try:
            order.round()
        except CachetierError as error:  # the bucket is away, or the disk: the next round comes
            what = {"run": order.mount.run, "code": error.code, "reason": error.message}
            tell(log, events.ORDER_PUT_OFF, **what)
