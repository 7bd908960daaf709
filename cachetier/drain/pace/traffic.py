"""The traffic between this node and one remote: its pace, its limits, its counts, its speed.

What the link takes is estimated from how fast single upload parts went. While as many parts are
under way as may be, their share times their number is what it takes. With fewer nobody can tell
whether the link or we were the limit: their speed times the number that there may be is an upper
bound, and what was found when the link was full counts as long as it is fresh. So a guess that is
too good fills the link, and thereby corrects itself.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass

from cachetier_client.bucket_format.uploads import LARGE_PART_BYTES, usual_upload_part_bytes
from cachetier_client.clock import Clock

from cachetier.drain.pace.found import Found
from cachetier.drain.upload.compression_model import LinkRate
from cachetier.errors import ThrottledError
from cachetier.model.bandwidth import Bandwidth
from cachetier.model.pace import Pace, PaceState

UNLIMITED = Bandwidth()
# What is smaller takes as long as its round trip, and tells nothing of the link.
LEAST_BYTES = 1 << 20
FULL_SHARE = 0.75
FRESH_SECONDS = 30.0
WEIGHT = 0.3
PART_WEIGHT = 0.2  # of the last part in what parts get on average


@dataclass(slots=True)
class _Mean:
    value: float = 0.0
    at: float | None = None

    def note(self, value: float, now: float) -> None:
        fresh = self.is_fresh(now)
        self.value = self.value + WEIGHT * (value - self.value) if fresh else value
        self.at = now

    def is_fresh(self, now: float) -> bool:
        return self.at is not None and now - self.at <= FRESH_SECONDS


class Throughput:
    """The measured throughput of one link. Pure: callers pass the time."""

    def __init__(self) -> None:
        self._full = _Mean()
        self._bound = _Mean()
        self._seen = _Mean()

    def note(self, size_bytes: int, seconds: float, in_flight: int, most: int, now: float) -> None:
        """Count a part that was sent in ``seconds``, beside others, up to ``most`` in all.

        Args:
            size_bytes: The size of the part.
            seconds: How long it took.
            in_flight: How many requests were under way when it ended, itself included.
            most: How many there may be.
            now: Monotonic.
        """
        if size_bytes < LEAST_BYTES:
            return
        speed = size_bytes / max(seconds, 1e-6)
        self._seen.note(speed * in_flight, now)
        if in_flight >= FULL_SHARE * most:
            self._full.note(speed * in_flight, now)
        else:
            self._bound.note(speed * most, now)

    def link(self, now: float) -> LinkRate | None:
        """Return what the link takes, or None while nobody knows."""
        guess = self._guess(now)
        return LinkRate(guess, min(guess, self._seen.value)) if guess is not None else None

    def _guess(self, now: float) -> float | None:
        known = [mean for mean in (self._full, self._bound) if mean.at is not None]
        fresh = [mean.value for mean in known if mean.is_fresh(now)]
        if fresh:
            return min(fresh)
        latest = max(known, key=lambda mean: mean.at or 0.0, default=None)
        return latest.value if latest is not None else None


class Traffic:
    """The requests to one remote, all threads together. ``pace`` decides when each may begin."""

    def __init__(
        self,
        concurrency: int,
        clock: Clock,
        bandwidth: Bandwidth = UNLIMITED,
        parts: int | None = None,
        moved: Callable[[], float] = lambda: 0.0,
        found: Found | None = None,
    ) -> None:
        """Allow up to ``concurrency`` requests at once, and as many bytes as ``bandwidth`` says.

        ``parts`` is how many of the requests may be parts, all of them if nobody says; ``moved``
        tells how many bytes have gone to the remote so far. ``found`` is what was found before.
        """
        self.pace = Pace(
            concurrency,
            found.at_once() if found is not None else None,
            moved=moved,
            bytes_limit=self._bytes_per_second,
            fraction=random.random,
        )
        self.hurried = False
        self._handed_bytes = 0  # of tasks that have not ended
        self._backlog_bytes = math.inf  # all that waits, if that is known
        self.rate_limit: float | None = None  # what a person set, until the service starts again
        self._bandwidth = bandwidth
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._part_bytes_per_second: float | None = None
        self._throughput = Throughput()
        self._parts = parts or concurrency
        self._reported: PaceState | None = None
        self._found = found

    def observe(self, operation: str, seconds: float, size_bytes: int, outcome: str) -> None:
        """Count a request that ended; ``CallPolicy`` calls it."""
        with self._lock:
            if operation == "upload_part" and outcome == "ok":
                self._note_part(size_bytes / max(1e-6, seconds))
            if operation in ("upload_part", "put") and outcome == "ok":
                self._counts["sent_bytes"] += size_bytes
                pace, now = self.pace.state(), self._clock.monotonic()
                most = min(pace.concurrency, self._parts)
                self._throughput.note(size_bytes, seconds, pace.in_flight, most, now)
            self._counts["requests"] += 1
            self._counts["throttled"] += outcome == ThrottledError.code

    def usual_upload_part_bytes(self) -> int:
        """Return the size of parts that suits the link as it is now."""
        scarce = self.pace.state().writes_per_second is not None
        return usual_upload_part_bytes(
            self._part_bytes_per_second,
            requests_are_scarce=scarce,
            backlog_bytes=self._backlog_bytes,
        )

    def handed_out(self, size_bytes: int, *, all_of_it: bool) -> None:
        """Hear of tasks with so many bytes; ``all_of_it``: nothing else waits."""
        with self._lock:
            self._handed_bytes += size_bytes
            self._backlog_bytes = self._handed_bytes if all_of_it else math.inf

    def ended(self, size_bytes: int) -> None:
        """Hear that a task with so many bytes has ended, however it did."""
        with self._lock:
            self._handed_bytes -= size_bytes

    def link(self) -> LinkRate | None:
        """Return what the link takes now, as far as known, and no more than the limits allow."""
        pace = self.pace.state()
        with self._lock:
            link = self._throughput.link(self._clock.monotonic())
        limits = [pace.bytes_per_second] if pace.bytes_per_second is not None else []
        if pace.writes_per_second is not None:
            limits.append(pace.writes_per_second * LARGE_PART_BYTES)
        if limits:
            limit = max(1.0, min(limits))
            known = link or LinkRate(limit, limit)
            link = LinkRate(*(min(limit, speed) for speed in astuple(known)))
        return link

    def _note_part(self, bytes_per_second: float) -> None:
        known = self._part_bytes_per_second
        self._part_bytes_per_second = (
            bytes_per_second if known is None else known + PART_WEIGHT * (bytes_per_second - known)
        )

    def news(self) -> tuple[Mapping[str, int], PaceState] | None:
        """Return what ``report_traffic`` takes, since the last time; None if nothing moved."""
        pace = self.pace.state()
        if self._found is not None and (at_once := self.pace.found()):
            self._found.keep(at_once)
        with self._lock:
            if not self._counts and pace == self._reported:
                return None
            counts, self._counts, self._reported = self._counts, Counter(), pace
        return counts, pace

    def _bytes_per_second(self) -> float | None:
        local = time.localtime(self._clock.now())
        minute = local.tm_hour * 60 + local.tm_min
        limits = (self._bandwidth.at(minute, hurried=self.hurried), self.rate_limit)
        return min((each for each in limits if each is not None), default=None)
