"""How large a save of this node is: told, known to its catalog, or guessed from the bucket."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cachetier.doctor.subject import Patient
from cachetier.errors import CachetierError
from cachetier.remote.retrying import RetryPolicy

if TYPE_CHECKING:
    from cachetier.model.documents import Manifest
    from cachetier.remote.bucket import Bucket

RUNS, STEPS = 20, 1
RANKS_ON_NODE = 8
_KEY = "largest"
_ONCE = RetryPolicy(attempts=2, deadline_seconds=10.0)


def largest_known(patient: Patient) -> tuple[int, str] | None:
    """Return the largest save to expect here and where that is known from, None if nobody knows."""
    if patient.checkpoint_bytes is not None:
        return patient.checkpoint_bytes, "as told"
    if _KEY not in patient.remembered:
        patient.remembered[_KEY] = _looked_up(patient)
    found: tuple[int, str] | None = patient.remembered[_KEY]
    return found


def _looked_up(patient: Patient) -> tuple[int, str] | None:
    from cachetier.local.repair.peek import largest_save

    in_catalog = largest_save(patient.cache_dir)
    if in_catalog:
        return in_catalog, "of this node's so far"
    if not patient.remotes or patient.skip_remote:
        return None
    from cachetier.remote.factory import open_remote

    with contextlib.suppress(CachetierError):
        bucket = open_remote(patient.remotes[0], policy=_ONCE, max_connections=1)
        return largest_part(_newest(bucket))
    return None


def _newest(bucket: Bucket) -> Iterator[Manifest]:
    """Yield the newest published step of the first runs in the bucket."""
    prefix = f"{bucket.layout.prefix}/" if bucket.layout.prefix else ""
    runs = bucket.objects.list(prefix, "/").prefixes[:RUNS]
    for run in (found[len(prefix) :].rstrip("/") for found in runs):
        for step in bucket.steps(run)[-STEPS:]:
            with contextlib.suppress(CachetierError):
                manifest = bucket.published(run, step)
                if manifest is not None:
                    yield manifest


def largest_part(manifests: Iterator[Manifest]) -> tuple[int, str] | None:
    """Return what a node would hold of the largest of these steps, eight ranks to a node."""
    sizes = [
        sum(sorted((part.size_bytes for part in manifest.parts), reverse=True)[:RANKS_ON_NODE])
        for manifest in manifests
    ]
    if not sizes:
        return None
    return max(sizes), f"in the bucket, {RANKS_ON_NODE} ranks to a node"
