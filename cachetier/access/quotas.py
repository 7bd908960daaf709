"""Quotas: what each principal has here now, beside the most that it may have; counted here alone.

What lies in its runs is read from the catalog, at most every second and when a share seems full.
What was begun or committed since is added: a count errs only upward, and not for long.

Source: docs/operations.md, "Shares".
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from cachetier_client.units import shown_size

from cachetier.access.principals import Principal, Quota
from cachetier.errors import BackpressureError, BusyError

FRESH_SECONDS = 1.0
REST_OF_A_LOOK = 9.0  # so that who is refused again and again holds up nobody
STARVED_SECONDS = 5.0  # who waits asks more often than that
KINDS = tuple(each.name for each in fields(Quota))

Counts = Mapping[str, Mapping[str, int]]  # by principal, how many of each kind
# Of each run how many bytes and shards it has here that make no room by themselves.
ReadCatalog = Callable[[], Mapping[str, tuple[int, int]]]


class ShareFullError(BackpressureError):
    """A principal's share is full; ``for_ever``: what is wanted is larger than all of it."""

    hint = (
        "The share is full of bytes that are not durable yet, or pinned: call again later, flush, "
        "or ask for a larger one. `cachetier whoami` shows it."
    )
    for_ever = False


@dataclass(eq=False, slots=True)
class _Share:
    """The usage of one principal: ``seen`` in the catalog, committed ``since``, and for ``now``."""

    principal: Principal
    seen: Mapping[str, int] = field(default_factory=dict)
    since: Counter[str] = field(default_factory=Counter)
    now: Counter[str] = field(default_factory=Counter)
    starved_at: float = float("-inf")

    def limit(self, kind: str) -> int | None:
        found: int | None = getattr(self.principal.quota, kind)
        return found

    def used(self, kind: str) -> int:
        return self.seen.get(kind, 0) + self.since[kind] + self.now[kind]

    def lacks(self, more: Mapping[str, int], *, of_all: bool = False) -> bool:
        """Return whether there is no room for ``more``; ``of_all``: not even if it were empty."""
        limits = ((kind, number, self.limit(kind)) for kind, number in more.items() if number)
        return any(
            most is not None and number + (0 if of_all else self.used(kind)) > most
            for kind, number, most in limits
        )

    def as_json(self) -> dict[str, Any]:
        figures = {kind: {"used": self.used(kind), "limit": self.limit(kind)} for kind in KINDS}
        return {"name": self.principal.name, **figures}

    def __str__(self) -> str:
        limits = {kind: most for kind in KINDS if (most := self.limit(kind)) is not None}
        return ", ".join(
            f"{shown_size(self.used(kind))} of {shown_size(most)}"
            if kind == "size_bytes"
            else f"{self.used(kind)} of {most} {kind.replace('_', ' ')}"
            for kind, most in limits.items()
        )


