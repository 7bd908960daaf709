"""Work and tasks: one item of the drain, as ``serve`` plans it and as it crosses the channel.

``serve`` decides on *work* from what the catalog says; the drain process gets the same as a
*task*: all it needs, and no reference to the catalog.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cachetier_client.bucket_format.publication import Claimant
from cachetier_client.bucket_format.stored import NO_FACTS, ShardFacts

from cachetier.model.checkpoint import Save, claimant_of
from cachetier.model.compression import OFF, Mode
from cachetier.model.objects import ObjectVersion
from cachetier.model.packs import Packable
from cachetier.model.shard import Shard


class TaskKind(StrEnum):
    """The kind of a task; PUBLISH is repeated until the step's manifest exists.

    FOLLOW asks whether rank 0 of the save has sealed, on whatever node, and is repeated until then.
    PACK sends small shards of a rank as one object. SWEEP aborts what a save that has ended left
    unfinished at the remote.

    SHOW makes a version of an object of the S3 door visible; SEND brings its parts ahead of that.
    """

    CLAIM = "claim"
    UPLOAD = "upload"
    PACK = "pack"
    FOLLOW = "follow"
    WRITE_PART = "write_part"
    PUBLISH = "publish"
    DELETE = "delete"
    SWEEP = "sweep"
    SEND = "send"
    SHOW = "show"


Key = tuple[int, TaskKind, str]

# The codes of failures that only a person can settle, and what that person does.
CONFLICT = "conflict"
DEADLY = "deadly"
NEXT_MOVES = {
    CONFLICT: "Move the foreign object away or delete it, unless a manifest names it: then save "
    "the step again. Draining goes on by itself.",
    DEADLY: "Look in the kernel's log (`dmesg`) for what ended the processes, such as a lack of "
    "memory, and restart the service: it tries again. With `carriers = 0` it needs none.",
}


@dataclass(frozen=True, slots=True)
class Work:
    """One item: of a save, of one of its ranks (PACK, WRITE_PART), or of one shard (UPLOAD).

    Or of one ``version`` of an object (SEND, SHOW); ``sent_bytes`` of it are at the remote already.
    """

    kind: TaskKind
    save: Save
    rank: int | None = None
    shard: Shard | None = None
    packable: Packable | None = None
    version: ObjectVersion | None = None
    sent_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """How much it sends; the documents of a save are small."""
        if self.packable is not None:
            return self.packable.size_bytes
        if self.version is not None:
            return self.version.size_bytes - self.sent_bytes
        return self.shard.content.size_bytes if self.shard is not None else 0

    @property
    def uploads(self) -> bool:
        """Whether it sends shards, or pieces of objects."""
        return self.kind in (TaskKind.UPLOAD, TaskKind.PACK, TaskKind.SEND, TaskKind.SHOW)

    @property
    def name(self) -> str | None:
        """The name of the shard, or the key of the object."""
        if self.version is not None:
            return self.version.key
        return self.shard.name if self.shard is not None else None

    @property
    def key(self) -> Key:
        """The key that this work locks while in flight.

        For a shard it is the name, not the version: two versions must never race for one object.
        The parts of two versions may be sent beside each other.
        """
        if self.shard is not None:
            return name_key(self.save.number, self.shard.name)
        if self.version is not None and self.kind is TaskKind.SEND:
            return send_key(self.version)
        if self.version is not None:
            return self.save.number, TaskKind.SHOW, self.version.key
        return self.save.number, self.kind, "" if self.rank is None else str(self.rank)


def name_key(number: int, name: str) -> Key:
    """Return the key of all work on the object called ``name`` of save ``number``."""
    return number, TaskKind.UPLOAD, name


def send_key(version: ObjectVersion) -> Key:
    """Return the key of the work that sends the parts of a version ahead."""
    return version.save, TaskKind.SEND, str(version.version)


@dataclass(frozen=True, slots=True)
class Task:
    """Work as the drain process sees it; ``version``, ``name`` and the rest describe an upload.

    ``bucket`` is that of an object.
    """

    number: int
    kind: TaskKind
    save: int
    claimant: Claimant
    location: str | None
    rank: int = 0
    version: int = 0
    name: str = ""
    size_bytes: int = 0
    digest: int = 0
    facts: ShardFacts = NO_FACTS
    compression: str = str(OFF)
    bucket: str = ""

    @property
    def place(self) -> str:
        """The location of the save at the remote: ``serve`` has it claimed before anything else."""
        assert self.location is not None
        return self.location


def task_of(number: int, work: Work, claimant: Claimant, mode: Mode = OFF) -> Task:
    """Return ``work`` for ``claimant`` as the task ``number``; ``mode`` compresses its shard."""
    shard = work.shard
    if shard is None:
        return Task(
            number, work.kind, work.save.number, claimant, work.save.location, work.rank or 0
        )
    return Task(
        number=number,
        kind=work.kind,
        save=work.save.number,
        claimant=claimant,
        location=work.save.location,
        rank=shard.rank,
        version=shard.version,
        name=shard.name,
        size_bytes=shard.content.size_bytes,
        digest=shard.content.digest,
        facts=shard.facts,
        compression=str(mode),
    )


def object_task(number: int, work: Work, bucket: str) -> Task:
    """Return ``work`` on a version of an object in ``bucket`` as the task ``number``."""
    version = work.version
    assert version is not None
    return Task(
        number=number,
        kind=work.kind,
        save=version.save,
        claimant=claimant_of(work.save),
        location=None,
        version=version.version,
        name=version.key,
        size_bytes=version.size_bytes,
        digest=version.digest,
        bucket=bucket,
    )
