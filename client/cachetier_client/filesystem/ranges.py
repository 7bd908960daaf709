"""Many parts of many files at once: each step's in one call, each block read once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cachetier_client.errors import CachetierClientError, InvalidRequestError
from cachetier_client.filesystem.tree import Tree, missing
from cachetier_client.identity.addresses import Address

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
    results: list[bytes | CachetierClientError] = [b""] * len(wanted)
    groups: dict[tuple[str | None, int | None], list[int]] = {}
    for index, (address, _, _) in enumerate(wanted):
        groups.setdefault((address.run, address.step), []).append(index)
    for indices in groups.values():
        try:
            found = _read_of_step(tree, [wanted[index] for index in indices], timeout_seconds)
        except CachetierClientError as error:
            found = [error] * len(indices)
        for index, result in zip(indices, found, strict=True):
            results[index] = result
    return results


def _read_of_step(
    tree: Tree, wanted: Sequence[tuple[Address, Bound, Bound]], timeout_seconds: float
) -> list[bytes | CachetierClientError]:
    sizes = tree.sizes(wanted[0][0])
    buffers: list[bytearray | CachetierClientError] = []
    ranges: dict[str, list[tuple[int, Any]]] = {}
    for address, start, end in wanted:
        size = sizes.get(address.name or "")
        if size is None:
            buffers.append(missing(tree.path_of(address)))
            continue
        first, last, _ = slice(start, end).indices(size)
        buffer = bytearray(max(0, last - first))
        buffers.append(buffer)
        ranges.setdefault(address.name or "", []).append((first, buffer))
    run, step = wanted[0][0].run, wanted[0][0].step
    if ranges and step is not None:
        tree.saves.client.read_ranges(run, step, ranges, timeout_seconds=timeout_seconds)
    return [bytes(each) if isinstance(each, bytearray) else each for each in buffers]
