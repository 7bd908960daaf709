"""The bucket as anybody can read it, without a node and without cachetier's ways of reading."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import zstandard
from cachetier_client.bucket_format.documents import Manifest, ManifestState, ShardSummary, decode
from cachetier_client.bucket_format.layout import Layout, own_location
from cachetier_client.bucket_format.stored import Codec

from cachetier.errors import ObjectMissingError
from cachetier.remote.base import ObjectStore
from tests.soak.history import StepHistory
from tests.soak.nodes import PREFIX

MANIFEST = ".cachetier/manifest.json"


class BareBucket:
    """Objects, listed and read straight from the S3 server."""

    def __init__(self, objects: ObjectStore) -> None:
        self.objects = objects
        self.layout = Layout(PREFIX)

    def manifest(self, run: str, step: int) -> Manifest | None:
        key = self.layout.manifest_key(run, step)
        try:
            return decode(Manifest, self.objects.get(key), key)
        except ObjectMissingError:
            return None

    def published(self, run: str, step: int) -> Manifest | None:
        manifest = self.manifest(run, step)
        published = manifest is not None and manifest.state is ManifestState.PUBLISHED
        return manifest if published else None

    def notes(self, run: str) -> list[dict[str, Any]]:
        """Return what nodes say of steps of a run that are not durable yet."""
        found = []
        for key in self.objects.list(f"{PREFIX}/.cachetier/unflushed/{run}/").keys:
            with suppress(ObjectMissingError):
                found.append(json.loads(self.objects.get(key)))
        return found

    def shard(self, manifest: Manifest, shard: ShardSummary) -> bytes:
        """Return a shard's bytes: of its object, or its place in a pack, decoded by any zstd.

        Raises:
            ObjectMissingError: It is not there.
        """
        location = manifest.location
        key = self.layout.object_key(manifest.run, location, shard.name, shard.pack_name)
        if shard.pack is not None:
            body = self.objects.get(key, shard.pack.start, shard.stored_bytes)
        else:
            body = self.objects.get(key)
        if shard.codec is Codec.RAW:
            return body
        decoder = zstandard.ZstdDecompressor()
        with decoder.stream_reader(io.BytesIO(body), read_across_frames=True) as reader:
            return reader.read()

    def keys(self, run: str) -> list[str]:
        return list(self.objects.list(self.layout.run_prefix(run)).keys)

    def uploads(self, prefix: str = PREFIX) -> list[tuple[str, str]]:
        return list(self.objects.list_uploads(f"{prefix}/"))

    def may_hold(self, run: str, number: int, step: StepHistory) -> Iterator[str]:
        """Yield the keys that a step's saves may have written; packs are told by their prefix."""
        yield self.layout.manifest_key(run, number)
        for save_id, save in step.saves.items():
            for location in (str(number), own_location(number, save_id)):
                for rank in save.parts:
                    yield self.layout.part_key(run, location, rank)
                for event in save.puts():
                    yield self.layout.shard_key(run, location, event.name)


def is_pack(key: str) -> bool:
    return "/.cachetier/pack-" in key
