"""Many parts of many files at once: each commit's in one call, each block read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachetier_client.errors import CachetierClientError, InvalidRequestError
from cachetier_client.filesystem.tree import Tree
from cachetier_client.identity.addresses import Address
from cachetier_client.identity.places import Place

Bound = int | None


def aligned(bounds: Bound | Sequence[Bound], count: int) -> list[Bound]:
    """Return one bound for each path, of one for all or of as many.

    Raises:
        InvalidRequestError: There are more, or fewer.
    """
    found = [bounds] * count if bounds is None or isinstance(bounds, int) else list(bounds)
    if len(found) != count:
        raise InvalidRequestError(
            f"{len(found)} bounds for {count} paths", hint="Pass one for each path, or one for all."
        )
    return found


def read_ranges(
    tree: Tree, wanted: Sequence[tuple[Address, Bound, Bound]], timeout_seconds: float
) -> list[bytes | CachetierClientError]:
    """Return the bytes of each range, or why there are none; bounds are as those of slices."""
    results: list[bytearray | CachetierClientError] = []
    commits: dict[Place, dict[str, list[tuple[int, Any]]]] = {}
    readers: dict[Place, list[int]] = {}
    for index, (address, start, end) in enumerate(wanted):
        try:
            commit, shard = tree.shard(address)
        except CachetierClientError as error:
            results.append(error)
            continue
        first, last, _ = slice(start, end).indices(shard.size_bytes)
        buffer = bytearray(max(0, last - first))
        results.append(buffer)
        commits.setdefault(commit.place, {}).setdefault(shard.name, []).append((first, buffer))
        readers.setdefault(commit.place, []).append(index)
    for place, ranges in commits.items():
        try:
            client = tree.saves.client
            client.read_ranges(place.run, place.step, ranges, timeout_seconds=timeout_seconds)
        except CachetierClientError as error:
            for index in readers[place]:
                results[index] = error
    return [bytes(each) if isinstance(each, bytearray) else each for each in results]
