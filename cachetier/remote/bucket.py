"""A bucket as checkpoints see it: steps, manifests, parts and shards, as ``bucket_format`` says.

Both sides use it: the drain to claim and publish, restore to find what is published.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar

from cachetier_client.bucket_format.documents import (
    Manifest,
    ManifestState,
    PartDocument,
    ReadPart,
    SeenManifest,
    StoreClaim,
    decode,
    encode,
    read_manifest,
    read_part,
)
from cachetier_client.bucket_format.layout import Layout, rank_of_part
from cachetier_client.bucket_format.publication import MANIFEST_NONCE_KEY
from cachetier_client.bucket_format.stored import Stored
from cachetier_client.bucket_format.uploads import ObjectInfo, is_object_of
from cachetier_client.io.digests import digest_of, from_hex

from cachetier.errors import (
    IntegrityError,
    ObjectMissingError,
    PreconditionFailedError,
    RemoteRefusedError,
)
from cachetier.model.shard import Shard
from cachetier.remote.base import IF_ABSENT, ObjectStore, if_match
from cachetier.remote.fair_slots import FairSlots

_READS_OF_A_MOVING_MANIFEST = 5
BATCH_CALLS = 64

Item = TypeVar("Item")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class SeenStoreClaim:
    """A claim on a store id, and the version it was read at."""

    claim: StoreClaim
    etag: str


class Bucket:
    """The checkpoints in one remote; ``slots`` bound the ranges of shards that are read there.

    ``document`` reads one whose digest is known; a node may have it from a peer.
    """

    def __init__(
        self, objects: ObjectStore, layout: Layout, slots: FairSlots | None = None
    ) -> None:
        self.objects = objects
        self.layout = layout
        self.slots = slots or FairSlots()
        self.document: Callable[[str, int], bytes] = lambda key, _digest: self.objects.get(key)

    def steps(self, run: str) -> list[int]:
        """Return the steps that have any object, ascending; published or not."""
        listing = self.objects.list(self.layout.run_prefix(run), "/")
        return self.layout.steps_in(run, listing.prefixes)

    def branches(self, run: str) -> set[str]:
        """Return the branches of a run that have any object; published or not."""
        listing = self.objects.list(self.layout.branches_prefix(run), "/")
        return self.layout.branches_in(run, listing.prefixes)

    def look(self, run: str, step: int, key: str) -> ObjectInfo | RemoteRefusedError | None:
        """Return what lies under a key beside a step; the refusal, if that is of this key alone.

        Somebody else's object may be encrypted with a key of theirs, or closed to us.

        Raises:
            RemoteError: The store cannot say, or refuses more than that.
        """
        try:
            return self.objects.head(key)
        except RemoteRefusedError as refusal:
            self.objects.head(self.layout.manifest_key(run, step))
            return refusal

    def has(self, key: str, save_id: str, digest: int, stored: Stored) -> bool:
        """Return whether an object is there as it was verified: see ``is_object_of``."""
        found = self.objects.head(key)
        return found is not None and is_object_of(found, save_id, digest, stored)

    def holds(self, shard: Shard, location: str, stored: Stored | None = None) -> bool:
        """Return whether the object of ``shard`` is there now: same size, same digest, same save.

        Of a packed one that is its pack.

        Args:
            shard: Which.
            location: Where the objects of its save are.
            stored: What was verified there; the raw bytes where it says nothing.

        Raises:
            RemoteError: The store cannot say.
        """
        stored = stored or Stored.raw(shard.content)
        key = self.layout.object_key(shard.run, location, shard.name, stored.pack_name)
        return self.has(key, shard.save_id, shard.content.digest, stored)

    def manifest(
        self, run: str, step: int, known: SeenManifest | None = None
    ) -> SeenManifest | None:
        """Read the step's manifest, whatever its state; return ``known`` if that is still there.

        Raises:
            IntegrityError: It is there, but is no manifest of this step.
        """
        key = self.layout.manifest_key(run, step)
        for _ in range(_READS_OF_A_MOVING_MANIFEST):
            info = self.objects.head(key)
            if info is None:
                return None
            if known is not None and info.etag == known.etag:
                return known
            try:
                manifest = read_manifest(self._read(key, info.digest), run, step, key)
            except ObjectMissingError:
                return None
            # The body and the ETag come from two calls: the nonce in the metadata ties them
            # together.
            if info.metadata.get(MANIFEST_NONCE_KEY) == manifest.nonce:
                break
        else:
            raise IntegrityError(f"{key} was not written by cachetier, or keeps changing")
        return SeenManifest(manifest, info.etag)

    def put_manifest(self, manifest: Manifest, over: SeenManifest | None) -> SeenManifest | None:
        """Write ``manifest`` if the step's manifest is still ``over`` (absent when None).

        Returns what was written, or None when another writer was first. A lost reply to our own
        write is recognised by the nonce.
        """
        key = self.layout.manifest_key(manifest.run, manifest.step)
        body = encode(manifest)
        condition = IF_ABSENT if over is None else if_match(over.etag)
        try:
            info = self.objects.put(
                key,
                body,
                digest=digest_of(body),
                metadata={MANIFEST_NONCE_KEY: manifest.nonce},
                condition=condition,
            )
        except PreconditionFailedError:
            seen = self.manifest(manifest.run, manifest.step)
            return seen if seen is not None and seen.manifest.nonce == manifest.nonce else None
        return SeenManifest(manifest, info.etag)

    def published(self, run: str, step: int) -> Manifest | None:
        """Return the step's manifest if it is published: the only steps that readers trust."""
        seen = self.manifest(run, step)
        if seen is None or seen.manifest.state is not ManifestState.PUBLISHED:
            return None
        return seen.manifest

    def store_claim(self, identity: str) -> SeenStoreClaim | None:
        """Read the claim on a store id.

        Raises:
            IntegrityError: There is something that is none.
        """
        key = self.layout.store_claim_key(identity)
        info = self.objects.head(key)
        if info is not None:
            with contextlib.suppress(ObjectMissingError):
                return SeenStoreClaim(decode(StoreClaim, self.objects.get(key), key), info.etag)
        return None

    def put_store_claim(
        self, claim: StoreClaim, over: SeenStoreClaim | None
    ) -> SeenStoreClaim | None:
        """Write ``claim`` if ``over`` is still there (None: nothing); return what was written.

        None when another writer was first. A lost reply to our own write is known by the nonce.
        """
        key, body = self.layout.store_claim_key(claim.store), encode(claim)
        condition = IF_ABSENT if over is None else if_match(over.etag)
        try:
            info = self.objects.put(key, body, digest=digest_of(body), condition=condition)
        except PreconditionFailedError:
            with contextlib.suppress(IntegrityError):
                seen = self.store_claim(claim.store)
                return seen if seen is not None and seen.claim.nonce == claim.nonce else None
            return None
        return SeenStoreClaim(claim, info.etag)

    def put_part(self, part: PartDocument, location: str) -> bytes:
        """Write a rank's part once and return it as it lies there; again, nothing changes.

        Raises:
            IntegrityError: Another part of this rank is there.
        """
        key = self.layout.part_key(part.run, location, part.rank)
        body = encode(part)
        with contextlib.suppress(PreconditionFailedError):
            self.objects.put(key, body, digest=digest_of(body), condition=IF_ABSENT)
            return body
        if self.objects.get(key) != body:
            raise IntegrityError(f"{key} holds another part than rank {part.rank} put here")
        return body

    def part_ranks(self, run: str, location: str) -> set[int]:
        """Return the ranks whose parts are there."""
        keys = self.objects.list(self.layout.parts_prefix(run, location)).keys
        return {rank for key in keys if (rank := rank_of_part(key)) is not None}

    def part(self, run: str, location: str, rank: int, digest: str | None = None) -> PartDocument:
        """Read a rank's part, checked against the manifest's ``digest`` when given.

        Raises:
            IntegrityError: It is missing, damaged, or of another rank.
        """
        part, found = self._part(run, location, rank, digest)
        if digest is not None and found != digest:
            key = self.layout.part_key(run, location, rank)
            raise IntegrityError(f"{key} is not the part that the manifest names")
        return part

    def part_with_digest(self, run: str, location: str, rank: int) -> ReadPart:
        """Read a rank's part and the digest that pins it in a manifest; raises as ``part`` does."""
        return self._part(run, location, rank, None)

    def _part(self, run: str, location: str, rank: int, pinned: str | None) -> ReadPart:
        key = self.layout.part_key(run, location, rank)
        try:
            body = self._read(key, None if pinned is None else from_hex(pinned))
        except ObjectMissingError:
            raise IntegrityError(f"{key} is missing", run=run, rank=rank) from None
        return read_part(body, run, rank, key)

    def _read(self, key: str, digest: int | None) -> bytes:
        return self.objects.get(key) if digest is None else self.document(key, digest)


@dataclass(frozen=True, slots=True)
class Remote:
    """A bucket, and what the catalog, the status and the metrics call it."""

    name: str
    bucket: Bucket


class Each(Protocol):
    """``map``, or something that calls in parallel and keeps the order."""

    def __call__(
        self, function: Callable[[Item], Found], items: Iterable[Item], /
    ) -> Iterator[Found]:
        """Yield what ``function`` returns for each item."""


class InBatches:
    """``map`` on a pool: in parallel and in order, with a bounded number of calls under way."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool

    def __call__(
        self, function: Callable[[Item], Found], items: Iterable[Item], /
    ) -> Iterator[Found]:
        rest = iter(items)
        while batch := list(islice(rest, BATCH_CALLS)):
            yield from self._pool.map(function, batch)
