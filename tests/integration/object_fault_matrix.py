"""A whole node whose drain runs here, impatiently, and programs that use its S3 door meanwhile.

The drain is the service's own but for its process, so that times can be short. What the bucket
shows is held against what was acknowledged at every request that makes something visible, and once
more in the end.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import boto3
from botocore.config import Config
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.clock import SystemClock

from cachetier.config.settings import load
from cachetier.drain.channel import AskingEnd, DrainLink
from cachetier.drain.loop import DrainLoop, Signals
from cachetier.drain.messages import Size
from cachetier.drain.pace.traffic import Traffic
from cachetier.drain.serve.remote_state import RemoteState
from cachetier.drain.serve.service import DrainContext, DrainService
from cachetier.drain.serve.stats import DrainSnapshot
from cachetier.local.catalog import objects
from cachetier.local.store import Store
from cachetier.model.names import DURABLE
from cachetier.model.objects import Mount
from cachetier.model.pace import Pace
from cachetier.notifier import Changes
from cachetier.remote.base import ObjectStore
from cachetier.remote.bucket import Bucket
from cachetier.remote.call_policy import CallPolicy, Pacer, Retries
from cachetier.remote.store_clock import StoreClock
from cachetier.service.service import Service
from cachetier.steps.incidents import Incidents
from cachetier.testing.http_wire import WireHead
from cachetier.testing.troubles import Trouble, Troubles
from tests.integration.drain_node import NO_ORDERS, Seen, patterned
from tests.integration.fault_matrix import NOT_THERE, POLICY, Stage
from tests.integration.serving import IdleDrain

PREFIX = "train/"
SIZE = Size(uploads=4, parts=4)
PART_BYTES = 5 << 20  # S3's least
SINGLE_PUT_BYTES = 100_000
SECONDS = 240.0  # a busy machine has little time for a drain
LATE_SECONDS = 0.5
WRITES = 12  # of a program

# Why a pair has no cells is said in ``fault_matrix``; a deletion has no body, version or document.
_NOT_OF_DELETION = (
    Trouble.RESET,
    Trouble.CORRUPT,
    Trouble.WRONG_ETAG,
    Trouble.WRONG_CHECKSUM,
    Trouble.BROKEN_XML,
    Trouble.NO_SUCH_UPLOAD,
)


def exists(trouble: Trouble, call: str) -> bool:
    """Return whether a trouble can strike a call of the drain of objects."""
    if call == "DeleteObject":
        return trouble not in _NOT_OF_DELETION
    return (trouble, call) not in NOT_THERE


class DrainHere(IdleDrain):
    """The drain of a mount's bucket on threads of this process."""

    def __init__(
        self,
        bucket: Bucket,
        probe: Callable[[], None],
        mount: Mount,
        store: Store,
        changes: Changes,
        store_clock: StoreClock,
    ) -> None:
        super().__init__()
        clock = SystemClock()
        self.seen = Seen(DURABLE, clock)
        self._changes = changes
        ours, theirs = socket.socketpair()
        context = DrainContext(
            store,
            self.queue,
            self.seen,
            changes,
            Incidents(store),
            clock,
            RemoteState(store, DURABLE),
            mounts={mount.run: mount},
            store_clock=store_clock,
        )
        self._link = DrainLink(ours, DrainService(context, NO_ORDERS), changes)
        self._channel, self._signals = AskingEnd(theirs), Signals()
        drain = DrainLoop(
            self._channel.serve,
            bucket,
            store.store_id,
            clock,
            probe=probe,
            signals=self._signals,
            traffic=Traffic(SIZE.uploads + SIZE.parts, clock),
            size=SIZE,
            open_store=lambda _name: bucket.objects,
            store_clock=store_clock,
        )
        self._thread = threading.Thread(target=drain.run, name="drain")

    def start(self) -> None:
        self._link.start()
        self._receiver = self._signals.listen(self._channel)
        self._thread.start()

    def stop(self, grace_seconds: float) -> None:
        self._signals.stop()
        self._thread.join()
        self._link.close()
        self._channel.close()
        self._receiver.join()

    def nudge(self) -> None:
        self._changes.ring()

    def state(self) -> tuple[DrainSnapshot, ...]:
        return (self.seen.snapshot(self.queue.in_flight()),)


