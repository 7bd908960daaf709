"""What the drain asks and reports, and what ``serve`` answers: the types of both ends.

A request is a ``Request`` of the type of its reply. mypy checks that each has a case on the side of
``serve``: ``Dispatcher.answer``, ``ShardReports.answer``, ``ObjectReports.answer`` and
``SaveReports.answer``. Messages cross as JSON that msgspec writes and reads by their types; a
frame's header names the request.

Source: docs/design/0001-drain-channel.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar, cast, get_args, get_origin

from cachetier_client.bucket_format.stored import Codec, Content, InPack, ShardFacts, Stored
from cachetier_client.bucket_format.uploads import UploadedPart
from msgspec import Struct, json
from msgspec.structs import replace

from cachetier.drain.priority.policy import Training
from cachetier.drain.schedule.tasks import Task, TaskKind
from cachetier.drain.upload.buffers import BUDGET_BYTES, PIECE_BYTES
from cachetier.drain.upload.compression_model import Verdict
from cachetier.drain.upload.stopwatch import Phases
from cachetier.local.catalog.notes import OwnClaim
from cachetier.local.catalog.rows import NOTHING_REPLACED, Replaced
from cachetier.model.lifecycle import SaveState
from cachetier.model.pace import PaceState
from cachetier.model.packs import Member
from cachetier.remote.settings import RemoteSettings

ReplyT = TypeVar("ReplyT")


class Request(Struct, Generic[ReplyT], frozen=True):
    """A message of the drain; most wait for the reply, which comes when all is synced."""


class Refusal(Struct, frozen=True):
    """The answer to a request that failed; ``code`` is that of the error."""

    code: str
    message: str


# --- the drain itself ----------------------------------------------------------------------------


PARTS = 128
PIECES_SHARE = 0.25


class Size(Struct, frozen=True):
    """What the drain may do, and how much of it at once.

    Small shards count as uploads, large ones as parts too; ``budget_bytes`` is the memory for parts
    that are not read while they are sent. ``threads`` is how many may compute, as in compressing.
    ``block_copies``: whether bytes may be copied inside the bucket.
    """

    uploads: int = 8
    parts: int = PARTS
    budget_bytes: int = BUDGET_BYTES
    threads: int = 2
    block_copies: bool = True

    @classmethod
    def within(cls, memory_bytes: int, uploads: int, threads: int, *, block_copies: bool) -> Size:
        """Return the size of a drain that sends from so much memory: whole parts, and pieces."""
        pieces_bytes = min(PARTS * PIECE_BYTES, int(PIECES_SHARE * memory_bytes))
        parts = pieces_bytes // PIECE_BYTES
        return cls(uploads, parts, memory_bytes - pieces_bytes, threads, block_copies)


class DrainOrders(Struct, frozen=True):
    """All that a drain has to know before it begins."""

    remote: RemoteSettings
    store_id: str
    lock: str
    size: Size
    max_rate: str
    windows: tuple[str, ...]
    log_level: str


class Hello(Request[DrainOrders], frozen=True):
    """The first request: what the kernel was asked for by now; the rest is reported later."""

    courtesy: dict[str, Any]


class ReadClaim(Request[OwnClaim], frozen=True):
    """Asks what this cache directory claims of its store id at the remote."""


class IntendClaim(Request[None], frozen=True):
    """What is about to be claimed, over ``before``.

    Another ``epoch`` than before: the directory went back in time, or was copied.
    """

    epoch: str
    nonce: str
    before: str


class Handout(Struct, frozen=True):
    """Work, and in how many seconds time alone makes more due; whether somebody waits for it."""

    tasks: tuple[Task, ...] = ()
    due_in_seconds: float | None = None
    hurried: bool = False
    rate_limit: float | None = None


class NextWork(Request[Handout], frozen=True):
    """Asks for up to ``count`` tasks; for none of them, only how it may go on."""

    count: int


class FinishTask(Request[None], frozen=True):
    """Frees the key of a task."""

    task: int
    done: bool


class FailTask(Request[None], frozen=True):
    """Why a task failed; when it comes again is up to ``serve``."""

    task: int
    code: str
    message: str
    seconds: float


class ReportCourtesy(Request[Training], frozen=True):
    """How the drain behaves, once a second, as the status shows it."""

    report: dict[str, Any]


class ReportHealth(Request[None], frozen=True):
    """How the remote is; ``retry`` asks for work that was put off to be tried at once."""

    state: str
    reason: str = ""
    retry: bool = False


class ReportTraffic(Request[None], frozen=True):
    """What went over the wire since the last report, and how fast the remote is asked now."""

    requests: int
    throttled: int
    sent_bytes: int
    pace: PaceState


class ReportCopies(Request[None], frozen=True):
    """Whether bytes are copied inside the remote, and how many were since the last report."""

    state: str
    copied_bytes: int


class ReportCompression(Request[None], frozen=True):
    """Blocks compressed, or not, since the last report, and of each run the last verdict."""

    blocks: Mapping[str, int]
    runs: Mapping[str, Verdict]


# --- shards --------------------------------------------------------------------------------------


class LocalShard(Struct, frozen=True):
    """A shard to read: its bytes, or a descriptor to close and the digests of its blocks.

    The rest is the multipart upload to go on with, if any, and what it ``replaced``.
    """

    body: bytes | None
    block_digests: tuple[int, ...]
    descriptor: int | None
    upload_id: str | None
    part_bytes: int | None
    codec: Codec
    element_size: int
    replaced: Replaced = NOTHING_REPLACED


class OpenShard(Request[LocalShard], frozen=True):
    version: int


class FinishedParts(Request[tuple[UploadedPart, ...]], frozen=True):
    """Asks for the parts of a shard's upload that are recorded."""

    version: int


