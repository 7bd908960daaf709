"""The keys of the bucket's objects. The bucket stays readable without cachetier.

::

    <prefix>/<run>/<step>/<name>                           shards of the save that claimed the step
    first
    <prefix>/<run>/<step>~<save_id>/<name>                 shards of any other save
    <prefix>/<run>/<location>/.cachetier/rank-<r>.json     a rank's part
    <prefix>/<run>/<location>/.cachetier/pending-<r>.json  a part that its service is to seal
    <prefix>/<run>/<location>/.cachetier/pack-<r>-<digest> small shards of a rank, in a row
    <prefix>/<run>/<step>/.cachetier/manifest.json         the step's only key that changes
    <prefix>/.cachetier/stores/<store>.json                a cache directory's claim on its store id
    <prefix>/.cachetier/unflushed/<run>/<store>.json       steps of a run that a node acknowledged
    and that are not durable yet

With a spread layout the shards (and they alone) begin with one of sixteen prefixes, so that a store
that limits requests by prefix limits each of them apart. The location says which layout a save has,
so whoever reads a manifest finds its shards, however its own node is set up::

    <prefix>/~<0-f>/<run>/<step>~~/<name>                  shards of a save that is spread

Source: docs/architecture.md, "State in the bucket".
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

from cachetier_client.errors import InvalidNameError
from cachetier_client.identity.names import GENERATION_MARK, RESERVED_SEGMENT, parsed_step

_PART = re.compile(r"rank-(0|[1-9][0-9]*)\.json", re.ASCII)
_PENDING = re.compile(r"pending-(0|[1-9][0-9]*)\.json", re.ASCII)
PACK_NAME = r"pack-[0-9]+-[0-9a-f]{16}"

SPREAD_MARK = GENERATION_MARK * 2  # no save id begins or ends with it
SPREAD_DIGITS = "0123456789abcdef"


def plain_location(step: int, *, spread: bool = False) -> str:
    """Return the location of the save that claimed the step first."""
    return f"{step}{SPREAD_MARK}" if spread else str(step)


def own_location(step: int, save_id: str, *, spread: bool = False) -> str:
    """Return the location of any other save of the step."""
    return f"{step}{GENERATION_MARK}{save_id}{SPREAD_MARK if spread else ''}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Keys under one prefix; an empty prefix puts runs at the bucket's root.

    ``spread`` is what new saves are to be.
    """

    prefix: str = ""
    spread: bool = False

    def run_prefix(self, run: str) -> str:
        return f"{self.prefix}/{run}/" if self.prefix else f"{run}/"

    def branches_prefix(self, run: str) -> str:
        return f"{self.run_prefix(run).removesuffix('/')}{GENERATION_MARK}"

    def branches_in(self, run: str, prefixes: tuple[str, ...]) -> set[str]:
        """Return the run's branches that a delimiter listing of their prefix shows."""
        start = len(self.branches_prefix(run)) - len(run) - len(GENERATION_MARK)
        return {prefix[start:].rstrip("/") for prefix in prefixes}

    def store_claim_key(self, store: str) -> str:
        return f"{self.run_prefix(RESERVED_SEGMENT)}stores/{store}.json"

    def unflushed_prefix(self, run: str | None = None) -> str:
        """Return the prefix of the notes of a run, or of all runs."""
        prefix = f"{self.run_prefix(RESERVED_SEGMENT)}unflushed/"
        return prefix if run is None else f"{prefix}{run}/"

    def unflushed_key(self, run: str, store: str) -> str:
        return f"{self.unflushed_prefix(run)}{store}.json"

    def location_prefix(self, run: str, location: str) -> str:
        return f"{self.run_prefix(run)}{location}/"

    def shard_key(self, run: str, location: str, name: str) -> str:
        if not location.endswith(SPREAD_MARK):
            return f"{self.location_prefix(run, location)}{name}"
        digit = SPREAD_DIGITS[zlib.crc32(f"{run}/{location}/{name}".encode()) % len(SPREAD_DIGITS)]
        return f"{self._spread_prefix(digit, run, location)}{name}"

    def shard_prefixes(self, run: str, location: str) -> tuple[str, ...]:
        """Return every prefix that shards of a save may have."""
        if not location.endswith(SPREAD_MARK):
            return (self.location_prefix(run, location),)
        return tuple(self._spread_prefix(digit, run, location) for digit in SPREAD_DIGITS)

    def prefixes(self, run: str, location: str) -> list[str]:
        """Return every prefix that any object of a save may have, its documents included."""
        shards = self.shard_prefixes(run, location)
        return sorted({self.location_prefix(run, location), *shards})

    def upload_prefixes(self, run: str, *, spread: bool) -> tuple[str, ...]:
        """Return the prefixes of all saves of a run; ``spread``: some have that layout."""
        plain = self.run_prefix(run)
        if not spread:
            return (plain,)
        rests = (self._spread_prefix(digit, run, "") for digit in SPREAD_DIGITS)
        return (plain, *(rest.removesuffix("/") for rest in rests))

    def _spread_prefix(self, digit: str, run: str, location: str) -> str:
        rest = f"{GENERATION_MARK}{digit}/{run}/{location}/"
        return f"{self.prefix}/{rest}" if self.prefix else rest

    def object_key(self, run: str, location: str, name: str, pack: str | None) -> str:
        """Return the key of the object that holds shard ``name``: its own, or its pack's."""
        if pack is None:
            return self.shard_key(run, location, name)
        return self.pack_key(run, location, pack)

    def pack_key(self, run: str, location: str, pack: str) -> str:
        return f"{self.parts_prefix(run, location)}{pack}"

    def part_key(self, run: str, location: str, rank: int) -> str:
        return f"{self.parts_prefix(run, location)}rank-{rank}.json"

    def pending_key(self, run: str, location: str, rank: int) -> str:
        return f"{self.parts_prefix(run, location)}pending-{rank}.json"

    def parts_prefix(self, run: str, location: str) -> str:
        return f"{self.location_prefix(run, location)}{RESERVED_SEGMENT}/"

    def manifest_key(self, run: str, step: int) -> str:
        return f"{self.parts_prefix(run, plain_location(step))}manifest.json"

    def steps_in(self, run: str, prefixes: tuple[str, ...]) -> list[int]:
        """Return the steps that a delimiter listing of the run's prefix shows, ascending."""
        start = len(self.run_prefix(run))
        steps = set()
        for prefix in prefixes:
            try:
                steps.add(parsed_step(prefix[start:].rstrip("/")))
            except InvalidNameError:
                continue  # another save's location, or somebody else's folder
        return sorted(steps)


def pack_name(rank: int, digest: int) -> str:
    """Return the name of a pack, under ``.cachetier/``."""
    return f"pack-{rank}-{digest:016x}"


def is_pending(key: str) -> bool:
    """Return whether ``key`` is that of a part that its service is to seal."""
    return _PENDING.fullmatch(key.rsplit("/", 1)[-1]) is not None


def rank_of_part(key: str) -> int | None:
    """Return the rank whose part lies under ``key``, or None if it is no part."""
    match = _PART.fullmatch(key.rsplit("/", 1)[-1])
    return int(match.group(1)) if match else None
