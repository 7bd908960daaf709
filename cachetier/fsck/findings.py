"""The findings of ``cachetier fsck``, and what is done about each.

A *problem* means that bytes, or what is known of them, are not as they were promised. A *note* is
something that is of no harm: what a crash, another node or a person left behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from cachetier.model.objects import is_mount

if TYPE_CHECKING:
    from cachetier.local.lost_and_found import Identity

LISTED = 1000


class FindingKind(StrEnum):
    CATALOG_DAMAGED = "catalog_damaged"
    LOG_LOST = "log_lost"
    ACCOUNTING = "accounting"
    ROW_DAMAGED = "row_damaged"
    ROW_CONTRADICTS = "row_contradicts"
    FILE_MISSING = "file_missing"
    FILE_SIZE = "file_size"
    BYTES_DAMAGED = "bytes_damaged"
    QUARANTINED = "quarantined"
    OBJECT_MISSING = "object_missing"
    OBJECT_DIFFERS = "object_differs"
    OBJECT_FOREIGN = "object_foreign"
    OBJECT_ROW_DAMAGED = "object_row_damaged"
    PIECES_MISSING = "pieces_missing"
    MANIFEST_MISSING = "manifest_missing"
    MANIFEST_DAMAGED = "manifest_damaged"
    PART_DAMAGED = "part_damaged"
    PIECE_UNNAMED = "piece_unnamed"
    FILE_UNMARKED = "file_unmarked"
    FILE_ORPHAN = "file_orphan"
    FILE_SET_ASIDE = "file_set_aside"
    STEP_ENDED = "step_ended"
    GONE_ELSEWHERE = "gone_elsewhere"
    CLAIM_STALE = "claim_stale"
    UPLOAD_STALE = "upload_stale"
    OBJECT_UNNAMED = "object_unnamed"
    OBJECT_NOT_OURS = "object_not_ours"


NOTES = frozenset(
    {
        FindingKind.PIECE_UNNAMED,
        FindingKind.FILE_UNMARKED,
        FindingKind.FILE_ORPHAN,
        FindingKind.FILE_SET_ASIDE,
        FindingKind.GONE_ELSEWHERE,
        FindingKind.CLAIM_STALE,
        FindingKind.UPLOAD_STALE,
        FindingKind.OBJECT_UNNAMED,
        FindingKind.OBJECT_NOT_OURS,
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be. ``version`` and ``number`` are rows of the catalog."""

    kind: FindingKind
    message: str
    run: str | None = None
    step: int | None = None
    name: str | None = None
    remote: str | None = None
    key: str | None = None
    file_id: str | None = None
    version: int = 0
    number: int = 0
    rank: int | None = None

    @classmethod
    def of_file(
        cls, kind: FindingKind, message: str, file_id: str, identity: Identity | None
    ) -> Finding:
        """Return a finding about a data file that no row names, by what it says it holds."""
        if identity is None:
            return cls(kind, message, file_id=file_id)
        ids, name = identity.ids, identity.name
        return cls(kind, message, ids.run, ids.step, name, file_id=file_id, rank=ids.rank)

    @property
    def is_problem(self) -> bool:
        return self.kind not in NOTES

    @property
    def where(self) -> str:
        """What it is about, in one word."""
        if self.run is None:
            return self.key or self.file_id or "the catalog"
        if is_mount(self.run):
            return f"{self.run}/{self.key or self.name}"
        step = f"{self.run}/{self.step}"
        return f"{step}/{self.name}" if self.name is not None else step

    def as_json(self) -> dict[str, Any]:
        shown = ("run", "step", "name", "remote", "key", "file_id", "rank")
        ids = {name: getattr(self, name) for name in shown}
        known = {name: value for name, value in ids.items() if value is not None}
        severity = "problem" if self.is_problem else "note"
        return {"kind": str(self.kind), "severity": severity, "message": self.message, **known}


@dataclass(frozen=True, slots=True)
class RepairOutcome:
    """What became of a finding: ``repaired``, and how, or why not."""

    finding: Finding
    repaired: bool
    what: str


class Repair(NamedTuple):
    """What mends findings of a kind: what is said before it is tried, and the deed.

    The deed returns what it did, and raises LeftError where the finding stays as it is.
    """

    about_to: str
    act: Callable[[Finding], str]


class LeftError(Exception):
    """A finding stays as it is; the text says why, and what a person can do."""


@dataclass(slots=True)
class FsckReport:
    """Everything that was looked at and found.

    ``unanswered`` names what could not be looked at, with the reason; ``unreadable``: the catalog
    could not be opened, or not be read to its end. ``due_bytes`` is how much there is to check on
    this node, once it is known.
    """

    online: bool = False
    unreadable: bool = False
    shards: int = 0
    size_bytes: int = 0
    checked_bytes: int = 0
    due_bytes: int = 0
    objects: int = 0
    findings: list[Finding] = field(default_factory=list)
    outcomes: list[RepairOutcome] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)

    @property
    def repaired(self) -> set[Finding]:
        left = {outcome.finding for outcome in self.outcomes if not outcome.repaired}
        return {outcome.finding for outcome in self.outcomes if outcome.repaired} - left

    def remaining(self) -> list[Finding]:
        """Return the problems that are still there."""
        repaired = self.repaired
        return [f for f in self.findings if f.is_problem and f not in repaired]

    def as_json(self) -> dict[str, Any]:
        remaining = self.remaining()
        return {
            "clean": not remaining and not self.unanswered,
            "online": self.online,
            "shards": self.shards,
            "size_bytes": self.size_bytes,
            "checked_bytes": self.checked_bytes,
            "objects": self.objects,
            "counts": dict(Counter(str(finding.kind) for finding in self.findings)),
            "remaining": len(remaining),
            "findings": [finding.as_json() for finding in self.findings[:LISTED]],
            "repairs": [
                {**each.finding.as_json(), "repaired": each.repaired, "what": each.what}
                for each in self.outcomes[:LISTED]
            ],
            "unanswered": self.unanswered,
        }
