"""The objects of the simulated bucket, and the store that a node's real code meets.

Documents are kept as they were written, so that the real publisher reads them back. Of shards there
is the size, the digest and the metadata, which is what anybody asks of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from cachetier_client.bucket_format.documents import (
    Manifest,
    ReadPart,
    SeenManifest,
    read_manifest,
    read_part,
)
from cachetier_client.bucket_format.layout import Layout, rank_of_part
from cachetier_client.bucket_format.stored import Stored
from cachetier_client.bucket_format.uploads import (
    SINGLE_PUT_BYTES,
    ObjectInfo,
    upload_part_bytes_for,
)

from cachetier.drain.pace.traffic import Traffic
from cachetier.drain.upload.target import UploadTarget
from cachetier.errors import ObjectMissingError, PreconditionFailedError
from cachetier.remote.base import Condition, Listing, Metadata, ObjectStore
from cachetier.remote.bucket import Bucket
from cachetier.simulate.requests import SimulatedRequest, SimulatedRequests
from cachetier.simulate.strands import wait

LISTED = 1000  # keys in an answer


class SimulatedObjects:
    """The contents of the bucket, of all nodes."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[ObjectInfo, bytes]] = {}
        self._folders: dict[str, dict[str, None]] = {}
        self._versions = 0
        self.parsed: dict[Any, Any] = {}  # see ReadOnceBucket

    def put(
        self,
        key: str,
        body: bytes,
        digest: int,
        metadata: Metadata,
        condition: Condition | None = None,
        size_bytes: int | None = None,
    ) -> ObjectInfo:
        """Write an object, or one of ``size_bytes`` without a body."""
        there = self.head(key)
        if condition is not None:
            wanted = None if condition.absent else condition.etag
            if (there.etag if there is not None else None) != wanted:
                raise PreconditionFailedError(f"{key} is another version", key=key)
        self._versions += 1
        size_bytes = len(body) if size_bytes is None else size_bytes
        info = ObjectInfo(key, size_bytes, f"v{self._versions}", digest, dict(metadata))
        self._found[key] = info, body
        self._folders.setdefault(_folder(key), {})[key] = None
        return info

    def head(self, key: str) -> ObjectInfo | None:
        found = self._found.get(key)
        return found[0] if found is not None else None

    def get(self, key: str) -> bytes:
        if key not in self._found:
            raise ObjectMissingError(f"there is no {key}", key=key)
        return self._found[key][1]

    def list(self, folder: str) -> list[str]:
        return list(self._folders.get(folder, ()))


class ReadOnceBucket(Bucket):
    """A bucket whose documents are parsed once for all nodes, though each node asks for them.

    A thousand nodes would read the same manifest a thousand times, in one process here.
    """

    def __init__(self, objects: ObjectStore, layout: Layout, parsed: dict[Any, Any]) -> None:
        super().__init__(objects, layout)
        self._parsed = parsed

    def manifest(
        self, run: str, step: int, _known: SeenManifest | None = None
    ) -> SeenManifest | None:
        key = self.layout.manifest_key(run, step)
        info = self.objects.head(key)
        if info is None:
            return None
        body = self.objects.get(key)
        manifest: Manifest = self._once(body, lambda: read_manifest(body, run, step, key))
        # Where it changed between the two, the next write is refused, and it is read again.
        return SeenManifest(manifest, info.etag)

    def part_with_digest(self, run: str, location: str, rank: int) -> ReadPart:
        key = self.layout.part_key(run, location, rank)
        body = self.objects.get(key)
        part: ReadPart = self._once(body, lambda: read_part(body, run, rank, key))
        return part

    def part_ranks(self, run: str, location: str) -> set[int]:
        prefix = self.layout.parts_prefix(run, location)
        keys = self.objects.list(prefix).keys  # which only ever grow
        ranks = (rank_of_part(key) for key in keys)
        found: set[int] = self._once((prefix, len(keys)), lambda: {*ranks} - {None})
        return found

    def _once(self, what: object, parse: Callable[[], object]) -> Any:
        if what not in self._parsed:
            self._parsed[what] = parse()
        return self._parsed[what]


