"""The results of calls: frozen values, read from replies that may carry more fields than we know.

Source: docs/protocol.md, "Operations".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from cachetier_client.bucket_format import publication

Level = Literal["memory", "local", "replicated", "durable"]
AckLevel = Literal["memory", "local", "replicated", "durable"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """The promise that a shard is safe at ``level``; ``digest`` is its CRC-64/NVME in hex."""

    run: str
    step: int
    name: str
    save_id: str
    size_bytes: int
    digest: str
    level: str

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> Receipt:
        """Read a receipt."""
        return cls(
            run=str(reply["run"]),
            step=int(reply["step"]),
            name=str(reply["name"]),
            save_id=str(reply["save_id"]),
            size_bytes=int(reply["size_bytes"]),
            digest=str(reply["digest"]),
            level=str(reply["level"]),
        )

    def as_reply(self) -> dict[str, Any]:
        """Return it as the service sends it."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ObjectListed:
    """One object of a mount; ``level`` is local until its bucket shows it, then durable."""

    key: str
    size_bytes: int
    etag: str
    level: str
    modified_at: float

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> ObjectListed:
        """Read an object of a listing."""
        return cls(
            key=str(reply["key"]),
            size_bytes=int(reply["size_bytes"]),
            etag=str(reply["etag"]),
            level=str(reply["level"]),
            modified_at=float(reply["modified_at"]),
        )


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard of a step; ``state`` is dirty, clean, evicted, quarantined or remote."""

    name: str
    rank: int
    size_bytes: int
    digest: str
    state: str

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> ShardInfo:
        """Read a shard of a step object."""
        return cls(
            name=str(reply["name"]),
            rank=int(reply.get("rank") or 0),
            size_bytes=int(reply.get("size_bytes") or 0),
            digest=str(reply.get("digest") or ""),
            state=str(reply.get("state") or ""),
        )


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One step: how far it is, where it can be restored from, and what is still only here.

    ``levels`` are those at which the whole step can be restored; ``ranks`` have sealed on this
    node; ``pinned``: it stays there; ``checked_at``: when the bucket was last asked about a
    published step. ``shards`` is filled by ``Client.step`` alone; ``shard_count`` always is.
    ``newer_local``, from ``Client.latest``, is a newer step that this node can restore.
    Instants are UTC seconds.
    """

    run: str
    step: int
    save_id: str
    state: str
    levels: tuple[str, ...]
    ranks: tuple[int, ...]
    world_size: int
    shard_count: int
    size_bytes: int
    dirty_bytes: int
    started_at: float | None
    sealed_at: float | None
    published_at: float | None
    shards: tuple[ShardInfo, ...] = ()
    pinned: bool = False
    checked_at: float | None = None
    newer_local: int | None = None

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> StepInfo:
        """Read a step object, with its shards or with their number."""
        listed = reply.get("shards")
        shards = tuple(map(ShardInfo.from_reply, listed)) if isinstance(listed, list) else ()
        return cls(
            run=str(reply["run"]),
            step=int(reply["step"]),
            save_id=str(reply.get("save_id") or ""),
            state=str(reply.get("state") or ""),
            levels=tuple(reply.get("levels") or ()),
            ranks=tuple(reply.get("ranks") or ()),
            world_size=int(reply.get("world_size") or 0),
            shard_count=listed if isinstance(listed, int) else len(shards),
            size_bytes=int(reply.get("size_bytes") or 0),
            dirty_bytes=int(reply.get("dirty_bytes") or 0),
            started_at=reply.get("started_at"),
            sealed_at=reply.get("sealed_at"),
            published_at=reply.get("published_at"),
            shards=shards,
            pinned=reply.get("pinned") is True,
            checked_at=reply.get("checked_at"),
        )

    @property
    def is_whole(self) -> bool:
        """Whether the parts of ``ranks`` are enough to publish the step."""
        return publication.is_whole(self.world_size, self.ranks)


@dataclass(frozen=True, slots=True)
class UnflushedStep:
    """A step that other nodes acknowledged, and that is not durable yet.

    ``nodes`` are their host names, ``stores`` the ids of their cache directories. ``ranks`` are
    those whose parts are on any node, ``ranks_here`` those on the node that was asked.
    """

    run: str
    step: int
    save_id: str
    world_size: int
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    stores: tuple[str, ...]
    ranks_here: tuple[int, ...] = ()

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> UnflushedStep:
        """Read a step of ``unflushed``."""
        found: dict[str, Any] = {name: reply[name] for name in cls.__slots__}
        for name in ("ranks", "nodes", "stores", "ranks_here"):
            found[name] = tuple(found[name])
        return cls(**found)

    @property
    def is_whole(self) -> bool:
        """Whether the parts on all nodes are enough to publish the step."""
        return publication.is_whole(self.world_size, self.ranks)

    @property
    def is_whole_here(self) -> bool:
        """Whether the parts on the asked node alone are enough."""
        return publication.is_whole(self.world_size, self.ranks_here)

    def is_newer(self, step: int | None, save_id: str) -> bool:
        """Return whether a job that resumes from ``step``, or from nothing, would be without it."""
        return step is None or self.step > step or (self.step == step and self.save_id != save_id)

    def with_ranks_here(self, ranks: tuple[int, ...]) -> UnflushedStep:
        """Return it as a node knows it that has the parts of ``ranks``."""
        return replace(self, ranks=tuple(sorted({*self.ranks, *ranks})), ranks_here=ranks)


@dataclass(frozen=True, slots=True)
class PinInfo:
    """A pinned step: ``local_bytes`` of its ``size_bytes`` lie on the node, and stay there."""

    run: str
    step: int
    pinned_at: float
    shards: int
    local_shards: int
    size_bytes: int
    local_bytes: int

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> PinInfo:
        """Read a pin."""
        return cls(
            run=str(reply["run"]),
            step=int(reply["step"]),
            pinned_at=float(reply["pinned_at"]),
            shards=int(reply["shards"]),
            local_shards=int(reply["local_shards"]),
            size_bytes=int(reply["size_bytes"]),
            local_bytes=int(reply["local_bytes"]),
        )


@dataclass(frozen=True, slots=True)
class StillComing:
    """The part of a step that is still being brought back to the node."""

    shards: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LevelReached:
    """The result of a wait: the level, and how long after the save's start it was looked at."""

    level: str
    age_seconds: float


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that failed in the background, after the call it concerns had succeeded."""

    code: str
    message: str
    hint: str
    run: str | None = None
    step: int | None = None
    rank: int | None = None
    name: str | None = None

    @classmethod
    def from_reply(cls, reply: Mapping[str, Any]) -> Incident:
        """Read an incident."""
        return cls(
            code=str(reply.get("code") or "internal"),
            message=str(reply.get("message") or ""),
            hint=str(reply.get("hint") or ""),
            run=reply.get("run"),
            step=reply.get("step"),
            rank=reply.get("rank"),
            name=reply.get("name"),
        )

    def __str__(self) -> str:
        ids = {"run": self.run, "step": self.step, "rank": self.rank, "shard": self.name}
        where = " ".join(f"{word}={value}" for word, value in ids.items() if value is not None)
        return f"{where}: {self.message} Next: {self.hint}" if where else self.message
