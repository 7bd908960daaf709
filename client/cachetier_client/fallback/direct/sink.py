"""A stream that goes straight to the bucket, holding one upload part in memory."""

from __future__ import annotations

from collections.abc import Sequence

from cachetier_client.bucket_format.stored import Content
from cachetier_client.bucket_format.uploads import (
    DIGEST_KEY,
    PART_BYTES,
    PART_LIMIT,
    upload_part_bytes_for,
)
from cachetier_client.deadline import Deadline
from cachetier_client.errors import InvalidRequestError, RemoteUnavailableError, UploadGoneError
from cachetier_client.fallback.direct.engine import Engine
from cachetier_client.fallback.direct.parts import DirectRankPart
from cachetier_client.fallback.direct.uploads import DirectTarget, version_to_replace
from cachetier_client.io.aligned import Block
from cachetier_client.io.digests import combine, digest_of
from cachetier_client.transport.base import PutRequest, Reply

GROW_EVERY = 1_000  # parts of a stream, whose end nobody knows, double after so many


class DirectSink:
    """A shard on its way; used by one thread at a time.

    Its object says nothing of its digest, which is not known when the upload begins. The bucket
    verifies it all the same, and the part's document has it.
    """

    parallel = False

    def __init__(
        self,
        engine: Engine,
        state: DirectRankPart,
        request: PutRequest,
        deadline: Deadline,
    ) -> None:
        self._engine = engine
        self._state = state
        self._request = request
        self._key = engine.key(state, request.name, deadline)
        self._pieces: list[bytes] = []
        self._collected_bytes = 0
        self._upload_id: str | None = None
        self._parts: list[tuple[str, int]] = []

    @property
    def _part_bytes(self) -> int:
        """Size of the next part."""
        if self._request.size_bytes is not None:
            return upload_part_bytes_for(self._request.size_bytes)
        return stream_part_bytes(len(self._parts))

    def reserve(self, total_bytes: int, deadline: Deadline) -> None:
        """Nothing is reserved in a bucket."""

    def write(self, block: Block, size_bytes: int, offset: int, deadline: Deadline) -> None:  # noqa: ARG002 - blocks come in order
        if self._collected_bytes >= self._part_bytes:
            self._send_part(deadline)
        self._pieces.append(bytes(block.view[:size_bytes]))
        self._collected_bytes += size_bytes

    def commit(self, size_bytes: int, digests: Sequence[int], deadline: Deadline) -> Reply:
        """Finish the object; it is verified there when this returns."""
        content = Content(size_bytes, combine(digests, size_bytes), tuple(digests))
        target = DirectTarget.of(self._key, self._state.part, content)
        try:
            known = self._engine.receipt_of_known(self._state, self._request.name, content)
            if known is not None:
                self.abort(deadline)
                return known
            if self._upload_id is None:
                self._engine.uploads.put_collected(target, self._pieces, deadline)
            else:
                self._send_part(deadline)
                self._engine.uploads.complete(target, self._upload_id, self._parts, deadline)
                self._engine.uploads.check(target, deadline)
        except BaseException:
            self.abort(deadline)
            raise
        self._let_go()
        return self._engine.stored(self._state, self._request, content)

    def abort(self, deadline: Deadline) -> None:  # noqa: ARG002 - the upload's end has its own
        """Leave nothing behind."""
        upload_id = self._let_go()
        if upload_id is not None:
            self._engine.uploads.abort(self._key, upload_id)

    def _let_go(self) -> str | None:
        upload_id, self._upload_id = self._upload_id, None
        self._pieces = []
        self._collected_bytes = 0
        return upload_id

    def _send_part(self, deadline: Deadline) -> None:
        upload_id = self._upload_id or self._begin(deadline)
        number = len(self._parts) + 1
        if number > PART_LIMIT:
            raise InvalidRequestError(f"a shard in the bucket has at most {PART_LIMIT} parts")
        digest = 0
        for piece in self._pieces:
            digest = digest_of(piece, digest)
        try:
            etag = self._engine.objects.upload_part(
                self._key, upload_id, number, self._pieces, deadline, digest=digest
            )
        except UploadGoneError:
            raise RemoteUnavailableError(
                f"the upload of {self._key} was aborted by somebody else",
                hint="Write the shard again.",
            ) from None
        self._parts.append((etag, digest))
        self._pieces = []
        self._collected_bytes = 0

    def _begin(self, deadline: Deadline) -> str:
        nobody_knows_yet = Content(0, 0, ())
        target = DirectTarget.of(self._key, self._state.part, nobody_knows_yet)
        objects = self._engine.objects
        version_to_replace(target, objects.head(self._key, deadline))
        known = {name: text for name, text in target.metadata.items() if name != DIGEST_KEY}
        self._upload_id = objects.create_upload(self._key, known, deadline)
        return self._upload_id


def stream_part_bytes(parts: int) -> int:
    """Return the size of the part after so many of a stream: they grow as it does."""
    return PART_BYTES << (parts // GROW_EVERY)
