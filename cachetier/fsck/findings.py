"""The findings of ``cachetier fsck``, and what is done about each.

A *problem* means that bytes, or what is known of them, are not as they were promised. A *note* is
something that is of no harm: what a crash, another node or a person left behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from cachetier.model.objects import is_mount

if TYPE_CHECKING:
    from cachetier.local.lost_and_found import Identity

LISTED = 1000
PROBLEM, NOTE = "problem", "note"


class FindingKind(StrEnum):
    """A kind of finding: its word, its meaning, what ``--repair`` does, and how bad it is.

    ``make docs`` makes the tables of docs/recovery.md of it.
    """

    means: str
    repair: str
    is_problem: bool

    def __new__(cls, word: str, means: str, repair: str, severity: str = PROBLEM) -> Self:
        kind = str.__new__(cls, word)
        kind._value_ = word
        kind.means, kind.repair, kind.is_problem = means, repair, severity == PROBLEM
        return kind

    CATALOG_DAMAGED = (
        "catalog_damaged",
        "SQLite's check fails, or the catalog cannot be opened",
        (
            "makes the indexes again; if that does not help: [above](#the-catalog-is-damaged), or "
            "[`--rebuild`](#a-lost-catalog)"
        ),
    )
    LOG_LOST = (
        "log_lost",
        "the catalog's log is gone with acknowledged commits, or a repair was cut short",
        "takes back every whole file and says [what may be lost](#a-lost-log)",
    )
    ACCOUNTING = (
        "accounting",
        "the indexes and the rows disagree on bytes",
        "makes the indexes again",
    )
    ROW_DAMAGED = (
        "row_damaged",
        "a row fails its own digest",
        (
            "writes it again from the mark on its file, from the bytes if the row's digest proves "
            "them, or from the part in the bucket"
        ),
    )
    ROW_CONTRADICTS = (
        "row_contradicts",
        (
            "a row contradicts itself or its step: clean and at no remote; dirty in a published "
            "step; evicted and here; stored otherwise than the part says"
        ),
        (
            "corrects the row by the documents in the bucket and a look at the object: clean if "
            "the object is there, else sent again; dirty if no document names it. Bytes under an "
            "evicted row are removed only if a remote has them"
        ),
    )
    FILE_MISSING = (
        "file_missing",
        "a row without its file",
        (
            "takes the file from `lost+found`, else fetches the bytes; if no remote has them the "
            "shard is quarantined and stays a problem"
        ),
    )
    FILE_SIZE = "file_size", "a file of another size than its row", "the same"
    BYTES_DAMAGED = (
        "bytes_damaged",
        "(`--data`) bytes fail their digest",
        (
            "the same; the damaged bytes are kept in quarantine until a remote confirmed that it "
            "has the shard"
        ),
    )
    QUARANTINED = (
        "quarantined",
        "a shard that was found damaged before",
        "uses it again if its bytes are right now, else fetches them",
    )
    OBJECT_MISSING = (
        "object_missing",
        "a verified object or pack is gone",
        (
            "if no part in the bucket names it, the shard is dirty again and the drain sends it; "
            "else `fsck` sends it again, byte for byte. An object of the S3 door is dirty again if "
            "all its bytes are here"
        ),
    )
    OBJECT_DIFFERS = (
        "object_differs",
        "our object has another size or digest",
        (
            "sends it again over that version; if the part in the bucket names the object as it "
            "is, corrects the catalog"
        ),
    )
    OBJECT_FOREIGN = (
        "object_foreign",
        "somebody else's object under our key, or one that may not be read",
        "nothing: move it away",
    )
    OBJECT_ROW_DAMAGED = (
        "object_row_damaged",
        "the row of an object of the S3 door is damaged",
        (
            "removes it, so that its mount drains on, and keeps its files in `lost+found` "
            "(`--adopt` takes them back); left if bytes are in the catalog alone"
        ),
    )
    PIECES_MISSING = "pieces_missing", "pieces of an object of the S3 door are unknown", "the same"
    MANIFEST_MISSING = (
        "manifest_missing",
        "a step that was published here has no manifest",
        (
            "lets the drain publish it again, with this node's parts; a damaged manifest of "
            "cachetier's is replaced by a claim. Left while another save has the step, or may have "
            "it (parts at `<step>~<id>` that this node does not know): repair on the node that "
            "saved that one"
        ),
    )
    MANIFEST_DAMAGED = (
        "manifest_damaged",
        "the manifest of a step that was, or will be, published here cannot be read",
        "the same",
    )
    PART_DAMAGED = (
        "part_damaged",
        "a rank's part is missing, or not what the manifest names",
        (
            "writes it again if that is byte for byte the same; before publication, when all its "
            "objects are there"
        ),
    )
    PIECE_UNNAMED = (
        "piece_unnamed",
        "a piece of an S3 door object without a row",
        "keeps its file in `lost+found`",
        NOTE,
    )
    FILE_UNMARKED = (
        "file_unmarked",
        "a file of a put that was never acknowledged",
        "removes it, as a start does",
        NOTE,
    )
    FILE_ORPHAN = (
        "file_orphan",
        "a file that was committed once and has no row",
        "moves it to `lost+found`, as a start does",
        NOTE,
    )
    FILE_SET_ASIDE = (
        "file_set_aside",
        "a file in `lost+found`, with the reason if known",
        "nothing: `prune` or `--adopt`",
        NOTE,
    )
    STEP_ENDED = (
        "step_ended",
        "another node deleted or replaced the step",
        "ends it here too, unless it is pinned and was deleted",
    )
    GONE_ELSEWHERE = (
        "gone_elsewhere",
        (
            "the step was deleted or replaced at a replica, or somebody replaced an object of the "
            "S3 door"
        ),
        "nothing: `cachetier delete RUN STEP` removes the rest of a step",
        NOTE,
    )
    CLAIM_STALE = (
        "claim_stale",
        "an ended save still claims its step; the next save takes it",
        "nothing",
        NOTE,
    )
    UPLOAD_STALE = "upload_stale", "an unfinished upload of an ended step", "aborts it", NOTE
    OBJECT_UNNAMED = (
        "object_unnamed",
        "our object beside a published step that does not name it",
        "nothing",
        NOTE,
    )
    OBJECT_NOT_OURS = "object_not_ours", "somebody else's object beside a step", "nothing", NOTE


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
        return self.kind.is_problem

    @property
    def where(self) -> str:
        """The subject of the finding, in one word."""
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
        severity = PROBLEM if self.is_problem else NOTE
        return {"kind": str(self.kind), "severity": severity, "message": self.message, **known}


@dataclass(frozen=True, slots=True)
class RepairOutcome:
    """The outcome of a finding: ``repaired``, and how, or why not."""

    finding: Finding
    repaired: bool
    what: str


class Repair(NamedTuple):
    """The repair of one kind of finding: its announcement, and the function that does it.

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
