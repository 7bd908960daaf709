"""Where things lie in the bucket. The bucket stays readable without cachetier.

::

    <prefix>/<run>/<step>/<name>                           shards of the save that claimed the step
    first
    <prefix>/<run>/<step>~<save_id>/<name>                 shards of any other save
    <prefix>/<run>/<location>/.cachetier/rank-<r>.json     a rank's part
    <prefix>/<run>/<step>/.cachetier/manifest.json         the step's only key that changes

Source: docs/architecture.md, "Checkpoints".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cachetier.errors import InvalidNameError
from cachetier.model.names import GENERATION_MARK, RESERVED_SEGMENT, parsed_step

_PART = re.compile(r"rank-(0|[1-9][0-9]*)\.json", re.ASCII)


def plain_location(step: int) -> str:
    """Return the location of the save that claimed the step first."""
    return str(step)


def own_location(step: int, save_id: str) -> str:
    """Return the location of any other save of the step."""
    return f"{step}{GENERATION_MARK}{save_id}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Keys under one prefix; an empty prefix puts runs at the bucket's root."""

    prefix: str = ""

    def run_prefix(self, run: str) -> str:
        return f"{self.prefix}/{run}/" if self.prefix else f"{run}/"

    def location_prefix(self, run: str, location: str) -> str:
        return f"{self.run_prefix(run)}{location}/"

    def shard_key(self, run: str, location: str, name: str) -> str:
        return f"{self.location_prefix(run, location)}{name}"

    def part_key(self, run: str, location: str, rank: int) -> str:
        return f"{self.parts_prefix(run, location)}rank-{rank}.json"

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


def rank_of_part(key: str) -> int | None:
    """Return the rank whose part lies under ``key``, or None if it is no part."""
    match = _PART.fullmatch(key.rsplit("/", 1)[-1])
    return int(match.group(1)) if match else None