class Watched(Troubles):
    """Holds the bucket against what was acknowledged whenever something is to become visible."""

    def __init__(self, direct: ObjectStore) -> None:
        super().__init__()
        self._direct = direct
        self._prefix = PREFIX
        self._writes: list[tuple[str, int | None]] = []
        self.broken: list[str] = []
        self.looks = 0

    def begin(self, prefix: str) -> None:
        """Watch what a program writes under ``prefix`` from now on."""
        self._prefix, self._writes, self.looks, self.broken = prefix, [], 0, []

    def write(self, key: str, size_bytes: int | None) -> None:
        """Hear what is about to be put, or (None) deleted."""
        self._writes.append((key, size_bytes))

    def strike(self, request: WireHead) -> Trouble | None:
        parts = urlsplit(request.first[1])
        key = unquote(parts.path).lstrip("/").partition("/")[2]
        of_upload = "uploadId" in parts.query
        is_visible = request.method == "POST" if of_upload else request.method in ("PUT", "DELETE")
        if is_visible and key.startswith(self._prefix):
            self._look(f"{request.method} {key}", key)
        return super().strike(request)

    def _look(self, what: str, key: str) -> None:
        """What is asked for was acknowledged right behind what is shown, or is asked again."""
        writes = tuple(self._writes)
        page = self._direct.list_page(self._prefix, "", "", 1000)
        shown = {each.key: each.size_bytes for each in page.objects}
        here = [number for number, state in enumerate(_states(writes)) if state == shown]
        near = {each for number in here for each, _ in writes[max(0, number - 1) : number + 1]}
        self.looks += 1
        if key not in near:
            self.broken.append(f"{what} over {shown}, of {writes}")


def _states(writes: Iterable[tuple[str, int | None]]) -> list[dict[str, int]]:
    """Return what a bucket may show, from nothing to all of it: keys, and their sizes."""
    states: list[dict[str, int]] = [{}]
    for key, size_bytes in writes:
        state = {name: size for name, size in states[-1].items() if name != key}
        states.append(state if size_bytes is None else {**state, key: size_bytes})
    return states


class DoorNode:
    """A service with an S3 door over a mount whose bucket is behind the stage's proxy."""

    def __init__(self, folder: Path, stage: Stage, bucket: str) -> None:
        pacer = Pacer(Pace(16), SystemClock())
        policy = CallPolicy(stage.through, retries=Retries(POLICY), pacer=pacer)
        remote = Bucket(policy, Layout("steps"))
        self.bucket = bucket
        self.mount = Mount("train", bucket, PREFIX)

        def open_drain(store: Store, changes: Changes, *_others: object) -> DrainHere:
            probe = stage.through.check
            store_clock = self.service._store_clock
            offset = SystemClock().now() - store_clock.own()
            store_clock.learn((offset, offset))  # so that deletions leave records
            self.drain = DrainHere(remote, probe, self.mount, store, changes, store_clock)
            return self.drain

        settings = {
            "cache_dir": folder / "cache",
            "socket": folder / "s",
            "http": "",
            "s3": "127.0.0.1:0",
            "s3_mount": [{"name": "train", "bucket": f"{bucket}/{PREFIX}"}],
            "remote": f"s3://{bucket}/steps",
            "remote_endpoint": stage.proxy.url,
            "capacity": "1 GB",
            "grace": "5s",
        }
        self.service = Service(load(settings), bucket=remote, open_drain=open_drain)

    @contextmanager
    def running(self) -> Iterator[None]:
        self.service.start()
        try:
            access = self.service.operations.access
            owner = access.peer(None, os.getuid(), (), os.getpid()).principal
            key, secret = access.create_s3_key(owner, None)
            self.s3: Any = boto3.session.Session().client(
                "s3",
                endpoint_url=self.service.s3_url,
                region_name="us-east-1",
                aws_access_key_id=key.id,
                aws_secret_access_key=secret,
                config=Config(retries={"total_max_attempts": 1}),
            )
            yield
        finally:
            self.service.stop()

    def settle(self) -> None:
        """Wait until the bucket shows everything."""
        store = self.service.store

        def is_shown() -> bool:
            save = store.read(objects.mount_save, self.mount.run)
            return save is not None and not store.read(objects.unshown_versions, save)

        assert self.service._changes.wait_for(is_shown, SECONDS, 0.02), self.drain.state()

    def conflicts(self) -> int:
        """Return of how many objects the drain said that it cannot go on."""
        return self.drain.seen.snapshot([]).object_conflicts


