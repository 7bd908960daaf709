"""Upload parts and stored objects as JSON, for the channel.

Frames go in base64: a request has room for those of the largest shard.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

from cachetier.drain.upload.progress import SentUploadPart
from cachetier.local.catalog.records import FinishedUploadPart
from cachetier.model.stored import Codec, InPack, Stored, StoredFrame, pack_frames, unpack_frames
from cachetier.remote.base import UploadedPart

Report = list[Any]


def report_of_upload_part(sent: SentUploadPart) -> Report:
    part, frames = sent.part, _packed(sent.frames)
    raw_start, raw_bytes = sent.raw_start, sent.raw_bytes
    return [part.number, part.etag, part.size_bytes, part.digest, raw_start, raw_bytes, frames]


def upload_part_of_report(report: Report) -> SentUploadPart:
    number, etag, size_bytes, digest, raw_start, raw_bytes, packed = report
    part = UploadedPart(number, etag, size_bytes, digest)
    return SentUploadPart(part, raw_start, raw_bytes, _unpacked(packed))


def report_of_finished(part: FinishedUploadPart) -> Report:
    uploaded = UploadedPart(part.number, part.etag, part.size_bytes, part.digest)
    return report_of_upload_part(
        SentUploadPart(uploaded, part.raw_start, part.raw_bytes, part.frames)
    )


def finished_of_report(report: Report) -> FinishedUploadPart:
    number, etag, size_bytes, digest, raw_start, raw_bytes, packed = report
    frames = _unpacked(packed)
    return FinishedUploadPart(number, etag, size_bytes, digest, raw_start, raw_bytes, frames)


def report_of_stored(stored: Stored) -> Report:
    frames, pack = _packed(stored.frames), stored.pack
    in_pack = [pack.name, pack.start, pack.size_bytes, pack.digest] if pack is not None else None
    return [stored.codec, stored.size_bytes, stored.digest, frames, stored.element_size, in_pack]


def stored_of_report(report: Report) -> Stored:
    codec, size_bytes, digest, packed, element_size, in_pack = report
    pack = InPack(*in_pack) if in_pack is not None else None
    return Stored(Codec(codec), size_bytes, digest, _unpacked(packed), element_size, pack)


def _packed(frames: tuple[StoredFrame, ...]) -> str:
    return b64encode(pack_frames(frames)).decode()


def _unpacked(text: str) -> tuple[StoredFrame, ...]:
    return unpack_frames(b64decode(text))