class DonorShard(Struct, frozen=True):
    """A shard that was verified at the remote once, and where."""

    run: str
    location: str
    name: str
    save_id: str
    content: Content
    stored: Stored


class FindDonor(Request[DonorShard | None], frozen=True):
    """Asks which object may have bytes of a shard already."""

    version: int


class UploadBegun(Request[None], frozen=True):
    version: int
    upload_id: str
    part_bytes: int
    codec: Codec
    element_size: int


class UploadGone(Request[None], frozen=True):
    version: int


class PartsDone(Request[None], frozen=True):
    version: int
    parts: tuple[UploadedPart, ...]


class ShardVerified(Request[None], frozen=True):
    """A read-side call has confirmed that the shard is at the remote."""

    version: int
    stored: Stored
    seconds: float
    phases: Phases


class ShardDamaged(Request[None], frozen=True):
    """The local bytes are not what was committed."""

    version: int
    message: str


class ShardsLost(Request[None], frozen=True):
    """Shards that were verified are not at the remote any more: all of a pack at once."""

    versions: tuple[int, ...]


class PackMembers(Request[list[Member]], frozen=True):
    """Asks what a rank's next pack is made of."""

    save: int
    rank: int


class PackVerified(Request[None], frozen=True):
    """Where each member of a pack lies, by its version."""

    save: int
    members: dict[int, InPack]
    size_bytes: int
    seconds: float


# --- objects of the S3 door ----------------------------------------------------------------------


class LocalPiece(Struct, frozen=True):
    """A piece of an object, to be opened as the shard that it is."""

    version: int
    size_bytes: int
    digest: int


class LocalObject(Struct, frozen=True):
    """A version of an object to bring to its bucket: what it is, and what it may replace there.

    ``prefix`` is its mount's. ``version`` is what its stamp names, ``acknowledged_at`` is by the
    store's clock, ``committed_at`` by ours; ``from_before``: it was before this ``serve`` began.
    ``damaged``: its bytes are not all here, so it can only be looked for. ``deletions`` are what a
    record is to tell of, by their keys, and ``request`` is the first of them. The rest is the
    multipart upload to go on with, if any.
    """

    deleted: bool
    etag: str
    headers: Mapping[str, str]
    metadata: Mapping[str, str]
    base: str | None
    pieces: tuple[LocalPiece, ...]
    upload_id: str | None
    part_bytes: int | None
    prefix: str
    version: int
    acknowledged_at: float | None
    committed_at: float
    from_before: bool = False
    conditional: bool = False
    damaged: bool = False
    request: int | None = None
    deletions: dict[str, int] = {}


class OpenObject(Request[LocalObject], frozen=True):
    """``clock`` is what the drain knows of the store's; see ``StoreClock.between``."""

    version: int
    clock: tuple[float, float] | None = None


class ObjectSuperseded(Request[None], frozen=True):
    """Something newer than a version lies in the bucket, or was deleted there."""

    version: int
    reason: str


class OwnVersionSeen(Request[None], frozen=True):
    """The bucket names a version of this directory that it has not had yet: it went back."""

    seen: int


class DeletionsRecorded(Request[None], frozen=True):
    """The bucket has a record of what was deleted together."""

    request: int


