"""Block copies inside the bucket: look up the donor, check it, count what was copied.

A donor is trusted as far as it was verified: HEAD must still show the object that was recorded, its
ETag goes along with each copy, and the object that comes of it is verified like any other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cachetier_client.bucket_format.layout import Layout
from cachetier_client.bucket_format.stored import Content, Stored
from cachetier_client.bucket_format.uploads import ObjectInfo, codec_found, is_object_of
from cachetier_client.clock import Clock

from cachetier.drain.upload.target import UploadTarget
from cachetier.errors import CopiesRefusedError
from cachetier.model.composing import DONOR_FROM_BYTES, DonorFrames
from cachetier.model.shard import Shard
from cachetier.remote.base import ObjectStore
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

# A policy is mended by a person; until then a look now and then costs one request.
REFUSED_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Offer:
    """An object that was verified once, and the shard that it holds."""

    key: str
    save_id: str
    content: Content
    stored: Stored

    @classmethod
    def of(cls, donor: Shard, location: str, stored: Stored, layout: Layout) -> Offer:
        """Return what ``serve`` names, by its key."""
        key = layout.shard_key(donor.run, location, donor.name)
        return cls(key, donor.save_id, donor.content, stored)


@dataclass(frozen=True, slots=True)
class Donor:
    """An object that is there now, and which blocks of a shard lie in it at the same place."""

    key: str
    etag: str
    stored: Stored
    unchanged: tuple[bool, ...]

    def frames_for(self, raw_bytes: int) -> DonorFrames:
        """Return its frames as a shard of ``raw_bytes`` may take them over."""
        return DonorFrames(self.stored.frames, self.unchanged, raw_bytes)


Ask = Callable[[], Offer | None]


def nobody() -> None:
    """Offer nothing."""


class Copies:
    """Finds donors in one store, while it lets us copy. Thread-safe."""

    def __init__(self, store: ObjectStore, clock: Clock, *, enabled: bool = True) -> None:
        self._store = store
        self._clock = clock
        self._enabled = enabled
        self._lock = threading.Lock()
        self._refused_until = 0.0
        self._refused = False
        self._copied_bytes = 0
        self._reported: str | None = None

    @property
    def state(self) -> str:
        """``off`` by setting, ``refused`` by the store, else ``on``."""
        if not self._enabled:
            return "off"
        return "refused" if self._refused else "on"

    def find(self, target: UploadTarget, ask: Ask) -> Donor | None:
        """Return an object that has bytes of ``target`` and is there now, if any."""
        if target.size_bytes < DONOR_FROM_BYTES or not self._may_try():
            return None
        offer = ask()
        if offer is None or offer.key == target.key:
            return None
        unchanged = _unchanged(target.content, offer.content)
        if not any(unchanged):
            return None
        info = self._store.head(offer.key)
        if info is None or not _is_offered(info, offer):
            return None
        return Donor(offer.key, info.etag, offer.stored, unchanged)

    def refused(self, why: CopiesRefusedError) -> None:
        """Let nobody try to copy for a while: the store does not let us."""
        with self._lock:
            if not self._refused:
                tell(log, events.COPIES_REFUSED, reason=why.message)
            self._refused = True
            self._refused_until = self._clock.monotonic() + REFUSED_SECONDS

    def copied(self, size_bytes: int) -> None:
        """Count bytes that were copied."""
        with self._lock:
            self._refused = False
            self._copied_bytes += size_bytes

    def news(self) -> tuple[Mapping[str, int], str] | None:
        """Return what ``report_copies`` takes, since the last time; None if there is nothing."""
        with self._lock:
            if not self._copied_bytes and self.state == self._reported:
                return None
            copied_bytes, self._copied_bytes = self._copied_bytes, 0
            self._reported = self.state
            return {"copied_bytes": copied_bytes}, self.state

    def _may_try(self) -> bool:
        return self._enabled and (
            not self._refused or self._clock.monotonic() >= self._refused_until
        )


def _unchanged(ours: Content, theirs: Content) -> tuple[bool, ...]:
    """Return which blocks are the same in both; the last one of either may be shorter."""
    same = [a == b for a, b in zip(ours.block_digests, theirs.block_digests, strict=False)]
    if ours.size_bytes != theirs.size_bytes and same:
        same[-1] = False  # it would have to be as long, too
    return (*same, *[False] * (len(ours.block_digests) - len(same)))


def _is_offered(info: ObjectInfo, offer: Offer) -> bool:
    """Return whether HEAD shows what was verified."""
    stored = offer.stored
    codec = stored.codec, stored.element_size
    return is_object_of(info, offer.save_id, offer.content.digest, stored) and (
        codec_found(info.metadata) == codec
    )
