"""What the drain asks and reports, and what ``serve`` answers: the types of both ends.

A request is a ``Request`` of the type of its reply. mypy checks that each has a case on the side of
``serve``: ``Dispatcher.answer``, ``ShardReports.answer`` and ``SaveReports.answer``. Messages cross
as JSON that pydantic writes and reads by their types; a frame's header names the request.

Source: docs/design/0001-drain-channel.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Generic, TypeVar, get_args, get_origin

from cachetier_client.bucket_format.stored import Codec, Content, InPack, Stored
from pydantic import Base64Bytes, TypeAdapter

from cachetier.drain.pace.pace import PaceState
from cachetier.drain.priority.policy import Training
from cachetier.drain.schedule.tasks import Task, TaskKind
from cachetier.drain.upload.buffers import BUDGET_BYTES
from cachetier.drain.upload.compression_model import Verdict
from cachetier.drain.upload.stopwatch import Phases
from cachetier.local.catalog.records import FinishedUploadPart
from cachetier.model.checkpoint import SaveState
from cachetier.model.packs import Member
from cachetier.remote.settings import RemoteSettings

ReplyT = TypeVar("ReplyT")


class Request(Generic[ReplyT]):
    """A message of the drain; most wait for the reply, which comes when all is synced."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to a request that failed; ``code`` is that of the error."""

    code: str
    message: str


# --- the drain itself ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Size:
    """What the drain may do, and how much of it at once.

    Small shards count as uploads, large ones as parts too; ``threads`` is how many may compute, as
    in compressing. ``block_copies``: whether bytes may be copied inside the bucket.
    """

    uploads: int = 8
    parts: int = 8
    budget_bytes: int = BUDGET_BYTES
    threads: int = 2
    block_copies: bool = True


@dataclass(frozen=True, slots=True)
class DrainOrders:
    """All that a drain has to know before it begins."""

    remote: RemoteSettings
    store_id: str
    lock: str
    size: Size
    max_rate: str
    windows: tuple[str, ...]
    log_level: str


@dataclass(frozen=True, slots=True)
class Hello(Request[DrainOrders]):
    """The first request: what the kernel was asked for."""

    courtesy: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Handout:
    """Work, and in how many seconds time alone makes more due; whether somebody waits for it."""

    tasks: tuple[Task, ...] = ()
    due_in_seconds: float | None = None
    hurried: bool = False


@dataclass(frozen=True, slots=True)
class NextWork(Request[Handout]):
    count: int


@dataclass(frozen=True, slots=True)
class FinishTask(Request[None]):
    """Frees the key of a task."""

    task: int
    done: bool


@dataclass(frozen=True, slots=True)
class FailTask(Request[None]):
    """Why a task failed; when it comes again is up to ``serve``."""

    task: int
    code: str
    message: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ReportCourtesy(Request[Training]):
    """How the drain behaves, once a second, as the status shows it."""

    report: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReportHealth(Request[None]):
    """How the remote is; ``retry`` asks for work that was put off to be tried at once."""

    state: str
    reason: str = ""
    retry: bool = False


@dataclass(frozen=True, slots=True)
class ReportTraffic(Request[None]):
    """What went over the wire since the last report, and how fast the remote is asked now."""

    requests: int
    throttled: int
    sent_bytes: int
    pace: PaceState


@dataclass(frozen=True, slots=True)
class ReportCopies(Request[None]):
    """Whether bytes are copied inside the remote, and how many were since the last report."""

    state: str
    copied_bytes: int


@dataclass(frozen=True, slots=True)
class ReportCompression(Request[None]):
    """Blocks compressed, or not, since the last report, and of each run the last verdict."""

    blocks: Mapping[str, int]
    runs: Mapping[str, Verdict]


# --- shards --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LocalShard:
    """A shard to read: its bytes, or a descriptor to close and the digests of its blocks.

    The rest is the multipart upload to go on with, if any.
    """

    body: Base64Bytes | None
    block_digests: tuple[int, ...]
    descriptor: int | None
    upload_id: str | None
    part_bytes: int | None
    codec: Codec
    element_size: int


@dataclass(frozen=True, slots=True)
class OpenShard(Request[LocalShard]):
    version: int


@dataclass(frozen=True, slots=True)
class FinishedParts(Request[tuple[FinishedUploadPart, ...]]):
    """Asks for the parts of a shard's upload that are recorded."""

    version: int


@dataclass(frozen=True, slots=True)
class DonorShard:
    """A shard that was verified at the remote once, and where."""

    run: str
    location: str
    name: str
    save_id: str
    content: Content
    stored: Stored


@dataclass(frozen=True, slots=True)
class FindDonor(Request[DonorShard | None]):
    """Asks which object may have bytes of a shard already."""

    version: int


@dataclass(frozen=True, slots=True)
class UploadBegun(Request[None]):
    version: int
    upload_id: str
    part_bytes: int
    codec: Codec
    element_size: int


@dataclass(frozen=True, slots=True)
class UploadGone(Request[None]):
    version: int


@dataclass(frozen=True, slots=True)
class PartsDone(Request[None]):
    version: int
    parts: tuple[FinishedUploadPart, ...]


@dataclass(frozen=True, slots=True)
class ShardVerified(Request[None]):
    """A read-side call has confirmed that the shard is at the remote."""

    version: int
    stored: Stored
    seconds: float
    phases: Phases


@dataclass(frozen=True, slots=True)
class ShardDamaged(Request[None]):
    """The local bytes are not what was committed."""

    version: int
    message: str


