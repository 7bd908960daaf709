"""What an upload has sent and made, as it crosses the channel: lists of numbers and texts.

Frame sizes go in base64: a request has room for those of the largest shard.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from cachetier.drain.sent import SentPart
from cachetier.local.records import FinishedPart
from cachetier.model.stored import Codec, Stored, pack_sizes, unpack_sizes
from cachetier.remote.base import UploadedPart

Report = list[Any]


def report_of_part(sent: SentPart) -> Report:
    part, sizes = sent.part, _packed(sent.frame_sizes)
    raw_start, raw_bytes = sent.raw_start, sent.raw_bytes
    return [part.number, part.etag, part.size_bytes, part.digest, raw_start, raw_bytes, sizes]


def part_of_report(report: Report) -> SentPart:
    number, etag, size_bytes, digest, raw_start, raw_bytes, sizes = report
    part = UploadedPart(number, etag, size_bytes, digest)
    return SentPart(part, raw_start, raw_bytes, _unpacked(sizes))


def report_of_finished(part: FinishedPart) -> Report:
    uploaded = UploadedPart(part.number, part.etag, part.size_bytes, part.digest)
    return report_of_part(SentPart(uploaded, part.raw_start, part.raw_bytes, part.frame_sizes))


def finished_of_report(report: Report) -> FinishedPart:
    number, etag, size_bytes, digest, raw_start, raw_bytes, sizes = report
    frames = _unpacked(sizes)
    return FinishedPart(number, etag, size_bytes, digest, raw_start, raw_bytes, frames)


def report_of_stored(stored: Stored) -> Report:
    return [stored.codec, stored.size_bytes, stored.digest, _packed(stored.frame_sizes)]


def stored_of_report(report: Report) -> Stored:
    codec, size_bytes, digest, sizes = report
    return Stored(Codec(codec), size_bytes, digest, _unpacked(sizes))


def _packed(sizes: tuple[int, ...]) -> str:
    return b64encode(pack_sizes(sizes)).decode()


def _unpacked(text: str) -> tuple[int, ...]:
    return unpack_sizes(b64decode(text))
