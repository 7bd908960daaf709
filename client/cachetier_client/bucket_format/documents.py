"""The JSON documents of the bucket as a client writes and reads them.

They are the service's, field by field and in its order, so that a part comes out the same whoever
writes it; a test holds the two against each other.

Source: ``model/documents.py`` of the service; docs/architecture.md, "State in the bucket".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cachetier_client.bucket_format import publication
from cachetier_client.bucket_format.publication import Claimant, ManifestState
from cachetier_client.errors import IntegrityError
from cachetier_client.identity.names import SaveIds
from cachetier_client.io.digests import digest_of, to_hex

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A shard that lies in the bucket raw: size, digest, and the digest of each block."""

    name: str
    size_bytes: int
    digest: int
    block_digests: tuple[int, ...]

    def summary(self, rank: int) -> dict[str, Any]:
        """Return the shard as a manifest lists it."""
        return {
            "name": self.name,
            "rank": rank,
            "size_bytes": self.size_bytes,
            "digest": to_hex(self.digest),
            "codec": "raw",
            "stored_bytes": self.size_bytes,
        }

    def described(self, rank: int) -> dict[str, Any]:
        """Return the shard as its rank's part describes it."""
        return {**self.summary(rank), "block_digests": "".join(map(to_hex, self.block_digests))}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The step's one mutable document, and the version it was read at."""

    state: ManifestState
    run: str
    step: int
    save_id: str
    location: str
    nonce: str
    started_at: float
    replaces: tuple[str, ...] = ()
    world_size: int = 1
    published_at: float | None = None
    parts: Sequence[dict[str, Any]] = field(default=())
    shards: Sequence[dict[str, Any]] = field(default=())
    etag: str = ""

    def encode(self) -> bytes:
        """Return the document."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "state": self.state,
            "run": self.run,
            "step": self.step,
            "save_id": self.save_id,
            "location": self.location,
            "nonce": self.nonce,
            "started_at": self.started_at,
            "replaces": list(self.replaces),
            "world_size": self.world_size,
        }
        if self.published_at is not None:
            document["published_at"] = self.published_at
        document |= {"parts": list(self.parts), "shards": list(self.shards)}
        return encoded(document)


def manifest_of(body: bytes, etag: str, key: str) -> Manifest:
    """Read a manifest.

    Raises:
        IntegrityError: It is none of ours.
    """
    document = decoded(body, key)
    try:
        return Manifest(
            state=ManifestState(document["state"]),
            run=str(document["run"]),
            step=int(document["step"]),
            save_id=str(document["save_id"]),
            location=str(document["location"]),
            nonce=str(document["nonce"]),
            started_at=float(document["started_at"]),
            replaces=tuple(map(str, document.get("replaces", ()))),
            world_size=int(document.get("world_size", 1)),
            published_at=document.get("published_at"),
            parts=tuple(document.get("parts", ())),
            shards=tuple(document.get("shards", ())),
            etag=etag,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{key} is not a manifest of format {FORMAT}: {error!r}") from None


def part_document(part: SaveIds, entries: Iterable[Entry]) -> bytes:
    """Return the document of a rank's part."""
    ordered = sorted(entries, key=lambda entry: entry.name)
    return encoded(
        {
            "format": FORMAT,
            "run": part.run,
            "step": part.step,
            "save_id": part.save_id,
            "rank": part.rank,
            "world_size": part.world_size,
            "shards": [entry.described(part.rank) for entry in ordered],
        }
    )


@dataclass(frozen=True, slots=True)
class Held:
    """A shard that the service acknowledged before it went away."""

    size_bytes: int
    digest: str


def pending_document(
    part: SaveIds,
    entries: Iterable[Entry],
    held: dict[str, Held],
    *,
    ranks_on_node: int | None,
    follows: bool,
) -> bytes:
    """Return the document that asks the service to seal a part of which it holds ``held``."""
    ordered = sorted(entries, key=lambda entry: entry.name)
    return encoded(
        {
            "format": FORMAT,
            **part.fields(),
            "ranks_on_node": ranks_on_node,
            "follows": follows,
            "shards": [entry.described(part.rank) for entry in ordered],
            "held": [
                {"name": name, "size_bytes": each.size_bytes, "digest": each.digest}
                for name, each in sorted(held.items())
            ],
        }
    )


def reference_of(document: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Return how a manifest names a part."""
    shards = document["shards"]
    return {
        "rank": document["rank"],
        "digest": to_hex(digest_of(body)),
        "shards": len(shards),
        "size_bytes": sum(shard["size_bytes"] for shard in shards),
    }


def summary_of(shard: dict[str, Any]) -> dict[str, Any]:
    """Return a shard of a part as the manifest lists it: what the part says, but for its blocks."""
    blocks = ("block_digests", "frame_sizes", "frame_digests")
    return {name: value for name, value in shard.items() if name not in blocks}


def claim(save: Claimant, seen: Manifest | None, nonce: str, *, spread: bool) -> Manifest:
    """Return the document that claims the step for ``save`` over ``seen``."""
    return Manifest(**publication.claim(save, seen, nonce, spread=spread))


def published(
    claimed: Manifest, parts: Sequence[tuple[dict[str, Any], bytes]], at: float
) -> Manifest:
    """Return ``claimed`` as the published manifest of ``parts``, each with its bytes."""
    return replace(
        claimed,
        state=ManifestState.PUBLISHED,
        published_at=at,
        parts=[reference_of(document, body) for document, body in parts],
        shards=[summary_of(shard) for document, _ in parts for shard in document["shards"]],
    )


def encoded(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def decoded(body: bytes, key: str) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        IntegrityError: It is none.
    """
    try:
        return dict(json.loads(body))
    except (TypeError, ValueError, RecursionError) as error:
        raise IntegrityError(f"{key} is not a JSON object: {error}") from None