class NodeObjectStore:
    """The calls of ``ObjectStore`` that publishing needs, and what stands for an upload.

    Each waits for its turn, its way and its answer. Only what documents need is here: whoever calls
    more of an ``ObjectStore`` is told so by name.
    """

    keeps_digests = True

    def __init__(
        self, objects: SimulatedObjects, requests: SimulatedRequests, prefix: str, traffic: Traffic
    ) -> None:
        self._objects = objects
        self._requests = requests
        self._prefix = prefix
        self._traffic = traffic
        self._now = requests.now
        self._unsent: dict[str, list[int]] = {}  # parts of uploads that were begun

    # --- documents -------------------------------------------------------------------------------

    def head(self, key: str) -> ObjectInfo | None:
        found: ObjectInfo | None = self._call(key, partial(self._objects.head, key), reads=True)
        return found

    def get(self, key: str) -> bytes:
        body: bytes = self._call(key, partial(self._objects.get, key), reads=True)
        return body

    def put(
        self,
        key: str,
        body: bytes,
        *,
        digest: int,
        metadata: Metadata | None = None,
        condition: Condition | None = None,
    ) -> ObjectInfo:
        put = partial(self._objects.put, key, body, digest, metadata or {}, condition)
        info: ObjectInfo = self._call(key, put, size_bytes=len(body))
        return info

    def list(self, prefix: str) -> Listing:
        keys: list[str] = self._call(prefix, partial(self._objects.list, prefix), reads=True)
        for _ in range(LISTED, len(keys) + 1, LISTED):
            self._call(prefix, partial(self._objects.list, prefix), reads=True)
        return Listing(tuple(keys), ())

    def list_uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        self._call(prefix, lambda: None, reads=True)
        return iter(())

    def check(self) -> None:
        self._call("", lambda: None, reads=True)

    # --- shards ----------------------------------------------------------------------------------

    def upload(self, target: UploadTarget) -> Stored:
        """Send a shard, in one request or in parts, and look at it; what was sent stays sent."""
        key, content = target.key, target.content
        size_bytes = content.size_bytes
        kept = partial(
            self._objects.put, key, b"", content.digest, target.metadata, None, size_bytes
        )
        if size_bytes <= SINGLE_PUT_BYTES:
            self._call(key, kept, size_bytes=size_bytes)
        else:
            if key not in self._unsent:
                self.head(key)
                self._call(key, lambda: None)  # begins it
                usual_bytes = self._traffic.usual_upload_part_bytes()
                part_bytes = upload_part_bytes_for(size_bytes, usual_bytes)
                starts = range(0, size_bytes, part_bytes)
                self._unsent[key] = [min(part_bytes, size_bytes - start) for start in starts]
            error = wait(partial(self._send_parts, key)) if self._unsent[key] else None
            if error is not None:
                raise error
            self.head(key)
            self._call(key, kept)  # completes it
            del self._unsent[key]
        self.head(key)
        return Stored.raw(content)

    def _send_parts(self, key: str, resume: Callable[[object], None]) -> None:
        """Send what is not sent yet, all of it at once as far as the pace allows."""
        sizes, self._unsent[key] = self._unsent[key], []
        left, failed = len(sizes), None

        def ended(size_bytes: int, request: SimulatedRequest, answer: object) -> None:
            nonlocal left, failed
            left -= 1
            if isinstance(answer, Exception):
                failed = answer
                self._unsent[key].append(size_bytes)
            else:
                seconds = self._now() - request.sent_at
                self._traffic.observe("upload_part", seconds, size_bytes, "ok")
            if not left:
                resume(failed)

        for size_bytes in sizes:
            request = SimulatedRequest(
                lambda _answer: None, size_bytes, prefix=self._prefix_of(key)
            )
            request.ended = partial(ended, size_bytes, request)
            self._requests.add(request)

    # --- a call ----------------------------------------------------------------------------------

    def _call(
        self, key: str, do: Callable[[], object], *, reads: bool = False, size_bytes: int = 0
    ) -> Any:
        def begin(resume: Callable[[object], None]) -> None:
            self._requests.add(
                SimulatedRequest(resume, size_bytes, reads, self._prefix_of(key), do)
            )

        answer = wait(begin)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _prefix_of(self, key: str) -> str:
        """Return what the store limits apart: the prefix, or one of sixteen where it is spread."""
        rest = key.removeprefix(self._prefix).lstrip("/")
        return f"{self._prefix}/{rest[:2]}" if rest.startswith("~") else self._prefix


def _folder(key: str) -> str:
    return key[: key.rfind("/") + 1]
