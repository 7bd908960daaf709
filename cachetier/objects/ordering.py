"""Where a commit stands in the order that mounts with ``order = cluster`` keep across nodes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from cachetier.model.objects import Mount
from cachetier.objects.base import OrderKept


@dataclass(frozen=True, slots=True)
class PlaceInOrder:
    """The record that a commit makes of its objects, and the order that its answer may promise.

    Attributes:
        epoch: Of those that are no markers; None where no epoch has them.
        waits: Of the markers: see ``model.cluster_order``; None where they wait for nobody.
        kept: ``node`` where no bucket was asked, or could be.
    """

    epoch: str | None = None
    waits: str | None = None
    kept: OrderKept = "node"

    def of(self, mount: Mount, key: str) -> tuple[str | None, str | None]:
        """Return epoch and waits of the version of ``key``."""
        return (None, self.waits) if mount.is_marker(key) else (self.epoch, None)


class Ordering(Protocol):
    """Knows how a commit stands to what other nodes acknowledge. Thread-safe."""

    def before_commit(
        self, mount: Mount, keys: Sequence[str]
    ) -> AbstractContextManager[PlaceInOrder]:
        """Return the place of a commit of ``keys``, which has to end before the context does.

        Enter it once all bytes are there and ``PutObject.follows`` is known, as others may wait
        for it to end. Never raises: where the bucket cannot be asked, the place says so.
        """