class Quotas:
    """Counts what principals have, of those who have a quota. Thread-safe."""

    def __init__(
        self,
        principals: Iterable[Principal] = (),
        read: ReadCatalog = dict,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shares = {each.name: _Share(each) for each in principals if each.quota != Quota()}
        self._read = read
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._changes = 0
        self._looked = float("-inf"), 0, 0.0  # when, after how many changes, and how long it took

    def __bool__(self) -> bool:
        return bool(self._shares)

    def changed(self) -> None:
        """Hear that something on the node is not as it was."""
        self._changes += 1

    # --- puts ------------------------------------------------------------------------------------

    def of_put(self, run: str, caller: str | None, size_bytes: int) -> Counts:
        """Return what a put to ``run`` counts for whom: all who have the run, and its caller."""
        return {
            name: {"size_bytes": size_bytes, "shards": 1, "open_puts": int(name == caller)}
            for name, share in self._shares.items()
            if share.principal.sees(run)
        }

    def of_records(self, run: str, number: int, size_bytes: int) -> Counts:
        """Return what rows of the catalog that no shard stands for count for whom."""
        counts = {"size_bytes": size_bytes, "shards": number}
        return {name: counts for name, each in self._shares.items() if each.principal.sees(run)}

    def take(self, wanted: Counts, caller: str | None) -> None:
        """Count ``wanted`` until ``end``.

        Raises:
            ShareFullError: There is not so much left; nothing is counted.
        """
        self._look()
        if self._refused(wanted, caller):
            self._look(REST_OF_A_LOOK * self._looked[2])
            if refused := self._refused(wanted, caller):
                raise refused

    def has_room(self, wanted: Counts) -> bool:
        """Return whether ``take`` would count ``wanted``, for somebody who waits."""
        self._look(0.0)
        with self._lock:
            return self._full(wanted) is None

    def end(self, counted: Counts, kept_bytes: int | None = None) -> bool:
        """Count a put no longer; the shard that it left here, of ``kept_bytes``, counts on.

        Return whether somebody waits for what it gave back.
        """
        with self._lock:
            for name, numbers in counted.items():
                share = self._shares[name]
                share.now.subtract(numbers)
                if kept_bytes is not None:
                    share.since.update(size_bytes=kept_bytes, shards=numbers["shards"])
        self.changed()
        return any(self._is_starved(self._shares[name]) for name in counted)

    def starves(self, run: str) -> bool:
        """Return whether a put waits for room in a share that ``run`` counts for."""
        starved = [each for each in self._shares.values() if self._is_starved(each)]
        return any(each.principal.sees(run) for each in starved)

    def _is_starved(self, share: _Share) -> bool:
        return self._monotonic() - share.starved_at < STARVED_SECONDS

    def _refused(self, wanted: Counts, caller: str | None) -> ShareFullError | None:
        """Count ``wanted``, or say why not: in figures of the caller's own, never of others."""
        with self._lock:
            full = self._full(wanted)
            if full is None:
                for name, numbers in wanted.items():
                    self._shares[name].now.update(numbers)
                return None
            name, more = full.principal.name, wanted[full.principal.name]
            for_ever = full.lacks(more, of_all=True)
            size = shown_size(more.get("size_bytes", 0))
            what = f"{size} are more than fits" if for_ever else f"no room for {size}"
            own = f"the share of {name}: {full}"
            refused = ShareFullError(
                f"{what} in {own if name == caller else 'the share of another principal'}"
            )
            refused.for_ever = for_ever
            return refused

    def _full(self, wanted: Counts) -> _Share | None:
        for name, more in wanted.items():
            share = self._shares[name]
            if share.lacks(more):
                share.starved_at = self._monotonic()
                return share
        return None

    # --- connections -----------------------------------------------------------------------------

    def connect(self, name: str, *, at_any_rate: bool = False) -> None:
        """Count a connection, or a request over HTTP, until ``disconnect``.

        Raises:
            BusyError: The principal has as many as it may.
        """
        share = self._shares.get(name)
        if share is not None:
            with self._lock:
                if share.lacks({"connections": 1}) and not at_any_rate:
                    raise BusyError(f"no connection is left in the share of {name}: {share}")
                share.now["connections"] += 1

    def disconnect(self, name: str) -> None:
        if name in self._shares:
            with self._lock:
                self._shares[name].now["connections"] -= 1

    # --- figures ---------------------------------------------------------------------------------

    def described(self, name: str | None = None) -> list[dict[str, Any]]:
        """Return what those who have a quota have of it now; or only the one called ``name``."""
        self._look(0.0)
        with self._lock:
            return [each.as_json() for key, each in self._shares.items() if name in (None, key)]

    def _look(self, rest_seconds: float = FRESH_SECONDS) -> None:
        """Read the catalog if the last look is old, or something has changed since and it rested.

        Whoever asks without need of the newest does not wait for another's look.
        """
        if self._is_due(rest_seconds) and self._looking.acquire(
            blocking=rest_seconds < FRESH_SECONDS
        ):
            try:
                if self._is_due(rest_seconds):
                    self._read_catalog()
            finally:
                self._looking.release()

    def _is_due(self, rest_seconds: float) -> bool:
        looked_at, changes, _ = self._looked
        age_seconds = self._monotonic() - looked_at
        is_due = age_seconds >= rest_seconds and changes != self._changes
        return bool(self._shares) and (is_due or age_seconds >= FRESH_SECONDS)

    def _read_catalog(self) -> None:
        began_at, changes = self._monotonic(), self._changes
        with self._lock:  # the catalog has by now whatever counts as committed
            before = {name: share.since.copy() for name, share in self._shares.items()}
        runs = self._read()
        with self._lock:
            for name, share in self._shares.items():
                own = [here for run, here in runs.items() if share.principal.sees(run)]
                share.seen = {
                    "size_bytes": sum(b for b, _ in own),
                    "shards": sum(s for _, s in own),
                }
                share.since.subtract(before[name])
        now = self._monotonic()
        self._looked = now, changes, now - began_at