class Program:
    """Puts, overwrites and deletes, whole and in parts, one after the other, under one prefix.

    Every body has another length, by which the bucket's listing tells what it shows.
    """

    def __init__(self, node: DoorNode, watched: Watched, name: str, *, with_parts: bool) -> None:
        self._node = node
        self._watched = watched
        self._with_parts = with_parts
        self._prefix = PREFIX + name
        self._expected: dict[str, bytes] = {}

    def act(self) -> None:
        """Do everything; each is acknowledged before the next is asked for."""
        self._watched.begin(self._prefix)
        for size_bytes, key in enumerate(("a", "b", "c"), 10):
            self._put(key, size_bytes)
        self._put("large", SINGLE_PUT_BYTES + 1)
        self._upload("parts", [PART_BYTES, 2] if self._with_parts else [SINGLE_PUT_BYTES + 2])
        self._upload("again", [SINGLE_PUT_BYTES + 3])
        self._put("a", 20)
        for key in ("a", "b", "c"):
            self._delete(key)
        self._put("a", 30)
        self._put("latest", 40)

    def read_back(self) -> None:
        """Read by the door what was acknowledged, whatever the bucket does by now."""
        where = {"Bucket": self._node.bucket}
        for key, body in self._expected.items():
            found = self._node.s3.get_object(**where, Key=key)
            assert found["Body"].read() == body, key

    def judge(self, direct: ObjectStore) -> None:
        """Look at the bucket alone: every byte is there, and nothing else."""
        assert set(direct.list(self._prefix).keys) == set(self._expected)
        for key, body in self._expected.items():
            assert direct.get(key) == body, key

    def unfinished(self, direct: ObjectStore) -> int:
        """Return how many uploads lie in the bucket that nobody goes on with."""
        return len(list(direct.list_uploads(self._prefix)))

    def _put(self, key: str, size_bytes: int) -> None:
        body = self._body(key, size_bytes)
        self._node.s3.put_object(Bucket=self._node.bucket, Key=self._prefix + key, Body=body)

    def _upload(self, key: str, sizes: Sequence[int]) -> None:
        body = memoryview(self._body(key, sum(sizes)))
        where = {"Bucket": self._node.bucket, "Key": self._prefix + key}
        s3 = self._node.s3
        where["UploadId"] = s3.create_multipart_upload(**where)["UploadId"]
        parts, begin = [], 0
        for number, size_bytes in enumerate(sizes, 1):
            part = bytes(body[begin : begin + size_bytes])
            tag = s3.upload_part(**where, PartNumber=number, Body=part)["ETag"]
            parts.append({"PartNumber": number, "ETag": tag})
            begin += size_bytes
        s3.complete_multipart_upload(**where, MultipartUpload={"Parts": parts})

    def _delete(self, key: str) -> None:
        self._watched.write(self._prefix + key, None)
        del self._expected[self._prefix + key]
        self._node.s3.delete_object(Bucket=self._node.bucket, Key=self._prefix + key)

    def _body(self, key: str, size_bytes: int) -> bytes:
        body = patterned(size_bytes, len(self._expected))
        self._watched.write(self._prefix + key, len(body))
        self._expected[self._prefix + key] = body
        return body
