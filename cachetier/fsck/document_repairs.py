"""Repair the documents of steps at the remotes: part documents and manifests, as they were."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from cachetier_client.bucket_format import publication
from cachetier_client.bucket_format.documents import (
    PartDocument,
    SeenManifest,
    ShardEntry,
    encode,
    is_of_another_format,
)
from cachetier_client.bucket_format.layout import SPREAD_MARK, own_location, plain_location
from cachetier_client.bucket_format.publication import MANIFEST_NONCE_KEY, Claimant, ClaimState
from cachetier_client.bucket_format.stored import Stored
from cachetier_client.io.digests import digest_of, to_hex

from cachetier.errors import IntegrityError, ObjectMissingError
from cachetier.fsck.catalog_lookup import CatalogLookup
from cachetier.fsck.findings import Finding, FindingKind, LeftError, Repair
from cachetier.fsck.remote_index import gone
from cachetier.local.catalog import copies, saves, shards
from cachetier.local.store import Store
from cachetier.model.checkpoint import Save
from cachetier.model.shard import Shard
from cachetier.remote.base import IF_ABSENT, if_match
from cachetier.remote.bucket import Remote

AT_ONCE = 16
_MAY_PUBLISH = (ClaimState.HOLD, ClaimState.CLAIM, ClaimState.REPLACE_WHEN_WHOLE)
_NOT_HERE = "this node has no part of it: run fsck --repair on one that saved it"


class DocumentRepairs:
    """Mends documents of one store's steps; raises LeftError where that is for another node."""

    def __init__(self, store: Store, lookup: CatalogLookup) -> None:
        self._store = store
        self._lookup = lookup
        self.repairs: Mapping[FindingKind, Repair] = {
            FindingKind.MANIFEST_MISSING: Repair(
                "let the drain publish the step again", self.publish_again
            ),
            FindingKind.MANIFEST_DAMAGED: Repair(
                "claim the step again in its place, and let the drain publish it",
                self.claim_and_publish,
            ),
            FindingKind.PART_DAMAGED: Repair("write it again, as it was", self.write_part),
        }

    def publish_again(self, finding: Finding) -> str:
        """Let the drain publish a step whose manifest is gone, with this node's parts there."""
        remote, save = self._lookup.remote(finding.remote), self._lookup.save(finding)
        seen = remote.bucket.manifest(save.run, save.step)
        if seen is None:
            self._refuse_if_another_came_since(remote, save)
        elif publication.claim_state(self._claimant(save), seen.manifest) not in _MAY_PUBLISH:
            other = seen.manifest
            raise LeftError(f"save {other.save_id} has the step there now: it is {other.state}")
        location = self._location(remote, save)
        self._write_missing_parts(remote, save, location)
        if not self._store.write(copies.reopen, finding.number, remote.name):
            raise LeftError(_NOT_HERE)
        there = remote.bucket.part_ranks(save.run, location)
        missing = publication.missing_ranks(save.world_size, there)
        if missing:
            ranks = ", ".join(map(str, missing[:10]))
            return f"it waits for other nodes' parts (ranks {ranks}): run fsck --repair there too"
        return "the drain publishes it once the service runs"

    def claim_and_publish(self, finding: Finding) -> str:
        """Put a claim in the place of a damaged manifest.

        With none at all, another save could begin where the objects of this one lie.
        """
        remote, save = self._lookup.remote(finding.remote), self._lookup.save(finding)
        key = remote.bucket.layout.manifest_key(save.run, save.step)
        info = remote.bucket.objects.head(key)
        if info is not None and MANIFEST_NONCE_KEY not in info.metadata:
            raise LeftError(f"{key} was not written by cachetier: inspect it, then remove it")
        _refuse_other_formats(remote, key)
        if not self._lookup.at(remote.name).parts(save):
            raise LeftError(_NOT_HERE)
        self._refuse_if_another_came_since(remote, save)
        try:
            remote.bucket.manifest(save.run, save.step)
        except IntegrityError:
            pass
        else:
            raise LeftError("somebody wrote it again during the repair: run fsck again")
        claimed = publication.claim(self._claimant(save), None, secrets.token_hex(8))
        claimed = replace(claimed, location=self._location(remote, save))
        over = SeenManifest(claimed, info.etag) if info is not None else None
        if remote.bucket.put_manifest(claimed, over) is None:
            raise LeftError("somebody wrote it again during the repair: run fsck again")
        return self.publish_again(finding)

    def write_part(self, finding: Finding) -> str:
        """Write a rank's part again, if that is byte for byte what the manifest names."""
        remote, save = self._lookup.remote(finding.remote), self._lookup.save(finding)
        if not self._lookup.at(remote.name).is_published(save):
            self._write_missing_parts(remote, save, self._location(remote, save))
            return "it exists again: the step continues"
        assert finding.rank is not None
        seen = remote.bucket.manifest(save.run, save.step)
        named = {part.rank: part.digest for part in seen.manifest.parts} if seen else {}
        shards = self._stored(remote, save, finding.rank)
        body = encode(self._part(save, finding.rank, shards))
        if seen is None or to_hex(digest_of(body)) != named.get(finding.rank):
            raise LeftError("this node cannot make it again: run fsck --repair where its rank was")
        self._put_part(remote, save, seen.manifest.location, finding.rank, body)
        return "it is what the manifest names"

    def locate(self, finding: Finding) -> str:
        """Write down where the objects of a published save are, as its manifest says."""
        remote, save = self._lookup.remote(finding.remote), self._lookup.save(finding)
        seen = remote.bucket.manifest(save.run, save.step)
        if seen is None or seen.manifest.save_id != save.save_id:
            raise LeftError(f"no manifest says where it is: {gone(save)}")
        at = seen.manifest.location, remote.name
        self._store.write(copies.record_location, save.number, *at)
        return "its row names its place again: run fsck once more"

    # --- another save of the step ----------------------------------------------------------------

    def _refuse_if_another_came_since(self, remote: Remote, save: Save) -> None:
        """Refuse to publish a step again that may have been a newer save's since.

        The first save of a step lies at its plain location, any later one at a location of its own:
        one that this node does not know may have been published after the one that it does.
        """
        for location, save_id in self._later_saves(remote, save):
            if not remote.bucket.part_ranks(save.run, location):
                continue
            if self._lookup.save_named(save.run, save.step, save_id) is None:
                where = remote.bucket.layout.location_prefix(save.run, location)
                raise LeftError(
                    f"save {save_id}, which this node does not know, may have been the step's: run "
                    "fsck --repair on the node that saved it; if it is of no use, remove "
                    f"{where} and repair again"
                )

    def _later_saves(self, remote: Remote, save: Save) -> Iterator[tuple[str, str]]:
        """Yield location and id of each other save of the step that has a location of its own."""
        layout = remote.bucket.layout
        start = layout.location_prefix(save.run, own_location(save.step, "")).removesuffix("/")
        plain = plain_location(save.step, spread=True)
        for prefix in remote.bucket.objects.list(start, "/").prefixes:
            location = prefix.removeprefix(layout.run_prefix(save.run)).removesuffix("/")
            if location not in (plain, self._lookup.at(remote.name).location(save)):
                first = own_location(save.step, "")
                yield location, location.removeprefix(first).removesuffix(SPREAD_MARK)

    # --- parts -----------------------------------------------------------------------------------

    def _write_missing_parts(self, remote: Remote, save: Save, location: str) -> None:
        """Write this node's parts that are gone or damaged; no manifest pins what they were."""
        for part in self._lookup.at(remote.name).parts(save):
            if not part.uploaded:
                continue
            key = remote.bucket.layout.part_key(save.run, location, part.rank)
            try:
                found = remote.bucket.part(save.run, location, part.rank)
            except IntegrityError:
                _refuse_other_formats(remote, key)
                self._write_known_part(remote, save, location, part.rank)
                continue
            if (found.step, found.save_id) != (save.step, save.save_id):
                raise LeftError(f"{key} is the part of save {found.save_id}: look at it")

    def _write_known_part(self, remote: Remote, save: Save, location: str, rank: int) -> None:
        """Write a part as the drain does: once every object that it names was seen."""
        bucket, objects = remote.bucket, {}
        shards = self._stored(remote, save, rank)
        for shard, stored in shards:
            if stored is None:
                raise LeftError(f"nothing records how {shard.name} was stored: save the step again")
            key = bucket.layout.object_key(save.run, location, shard.name, stored.pack_name)
            objects[key] = shard, stored
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fsck") as threads:
            there = threads.map(lambda of: bucket.holds(of[0], location, of[1]), objects.values())
            if not all(there):
                raise LeftError("objects that its part names are not there: repair those first")
        self._put_part(remote, save, location, rank, encode(self._part(save, rank, shards)))

    def _put_part(self, remote: Remote, save: Save, location: str, rank: int, body: bytes) -> None:
        key = remote.bucket.layout.part_key(save.run, location, rank)
        found = remote.bucket.objects.head(key)
        condition = IF_ABSENT if found is None else if_match(found.etag)
        remote.bucket.objects.put(key, body, digest=digest_of(body), condition=condition)

    def _stored(self, remote: Remote, save: Save, rank: int) -> list[tuple[Shard, Stored | None]]:
        return self._store.read(shards.stored_shards_of_rank, save.number, rank, remote.name, 0, -1)

    def _part(
        self, save: Save, rank: int, shards: Iterable[tuple[Shard, Stored | None]]
    ) -> PartDocument:
        entries = [
            ShardEntry.of(shard.name, rank, shard.content, stored, shard.facts)
            for shard, stored in shards
        ]
        return publication.part_of(self._claimant(save), rank, entries)

    # --- standing --------------------------------------------------------------------------------

    def _claimant(self, save: Save) -> Claimant:
        return self._store.read(saves.claimant, save)

    def _location(self, remote: Remote, save: Save) -> str:
        location = self._lookup.at(remote.name).location(save)
        if location is None:
            raise LeftError("the catalog does not say where its objects are: save the step again")
        return location


def _refuse_other_formats(remote: Remote, key: str) -> None:
    """Refuse to write over a document that is not damaged, but newer than this cachetier."""
    with suppress(ObjectMissingError):
        if is_of_another_format(remote.bucket.objects.get(key)):
            raise LeftError(f"{key} was written by another version of cachetier: repair with that")
