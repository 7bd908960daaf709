"""The traffic between this node and one remote: its pace, its present limits, its counts."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import astuple

from cachetier_client.bucket_format.uploads import LARGE_PART_BYTES, usual_upload_part_bytes
from cachetier_client.clock import Clock

from cachetier.drain.messages import ReportTraffic
from cachetier.drain.pace.pace import Pace, PaceState
from cachetier.drain.pace.throughput import Throughput
from cachetier.drain.upload.compression_model import Link
from cachetier.errors import ThrottledError
from cachetier.model.bandwidth import Bandwidth

UNLIMITED = Bandwidth()
WEIGHT = 0.2  # of the last part in what parts get on average


class Traffic:
    """The requests to one remote, all threads together. ``pace`` decides when each may begin."""

    def __init__(
        self,
        concurrency: int,
        clock: Clock,
        bandwidth: Bandwidth = UNLIMITED,
        parts: int | None = None,
    ) -> None:
        """Allow up to ``concurrency`` requests at once, and as many bytes as ``bandwidth`` says.

        ``parts`` is how many of the requests may be parts; all of them if nobody says.
        """
        self.pace = Pace(concurrency, bytes_limit=self._bytes_per_second, fraction=random.random)
        self.hurried = False
        self._bandwidth = bandwidth
        self._clock = clock
        self._lock = threading.Lock()
        self._requests = self._throttled = self._sent_bytes = 0
        self._part_bytes_per_second: float | None = None
        self._throughput = Throughput()
        self._parts = parts or concurrency
        self._reported: PaceState | None = None

    def observe(self, operation: str, seconds: float, size_bytes: int, outcome: str) -> None:
        """Count a request that ended; what ``MeasuredObjectStore`` calls."""
        with self._lock:
            if operation == "upload_part" and outcome == "ok":
                self._note_part(size_bytes / max(1e-6, seconds))
            if operation in ("upload_part", "put") and outcome == "ok":
                self._sent_bytes += size_bytes
                self._note_link(size_bytes, seconds)
            self._requests += 1
            self._throttled += outcome == ThrottledError.code

    def has_room(self) -> bool:
        """Return whether a slow part may go twice: no limit holds, and half of us is idle."""
        pace = self.pace.state()
        unlimited = pace.writes_per_second is None and pace.bytes_per_second is None
        return unlimited and 2 * pace.in_flight <= pace.concurrency

    def usual_upload_part_bytes(self) -> int:
        """Return the size of parts that suits the link as it is now."""
        scarce = self.pace.state().writes_per_second is not None
        return usual_upload_part_bytes(self._part_bytes_per_second, requests_are_scarce=scarce)

    def link(self) -> Link | None:
        """Return what the link takes now, as far as known, and no more than the limits allow."""
        pace = self.pace.state()
        with self._lock:
            link = self._throughput.link(self._clock.monotonic())
        limits = [pace.bytes_per_second] if pace.bytes_per_second is not None else []
        if pace.writes_per_second is not None:
            limits.append(pace.writes_per_second * LARGE_PART_BYTES)
        if limits:
            limit = max(1.0, min(limits))
            known = link or Link(limit, limit)
            link = Link(*(min(limit, speed) for speed in astuple(known)))
        return link

    def _note_link(self, size_bytes: int, seconds: float) -> None:
        pace = self.pace.state()
        most = min(pace.concurrency, self._parts)
        now = self._clock.monotonic()
        self._throughput.note(size_bytes, seconds, pace.in_flight, most, now)

    def _note_part(self, bytes_per_second: float) -> None:
        known = self._part_bytes_per_second
        weighed = bytes_per_second if known is None else known + WEIGHT * (bytes_per_second - known)
        self._part_bytes_per_second = weighed

    def news(self) -> ReportTraffic | None:
        """Return what ``serve`` shows of the traffic since the last time; None if nothing moved."""
        pace = self.pace.state()
        with self._lock:
            if not self._requests and pace == self._reported:
                return None
            news = ReportTraffic(self._requests, self._throttled, self._sent_bytes, pace)
            self._requests = self._throttled = self._sent_bytes = 0
            self._reported = pace
        return news

    def _bytes_per_second(self) -> float | None:
        local = time.localtime(self._clock.now())
        return self._bandwidth.at(local.tm_hour * 60 + local.tm_min, hurried=self.hurried)
