"""The operations that every door offers, however the request came in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cachetier.access.access import Access
from cachetier.ingest.ingest import Ingest
from cachetier.reclaim.gc import Garbage
from cachetier.restore.restore import Restore
from cachetier.steps.incidents import Incidents
from cachetier.steps.operations import Checkpoints
from cachetier.steps.waits import Waits
from cachetier.training_hints import Phases


@dataclass(frozen=True, slots=True)
class Operations:
    """The node behind its doors.

    ``refuse_when_stopping`` raises StoppingError once work is no longer taken, and
    ``refuse_when_leaving`` once shards are not: what is begun may still be sealed, and flushed.
    ``fell_back`` takes how many shards and bytes went past this service while it was away,
    ``failed`` which door answered with which code of an error. ``http_url`` says where the HTTP
    door is, if there is one. ``greeting`` is added to the answer to each client's ``hello``.
    """

    store_id: str
    access: Access
    ingest: Ingest
    restore: Restore
    checkpoints: Checkpoints
    waits: Waits
    incidents: Incidents
    phases: Phases
    garbage: Garbage
    status: Callable[[], dict[str, Any]]
    refuse_when_stopping: Callable[[], None]
    refuse_when_leaving: Callable[[], None]
    fell_back: Callable[[int, int], None] = lambda _shards, _size_bytes: None
    failed: Callable[[str, str], None] = lambda _door, _code: None
    http_url: Callable[[], str | None] = lambda: None
    greeting: dict[str, Any] = field(default_factory=dict)
