"""A short-lived cache of the documents that this drain wrote, so that it need not read them.

A claim is only ever used as the condition of the next write, so one that is out of date costs a
refusal, never a wrong verdict. A part is written once; after a while it is read again all the same,
as somebody may have removed it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from cachetier_client.bucket_format.documents import PartDocument, ReadPart, SeenManifest
from cachetier_client.bucket_format.publication import Claimant
from cachetier_client.clock import Clock
from cachetier_client.io.digests import digest_of, to_hex

CLAIMS = 256
PART_LIMIT_BYTES, PARTS_BYTES = 2 << 20, 8 << 20
FRESH_SECONDS = 60.0

_Step = tuple[str, int]
_Place = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class _OwnRankPart:
    part: ReadPart
    size_bytes: int
    written_at: float


class OwnWrites:
    """Claims and parts of late, bounded in number and bytes. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._claims: OrderedDict[_Step, SeenManifest] = OrderedDict()
        self._parts: OrderedDict[_Place, _OwnRankPart] = OrderedDict()
        self._parts_bytes = 0

    def claimed(self, seen: SeenManifest) -> None:
        """Remember the claim of a save of ours."""
        with self._lock:
            self._claims[seen.manifest.run, seen.manifest.step] = seen
            if len(self._claims) > CLAIMS:
                self._claims.popitem(last=False)

    def claim(self, save: Claimant) -> SeenManifest | None:
        """Return the claim of ``save`` as it was written, or None where it is to be read."""
        with self._lock:
            seen = self._claims.get((save.run, save.step))
            return seen if seen is not None and seen.manifest.save_id == save.save_id else None

    def wrote_part(self, location: str, part: PartDocument, body: bytes) -> None:
        """Remember a part that is in the bucket now as ``body``.

        A large one is not worth the memory.
        """
        if len(body) > PART_LIMIT_BYTES:
            return
        place, now = (part.run, location, part.rank), self._clock.monotonic()
        with self._lock:
            self._forget_part(place)
            self._parts[place] = _OwnRankPart((part, to_hex(digest_of(body))), len(body), now)
            self._parts_bytes += len(body)
            while self._parts_bytes > PARTS_BYTES:
                self._forget_part(next(iter(self._parts)))

    def part(self, run: str, location: str, rank: int) -> ReadPart | None:
        """Return a part as it was written, or None where it is to be read."""
        with self._lock:
            found = self._parts.get((run, location, rank))
            if found is None or self._clock.monotonic() - found.written_at > FRESH_SECONDS:
                return None
            return found.part

    def forget(self, save: Claimant, location: str) -> None:
        """Forget a save that ended, or whose claim is out of date."""
        with self._lock:
            seen = self._claims.get((save.run, save.step))
            if seen is not None and seen.manifest.save_id == save.save_id:
                del self._claims[save.run, save.step]
            for place in [key for key in self._parts if key[:2] == (save.run, location)]:
                self._forget_part(place)

    def _forget_part(self, place: _Place) -> None:
        found = self._parts.pop(place, None)
        if found is not None:
            self._parts_bytes -= found.size_bytes
