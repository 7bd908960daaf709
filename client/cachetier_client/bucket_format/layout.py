"""Where things lie in the bucket: the service's keys, as its ``model/layout.py`` makes them.

A test holds the two against each other.
"""

from __future__ import annotations

import re
import zlib

_SPREAD_MARK = "~~"
_SPREAD_DIGITS = "0123456789abcdef"
_PART = re.compile(r"rank-(0|[1-9][0-9]*)\.json", re.ASCII)


def plain_location(step: int, *, spread: bool) -> str:
    """Return the location of the save that claimed the step first."""
    return f"{step}{_SPREAD_MARK}" if spread else str(step)


def own_location(step: int, save_id: str, *, spread: bool) -> str:
    """Return the location of any other save of the step."""
    return f"{step}~{save_id}{_SPREAD_MARK if spread else ''}"


def shard_key(prefix: str, run: str, location: str, name: str) -> str:
    if not location.endswith(_SPREAD_MARK):
        return _under(prefix, f"{run}/{location}/{name}")
    digit = _SPREAD_DIGITS[zlib.crc32(f"{run}/{location}/{name}".encode()) % len(_SPREAD_DIGITS)]
    return _under(prefix, f"~{digit}/{run}/{location}/{name}")


def parts_prefix(prefix: str, run: str, location: str) -> str:
    return _under(prefix, f"{run}/{location}/.cachetier/")


def part_key(prefix: str, run: str, location: str, rank: int) -> str:
    return f"{parts_prefix(prefix, run, location)}rank-{rank}.json"


def pending_key(prefix: str, run: str, location: str, rank: int) -> str:
    return f"{parts_prefix(prefix, run, location)}pending-{rank}.json"


def manifest_key(prefix: str, run: str, step: int) -> str:
    return _under(prefix, f"{run}/{step}/.cachetier/manifest.json")


def rank_of_part(key: str) -> int | None:
    """Return the rank whose part lies under ``key``, or None if it is no part."""
    match = _PART.fullmatch(key.rsplit("/", 1)[-1])
    return int(match.group(1)) if match else None


def _under(prefix: str, rest: str) -> str:
    return f"{prefix}/{rest}" if prefix else rest
