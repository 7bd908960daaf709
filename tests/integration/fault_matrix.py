"""The S3 fault matrix: which trouble can meet which call, and one checkpoint that meets it.

A cell is (trouble, call, place): the trouble strikes the first, the middle or the last of the calls
of that name which one checkpoint makes. The checkpoint has a shard for a single put, two multipart
uploads of one part, and one of three parts where parts matter; before it drains there lie beside it
an unfinished upload of ours under each of those keys, as a lost reply leaves it behind, and two of
somebody else, which must stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cachetier_client.bucket_format.documents import ManifestState
from cachetier_client.bucket_format.layout import Layout
from cachetier_client.clock import SystemClock
from cachetier_client.identity.names import SaveIds

from cachetier.local.catalog import copies
from cachetier.model.names import DURABLE
from cachetier.model.pace import Pace
from cachetier.remote.base import ObjectStore
from cachetier.remote.bucket import Bucket
from cachetier.remote.call_policy import CallPolicy, Pacer, Retries, RetryPolicy
from cachetier.remote.stall_guard import Timeouts
from cachetier.testing.s3_endpoint import S3Endpoint
from cachetier.testing.s3proxy import S3Proxy
from cachetier.testing.troubles import Fault, Trouble, can_strike, nth
from tests.carried import carried, carriers_to
from tests.integration.drain_node import Node, patterned

CALLS = (
    "PutObject",
    "HeadObject",
    "CreateMultipartUpload",
    "UploadPart",
    "CompleteMultipartUpload",
    "AbortMultipartUpload",
)
WITH_BODY = ("PutObject", "UploadPart", "CompleteMultipartUpload")
PLACES = ("first", "middle", "last")

PART_BYTES = 8 << 20  # whole blocks, and more than S3's least part
SINGLE_PUT_BYTES = 100_000
DEADLINE_SECONDS = 240.0  # a busy machine has little time for a drain

# Short enough that a stalled call costs little, yet long enough for most calls of a busy server.
TIMEOUTS = Timeouts(connect_seconds=2.0, read_seconds=2.0)
PATIENT = Timeouts(connect_seconds=60.0, read_seconds=60.0)  # no call is made twice for its time
POLICY = RetryPolicy(attempts=6, base_seconds=0.005, cap_seconds=0.05)

_NO_BODY = "the call has no body to meet it in; `closed` and `cut_reply` strike it instead"
_NO_VERSION = "its answer names neither ETag nor checksum"
_NO_DOCUMENT = "its answer has no document; `cut_reply` strikes its head instead"
_NO_UPLOAD = "the call is not about an upload that could be gone"

# Why a pair has no cells: (trouble, call) -> reason.
NOT_THERE: dict[tuple[Trouble, str], str] = {
    **{
        (trouble, call): _NO_BODY
        for trouble in (Trouble.RESET, Trouble.CORRUPT)
        for call in CALLS
        if call not in WITH_BODY
    },
    **{
        (trouble, call): _NO_VERSION
        for trouble in (Trouble.WRONG_ETAG, Trouble.WRONG_CHECKSUM)
        for call in ("CreateMultipartUpload", "AbortMultipartUpload")
    },
    **{
        (Trouble.BROKEN_XML, call): _NO_DOCUMENT
        for call in ("PutObject", "HeadObject", "UploadPart", "AbortMultipartUpload")
    },
    (Trouble.ERROR_IN_200, "HeadObject"): _NO_DOCUMENT,
    (Trouble.LOST_REPLY, "HeadObject"): "the call changes nothing: the same as `closed`",
    (Trouble.LATE, "HeadObject"): "the call changes nothing: the same as `closed`",
    **{
        (Trouble.NO_SUCH_UPLOAD, call): _NO_UPLOAD
        for call in ("PutObject", "HeadObject", "CreateMultipartUpload")
    },
}
PAIRS = [
    (trouble, call) for trouble in Trouble for call in CALLS if (trouble, call) not in NOT_THERE
]


def exists(trouble: Trouble, call: str) -> bool:
    """Return whether the proxy can strike ``call`` with ``trouble``."""
    return can_strike(trouble, call, has_body=call in WITH_BODY)


@dataclass(frozen=True)
class Stage:
    """A server behind a proxy, with stores through it and one directly; they take long to make.

    Carriers send the large bodies that go ``through``.

    ``patient`` is for the control run, which counts calls.
    """

    proxy: S3Proxy
    through: ObjectStore
    patient: ObjectStore
    direct: ObjectStore

    @classmethod
    @contextmanager
    def of(cls, proxy: S3Proxy, server: S3Endpoint) -> Iterator[Stage]:
        proxied = server.behind(proxy.url)
        with carriers_to(proxied, timeouts=TIMEOUTS) as carriers:
            through = carried(carriers, proxied, TIMEOUTS)
            yield cls(proxy, through, proxied.store(timeouts=PATIENT), server.store())


@dataclass
class Scene:
    """A node that drains through the proxy to a server that is also seen directly."""

    node: Node
    direct: ObjectStore
    run: str
    with_parts: bool

    @classmethod
    def of(
        cls, folder: Path, stage: Stage, run: str, *, with_parts: bool, patient: bool = False
    ) -> Scene:
        store = stage.patient if patient else stage.through
        pacer = Pacer(Pace(16), SystemClock())
        objects = CallPolicy(store, retries=Retries(POLICY), pacer=pacer)
        node = Node(folder / "cache", objects, fraction=lambda: 0.01)
        node.probe = stage.through.check
        return cls(node, stage.direct, run, with_parts)

    def bodies(self, step: int) -> dict[str, bytes]:
        """Return the shards of a step: no byte of the step before, which would only be copied."""
        largest_bytes = 2 * PART_BYTES + 1 if self.with_parts else SINGLE_PUT_BYTES + 1
        return {
            "small": b"hello",
            "one": patterned(SINGLE_PUT_BYTES + 1, 3 * step + 1),
            "two": patterned(SINGLE_PUT_BYTES + 1, 3 * step + 2),
            "three": patterned(largest_bytes, 3 * step + 3),
        }

    def ids(self, step: int) -> SaveIds:
        return SaveIds(self.run, step, "save-1")

    def prefix(self, step: int) -> str:
        return self.node.bucket.layout.location_prefix(self.run, str(step))

    def theirs(self, step: int) -> list[str]:
        return [f"{self.prefix(step)}theirs", f"{self.prefix(step)}one.theirs"]

    def save(self, step: int) -> None:
        """Put and seal one checkpoint beside what lies there."""
        for name in ("one", "two", "three"):
            self.direct.create_upload(self.prefix(step) + name)
        for key in self.theirs(step):
            self.direct.create_upload(key)
        for name, body in self.bodies(step).items():
            self.node.put(self.ids(step), name, body)
        self.node.seal(self.ids(step))

    def settle(self, step: int) -> None:
        """Wait until the checkpoint is durable, and swept up after."""
        self.node.wait_durable(self.ids(step), DEADLINE_SECONDS)
        store = self.node.store
        self.node.wait_until(lambda: not store.read(copies.due_saves, DURABLE), DEADLINE_SECONDS)

    def unfinished(self, step: int) -> list[str]:
        return sorted(key for key, _ in self.direct.list_uploads(self.prefix(step)))

    def judge(self, step: int, begun_late: int = 0) -> None:
        """Look at the bucket alone: every byte is there, and nothing else.

        Of an upload that begins only after its step was swept up after nobody knows: as many as
        ``begun_late`` may be left.
        """
        layout = Layout("ckpt")
        bucket = Bucket(self.direct, layout)
        seen = bucket.manifest(self.run, step)
        assert seen is not None
        assert seen.manifest.state is ManifestState.PUBLISHED
        bodies = self.bodies(step)
        assert {shard.name for shard in seen.manifest.shards} == set(bodies)
        for name, body in bodies.items():
            assert self.direct.get(self.prefix(step) + name) == body, name
        assert set(self.direct.list(self.prefix(step)).keys) == {
            *(self.prefix(step) + name for name in bodies),
            layout.part_key(self.run, str(step), 0),
            layout.manifest_key(self.run, step),
        }
        left = self.unfinished(step)
        assert set(left) >= set(self.theirs(step))
        assert len(left) <= len(self.theirs(step)) + begun_late, left


def place_of(place: str, calls: int) -> int:
    """Return which of so many calls the place is, from 1."""
    return {"first": 1, "middle": (calls + 1) // 2, "last": calls}[place]


def fault_at(trouble: Trouble, call: str, place: str, calls: int) -> Fault:
    return Fault(trouble, call, nth(place_of(place, calls)))