class ObjectShown(Request[None], frozen=True):
    """The bucket shows a version, verified, under ``etag``; empty for a deletion."""

    version: int
    etag: str
    seconds: float
    phases: Phases


class ObjectConflict(Request[None], frozen=True):
    """A person must decide about a version, as the bucket has something else than it may replace.

    Or it has ``refused`` the version, or the version's bytes are ``damaged`` here.
    """

    version: int
    message: str
    refused: bool = False
    damaged: bool = False


# --- saves ---------------------------------------------------------------------------------------


class PartPage(Struct, frozen=True):
    """Shards of a rank's part, each with its version; ``more`` come after the last of them."""

    shards: list[tuple[int, str, Content, Stored | None, ShardFacts]] = []
    more: bool = False


class ReadPart(Request[PartPage], frozen=True):
    """Asks what a rank's part must list, from behind the version ``after`` on."""

    save: int
    rank: int
    after: int


class SaveLocated(Request[None], frozen=True):
    save: int
    location: str


class PartWritten(Request[None], frozen=True):
    save: int
    rank: int
    shards: int
    size_bytes: int
    seconds: float


class SaveFollowed(Request[None], frozen=True):
    """Rank 0 has sealed, wherever it is."""

    save: int


class SaveNotReady(Request[None], frozen=True):
    """A step is not whole yet; the parts of ``ranks`` are at the remote, None: nobody looked."""

    save: int
    kind: TaskKind
    ranks: tuple[int, ...] | None = None


class SaveEnded(Request[None], frozen=True):
    """``message`` is empty where nothing went wrong."""

    save: int
    state: SaveState
    message: str
    seconds: float


class SaveRemoved(Request[None], frozen=True):
    """What a deleted save had at the remote is gone, but for ``left`` objects of somebody else."""

    save: int
    left: int
    example: str | None


class SaveSwept(Request[None], frozen=True):
    save: int


class NamesOfSave(Request[list[str]], frozen=True):
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
    | ReadClaim
    | IntendClaim
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
    | ShardsLost
    | PackMembers
    | PackVerified
)
ObjectRequest = (
    OpenObject
    | ObjectShown
    | ObjectSuperseded
    | ObjectConflict
    | OwnVersionSeen
    | DeletionsRecorded
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
AnyRequest = DrainRequest | ShardRequest | ObjectRequest | SaveRequest


def replied(_request: Request[ReplyT], reply: ReplyT) -> ReplyT:
    """Return ``reply``; mypy checks that it is what the request names."""
    return reply


# --- on the wire ---------------------------------------------------------------------------------


class Readers(NamedTuple):
    """What reads a request and its reply."""

    request: json.Decoder[AnyRequest]
    reply: json.Decoder[Any]


def readers_of(kind: type[Request[Any]]) -> Readers:
    bases: tuple[Any, ...] = vars(kind)["__orig_bases__"]
    reply = next(get_args(base)[0] for base in bases if get_origin(base) is Request)
    return Readers(json.Decoder(cast("type[AnyRequest]", kind)), json.Decoder(reply))


# Made here, by one thread: msgspec crashes where two meet a type for the first time at once.
READERS = {kind.__name__: readers_of(kind) for kind in get_args(AnyRequest)}
_REFUSAL_READER = json.Decoder(Refusal)


def encode_request(request: Request[Any]) -> tuple[str, bytes]:
    """Return the name of a request and the body of its frame."""
    name = type(request).__name__
    return name, json.encode(request)


def decode_request(name: str, body: bytes | bytearray) -> AnyRequest:
    """Undo ``encode_request``.

    Raises:
        KeyError, ValueError: It is no request.
    """
    return READERS[name].request.decode(body)


def encode_reply(reply: object) -> tuple[bytes, int | None]:
    """Return the body of a frame, and the descriptor that goes along."""
    descriptor = reply.descriptor if isinstance(reply, LocalShard) else None
    try:
        return json.encode(reply), descriptor
    except BaseException:
        _close(descriptor)
        raise


def decode_reply(
    request: type[Request[ReplyT]], body: bytes | bytearray, descriptor: int | None = None
) -> ReplyT:
    """Undo ``encode_reply``; the descriptor is the caller's, or closed where no reply has it."""
    try:
        reply: ReplyT = READERS[request.__name__].reply.decode(body)
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
    return json.encode(Refusal(code, readable))


def decode_refusal(body: bytes | bytearray) -> Refusal:
    return _REFUSAL_READER.decode(body)


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)