@dataclass(frozen=True, slots=True)
class ShardLost(Request[None]):
    """A shard that was verified is not at the remote any more."""

    version: int
    message: str


@dataclass(frozen=True, slots=True)
class PackMembers(Request[list[Member]]):
    """Asks what a rank's next pack is made of."""

    save: int
    rank: int


@dataclass(frozen=True, slots=True)
class PackVerified(Request[None]):
    """Where each member of a pack lies, by its version."""

    members: dict[int, InPack]
    size_bytes: int
    seconds: float


# --- saves ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartPage:
    """Shards of a rank's part, each with its version; ``more`` come after the last of them."""

    shards: list[tuple[int, str, Content, Stored | None]] = field(default_factory=list)
    more: bool = False


@dataclass(frozen=True, slots=True)
class ReadPart(Request[PartPage]):
    """Asks what a rank's part must list, from behind the version ``after`` on."""

    save: int
    rank: int
    after: int


@dataclass(frozen=True, slots=True)
class SaveLocated(Request[None]):
    save: int
    location: str


@dataclass(frozen=True, slots=True)
class PartWritten(Request[None]):
    save: int
    rank: int
    shards: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SaveFollowed(Request[None]):
    """Rank 0 has sealed, wherever it is."""

    save: int


@dataclass(frozen=True, slots=True)
class SaveNotReady(Request[None]):
    """A step is not whole yet: another node's part is missing."""

    save: int
    kind: TaskKind


@dataclass(frozen=True, slots=True)
class SaveEnded(Request[None]):
    """``message`` is empty where nothing went wrong."""

    save: int
    state: SaveState
    message: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SaveRemoved(Request[None]):
    """What a deleted save had at the remote is gone, but for ``left`` objects of somebody else."""

    save: int
    left: int
    example: str | None


@dataclass(frozen=True, slots=True)
class SaveSwept(Request[None]):
    save: int


@dataclass(frozen=True, slots=True)
class NamesOfSave(Request[list[str]]):
    """Asks which of ``names`` are, or were, shards of the save here."""

    save: int
    names: tuple[str, ...]


# --- all of them ---------------------------------------------------------------------------------

DrainRequest = (
    Hello
    | NextWork
    | FinishTask
    | FailTask
    | ReportCourtesy
    | ReportHealth
    | ReportTraffic
    | ReportCopies
    | ReportCompression
)
ShardRequest = (
    OpenShard
    | FinishedParts
    | FindDonor
    | UploadBegun
    | UploadGone
    | PartsDone
    | ShardVerified
    | ShardDamaged
    | ShardLost
    | PackMembers
    | PackVerified
)
SaveRequest = (
    ReadPart
    | SaveLocated
    | PartWritten
    | SaveFollowed
    | SaveNotReady
    | SaveEnded
    | SaveRemoved
    | SaveSwept
    | NamesOfSave
)
AnyRequest = DrainRequest | ShardRequest | SaveRequest


def replied(_request: Request[ReplyT], reply: ReplyT) -> ReplyT:
    """Return ``reply``; mypy checks that it is what the request names."""
    return reply


# --- on the wire ---------------------------------------------------------------------------------

REQUESTS: dict[str, type[AnyRequest]] = {kind.__name__: kind for kind in get_args(AnyRequest)}


def encode_request(request: Request[Any]) -> tuple[str, bytes]:
    """Return the name of a request and the body of its frame."""
    name = type(request).__name__
    return name, _request_type(name).dump_json(request)


def decode_request(name: str, body: bytes | bytearray) -> AnyRequest:
    """Undo ``encode_request``.

    Raises:
        KeyError, ValueError: It is no request.
    """
    request: AnyRequest = _request_type(name).validate_json(body)
    return request


def encode_reply(request: type[Request[Any]], reply: object) -> tuple[bytes, int | None]:
    """Return the body of a frame, and the descriptor that goes along."""
    descriptor = reply.descriptor if isinstance(reply, LocalShard) else None
    try:
        return _reply_type(request.__name__).dump_json(reply), descriptor
    except BaseException:
        _close(descriptor)
        raise


def decode_reply(
    request: type[Request[ReplyT]], body: bytes | bytearray, descriptor: int | None = None
) -> ReplyT:
    """Undo ``encode_reply``; the descriptor is the caller's, or closed where no reply has it."""
    try:
        reply: ReplyT = _reply_type(request.__name__).validate_json(body)
    except BaseException:
        _close(descriptor)
        raise
    if isinstance(reply, LocalShard):
        return replace(reply, descriptor=descriptor)
    _close(descriptor)
    return reply


def encode_refusal(code: str, message: str) -> bytes:
    """Return the body of the frame that answers a request that failed."""
    readable = message.encode("utf-8", "replace").decode()  # a path may be no text
    return _REFUSAL.dump_json(Refusal(code, readable))


def decode_refusal(body: bytes | bytearray) -> Refusal:
    return _REFUSAL.validate_json(body)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


@cache
def _request_type(name: str) -> TypeAdapter[Any]:
    return TypeAdapter(REQUESTS[name])


@cache
def _reply_type(name: str) -> TypeAdapter[Any]:
    bases: tuple[Any, ...] = vars(REQUESTS[name])["__orig_bases__"]
    return TypeAdapter(next(get_args(base)[0] for base in bases if get_origin(base) is Request))


_REFUSAL = TypeAdapter(Refusal)
