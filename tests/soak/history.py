"""What clients saw, one line for each event: what was invoked, then how it ended.

The oracle lies outside of the system: every client process appends to a file of its own, before it
calls and after it returned. A call whose end is missing, as its process was killed, is *unknown*,
as is one whose answer leaves open whether it was done.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cachetier_client.errors import CachetierClientError

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
# After these nothing of the call was done. The clients of the soak do not repeat by themselves.
DEFINITE = frozenset(
    {
        *("backpressure", "sealed", "step_published", "save_superseded", "aborted", "not_found"),
        *("pinned", "invalid_request", "digest_mismatch", "size_mismatch"),
    }
)


@dataclass(slots=True)
class Event:
    """One call of one client."""

    kind: str
    node: str
    run: str
    step: int
    save: str = ""
    rank: int = 0
    world: int = 1
    name: str = ""
    size: int = 0
    sum: str = ""
    began: float = 0.0
    ended: float | None = None
    outcome: str = UNKNOWN
    level: str = ""
    code: str = ""

    @property
    def possible(self) -> bool:
        return self.outcome != FAILED

    @property
    def ok(self) -> bool:
        return self.outcome == OK


_FIELDS = frozenset(each.name for each in fields(Event))


class EventLog:
    """Appends to one file. Thread-safe; what was appended outlives kill -9 of this process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()
        self._number = 0

    @contextmanager
    def call(self, kind: str, **what: Any) -> Iterator[dict[str, Any]]:
        """Note a call, and how the block ends; what the block adds to the dictionary is noted.

        An error of the client is raised again, noted as definite or as unknown.
        """
        with self._lock:
            self._number += 1
            number = self._number
        self._write({"begin": number, "kind": kind, "began": time.monotonic(), **what})
        found: dict[str, Any] = {}
        outcome = UNKNOWN
        try:
            yield found
            outcome = OK
        except CachetierClientError as error:
            if error.code == "not_durable" and kind == "put":
                found["level"] = "local"  # which is what is held against it
                outcome = OK
            elif error.code in DEFINITE:
                outcome = FAILED
            found["code"] = error.code
            raise
        finally:
            self._write({"end": number, "ended": time.monotonic(), "outcome": outcome, **found})

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, (json.dumps(line) + "\n").encode())


@dataclass
class Part:
    """What one rank did for one save."""

    puts: dict[str, list[Event]] = field(default_factory=dict)
    seals: list[Event] = field(default_factory=list)
    aborts: list[Event] = field(default_factory=list)

    @property
    def sealed(self) -> bool:
        return any(seal.ok for seal in self.seals)

    @property
    def maybe_sealed(self) -> bool:
        return any(seal.possible for seal in self.seals)


@dataclass
class SaveHistory:
    """What all ranks did for one save."""

    world: int
    parts: dict[int, Part] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether every rank was told that its part is sealed."""
        return all(rank in self.parts and self.parts[rank].sealed for rank in range(self.world))

    @property
    def sealed_at(self) -> float:
        """When the seal of the last rank began."""
        firsts = (min(s.began for s in part.seals if s.ok) for part in self.parts.values())
        return max(firsts)

    def puts(self) -> Iterator[Event]:
        for part in self.parts.values():
            for events in part.puts.values():
                yield from events


@dataclass
class StepHistory:
    """What was done to one step.

    Objects of one that ``vanished`` were taken behind the tier's back; of one ``forgotten`` some
    node's disk forgot what was acknowledged.
    """

    saves: dict[str, SaveHistory] = field(default_factory=dict)
    deletes: list[Event] = field(default_factory=list)
    vanished: bool = False
    forgotten: bool = False

    @property
    def excused(self) -> bool:
        return self.vanished or self.forgotten

    @property
    def deleted(self) -> bool:
        """Whether a delete was acknowledged, and nobody saved the step since it began."""
        seals = [
            s for save in self.saves.values() for part in save.parts.values() for s in part.seals
        ]
        puts = [put for save in self.saves.values() for put in save.puts()]
        last = max((each.ended or math.inf for each in (*puts, *seals)), default=0.0)
        return any(each.ok and each.began > last for each in self.deletes)

    @property
    def maybe_deleted(self) -> bool:
        return any(each.possible for each in self.deletes)

    @property
    def whole_saves(self) -> list[str]:
        """The saves that every rank was told to have sealed, and that no delete can have ended."""
        ends = [delete.ended or math.inf for delete in self.deletes if delete.possible]
        deleted_at = max(ends, default=0.0)
        return [
            save_id
            for save_id, save in self.saves.items()
            if save.whole and save.sealed_at > deleted_at
        ]

    def attempts(self, name: str) -> list[Event]:
        """Return every put of a name that may have been done, by whichever save."""
        return [
            event
            for save in self.saves.values()
            for event in save.puts()
            if event.name == name and event.possible
        ]


Steps = dict[tuple[str, int], StepHistory]


class History:
    """Reads what the clients of a round have written, as it grows. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.steps: Steps = {}
        self.reads: list[Event] = []
        self.counts: dict[str, int] = {}
        self.acked_bytes = 0
        self._directory = directory
        self._offsets: dict[Path, int] = {}
        self._open: dict[tuple[Path, int], Event] = {}
        self._lock = threading.Lock()

    def update(self) -> Steps:
        """Take in what was appended since, and return everything by step."""
        with self._lock:
            for path in sorted(self._directory.glob("*.events")):
                self._read(path)
            return self.steps

    def excuse(self, node: str, start: float, end: float) -> None:
        """Take it as unknown what ``node`` acknowledged in this time: its disk forgot it.

        So are shards that went past the disk and are durable: the node that seals their rank knows
        nothing of them.
        """
        for step in self.update().values():
            for save in step.saves.values():
                seals = [seal for part in save.parts.values() for seal in part.seals]
                for event in (*save.puts(), *seals, *step.deletes):
                    within = event.ended is not None and start <= event.ended <= end
                    if event.node == node and within:
                        event.outcome = UNKNOWN
                        step.forgotten = True

    def _read(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            data = file.read()
        whole, newline, _ = data.rpartition(b"\n")
        self._offsets[path] = self._offsets.get(path, 0) + len(whole) + len(newline)
        for line in whole.splitlines():
            self._take(path, json.loads(line))

    def _take(self, path: Path, line: dict[str, Any]) -> None:
        known = {name: value for name, value in line.items() if name in _FIELDS}
        if "begin" in line:
            event = Event(**known)
            self._open[path, line["begin"]] = event
            self._place(event)
            return
        event = self._open.pop((path, line["end"]))
        for name, value in known.items():
            setattr(event, name, value)
        kind = f"{event.kind} {event.outcome}"
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if event.kind == "put" and event.ok:
            self.acked_bytes += event.size

    def _place(self, event: Event) -> None:
        if event.kind == "get":
            self.reads.append(event)
            return
        step = self.steps.setdefault((event.run, event.step), StepHistory())
        if event.kind == "delete":
            step.deletes.append(event)
            return
        if not event.save:
            return
        save = step.saves.setdefault(event.save, SaveHistory(event.world))
        part = save.parts.setdefault(event.rank, Part())
        if event.kind == "put":
            part.puts.setdefault(event.name, []).append(event)
        else:
            {"seal": part.seals, "abort": part.aborts}[event.kind].append(event)
