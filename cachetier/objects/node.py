"""The objects of a node: its puts, uploads and reads as one, as the S3 door calls them."""

from __future__ import annotations

from collections.abc import Sequence

from cachetier.model.objects import Mount
from cachetier.objects.base import ReadableObjects
from cachetier.objects.intake import ObjectIntake
from cachetier.objects.puts import ObjectPuts
from cachetier.objects.uploads import ObjectUploads


class NodeObjects:
    """``Objects`` of ``mounts``; each call is that of the part that knows it."""

    def __init__(
        self,
        mounts: Sequence[Mount],
        intake: ObjectIntake,
        puts: ObjectPuts,
        uploads: ObjectUploads,
        reads: ReadableObjects,
    ) -> None:
        self.mounts = tuple(mounts)
        self.begin, self.extend, self.abort = intake.begin, intake.extend, intake.abort
        self.watermark, self.wait = puts.watermark, puts.wait
        self.commit, self.delete = puts.commit, puts.delete
        self.create_upload, self.abort_upload = uploads.create_upload, uploads.abort_upload
        self.commit_part, self.complete_upload = uploads.commit_part, uploads.complete_upload
        self.upload, self.parts, self.uploads = uploads.upload, uploads.parts, uploads.uploads
        self.expire_uploads = uploads.expire
        self.head, self.open, self.open_piece = reads.head, reads.open, reads.open_piece
        self.list = reads.list
