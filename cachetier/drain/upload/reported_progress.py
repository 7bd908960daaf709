"""The progress of one upload as the drain process reports it."""

from __future__ import annotations

import threading
import time

from cachetier_client.bucket_format.stored import Codec
from cachetier_client.bucket_format.uploads import UploadedPart

from cachetier.drain.messages import LocalShard
from cachetier.drain.serve.service import DrainService

PARTS_AT_ONCE = 8
FRAMES_AT_ONCE = 4096
FLUSH_SECONDS = 2.0


class ReportedProgress:
    """The progress of one upload, remembered by ``serve``.

    Finished parts are reported in bundles: each report costs a sync, and what a crash forgets is
    only sent again.
    """

    def __init__(self, serve: DrainService, version: int, opened: LocalShard) -> None:
        self._serve = serve
        self._version = version
        self.upload_id = opened.upload_id
        self.part_bytes = opened.part_bytes
        self.codec = opened.codec
        self.element_size = opened.element_size
        self._lock = threading.Lock()
        self._finished: list[UploadedPart] = []
        self._flush_at = 0.0

    def parts(self) -> list[UploadedPart]:
        return [*self._serve.finished_parts(self._version)]

    def begun(self, upload_id: str, part_bytes: int, codec: Codec, element_size: int = 0) -> None:
        version = self._version
        self._serve.upload_begun(version, upload_id, part_bytes, codec, element_size)
        self.upload_id, self.part_bytes = upload_id, part_bytes
        self.codec, self.element_size = codec, element_size

    def part_done(self, part: UploadedPart) -> None:
        with self._lock:
            self._finished.append(part)
            frames = sum(len(finished.frames) for finished in self._finished)
            many = len(self._finished) >= PARTS_AT_ONCE or frames >= FRAMES_AT_ONCE
            due = many or time.monotonic() >= self._flush_at
        if due:
            self.flush()

    def flush(self) -> None:
        with self._lock:
            finished, self._finished = self._finished, []
            self._flush_at = time.monotonic() + FLUSH_SECONDS
        if finished:
            self._serve.parts_done(self._version, tuple(finished))

    def gone(self) -> None:
        self.upload_id = self.part_bytes = None
        self._serve.upload_gone(self._version)
