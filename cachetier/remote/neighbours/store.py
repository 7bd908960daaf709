"""The neighbours as one store: each object lies at one or two of them, and all are asked for it.

Rendezvous hashing of the step orders the nodes that answer, one of each failure domain in turn. An
object goes to the first of them that are in another domain than this node, and have room; what is
replaced is replaced wherever it lies. Documents, which several nodes write, go to the first of the
order before all, whoever that is: it decides between two that write at once.

A node that does not answer is left out for a while, so it costs its limit once. What the others do
not have is missing: copies are a second chance, and the bucket decides what is a step.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from cachetier_client.bucket_format import documents
from cachetier_client.bucket_format.uploads import ObjectInfo, UploadedPart
from cachetier_client.clock import SystemClock
from cachetier_client.identity.names import RESERVED_SEGMENT
from cachetier_client.io.digests import digest_of

from cachetier.errors import (
    BackpressureError,
    CachetierError,
    CopiesRefusedError,
    ForbiddenError,
    NotFoundError,
    ObjectMissingError,
    PreconditionFailedError,
    RemoteDigestError,
    SourceChangedError,
    TransientError,
    UploadGoneError,
)
from cachetier.parsers import address_of
from cachetier.remote.base import (
    IF_ABSENT,
    Body,
    Condition,
    Headers,
    Into,
    ListedObject,
    ListedPage,
    Listing,
    Metadata,
    ObjectStore,
    if_match,
    listing_of,
    page_of,
    room_of,
    size_of,
)
from cachetier.remote.neighbours.client import HttpPeer
from cachetier.remote.neighbours.membership import Membership, NodeIdentity, headers_of, ranked
from cachetier.remote.neighbours.trust import Trust, trust_of
from cachetier.remote.settings import NeighbourSettings, RemoteSettings
from cachetier.remote.stall_guard import StallWatch, Timeouts
from cachetier.tls import TlsFiles

ANYWHERE = ("0.0.0.0", "::")
CANDIDATES = 8  # of a step: more are not asked for its objects
ASKED_AT_ONCE = 16
FULL_SECONDS = 10.0
STALL_SECONDS = 30.0
KNOWN_PLACES = 4096
GENERATION_KEY = "cachetier-generation"  # counts the versions of an object

Item = TypeVar("Item")
Found = TypeVar("Found")
CannotKeep = (BackpressureError, ForbiddenError, NotFoundError, TransientError)


class NeighbourStore:
    """An ``ObjectStore`` at the peers of this node. Thread-safe.

    Args:
        membership: Returns the peers, from the first call on.
        copies: At how many of them each object is to lie; one is enough for it to be there.
        stalls: Hears what moves.
        monotonic: A clock.
    """

    keeps_digests = True

    def __init__(
        self,
        membership: Callable[[], Membership],
        copies: int,
        stalls: StallWatch,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._membership = membership
        self._copies = copies
        self._stalls = stalls
        self._monotonic = monotonic
        self._threads = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="neighbours")
        self._lock = threading.Lock()
        self._full: dict[str, tuple[float, CachetierError]] = {}  # until when, and what they said
        self._places: dict[str, tuple[HttpPeer, ObjectInfo]] = {}

    # --- reads -----------------------------------------------------------------------------------

    def head(self, key: str) -> ObjectInfo | None:
        found = self._newest(self._holders(key))
        return _shown(found[1]) if found is not None else None

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        info = self._place(key)[1]
        if length is None:
            documents.check_size(key, info.size_bytes - start)
            length = info.size_bytes - start
        if length < 0 or start + length > info.size_bytes:
            raise RemoteDigestError(f"{key} has {info.size_bytes} bytes, not so many from {start}")
        body = bytearray(length)
        self.read_into(key, start, memoryview(body))
        if length == info.size_bytes and digest_of(body) != info.digest:
            raise RemoteDigestError(f"{key}: the bytes read are not those that were put", key=key)
        return bytes(body)

    def read_into(self, key: str, start: int, into: Into, etag: str | None = None) -> None:
        with self._lock:
            place = self._places.get(key)
        peer, info = place or self._place(key)
        if etag is not None and info.etag != etag:
            peer, info = self._place(key)
            if info.etag != etag:
                raise SourceChangedError(f"{key} is not {etag}", key=key)
        call = {"key": key, "start": start, "size_bytes": room_of(into), "etag": info.etag}
        try:
            peer.read_kept(call, into)
        except CachetierError as error:
            with self._lock:
                self._places.pop(key, None)
            self._membership().failed(peer, error)
            if isinstance(error, ObjectMissingError | SourceChangedError) and place is not None:
                self.read_into(key, start, into, etag)
                return
            raise
        self._stalls.received(room_of(into))

    def list_page(self, prefix: str, delimiter: str, after: str, limit: int) -> ListedPage:
        return page_of(self._listed(prefix), prefix, delimiter, after, limit)

    def check(self) -> None:
        if not self._membership().answering():
            raise TransientError("no peer answers")

    def _listed(self, prefix: str) -> Iterable[ListedObject]:
        """Return the objects of all peers; of several with one key the newest."""
        found: dict[str, ListedObject] = {}
        answers = self._ask(self._nodes(), "listed", list[ListedObject], prefix=prefix)
        for each in chain.from_iterable(answers.values()):
            if each.key not in found or found[each.key].modified_at < each.modified_at:
                found[each.key] = each
        return found.values()

    def _place(self, key: str) -> tuple[HttpPeer, ObjectInfo]:
        """Return the peer with the newest version of an object; raises ObjectMissingError."""
        found = self._newest(self._holders(key))
        if found is None:
            raise ObjectMissingError(f"no peer has {key}", key=key)
        with self._lock:
            self._places[key] = found
            if len(self._places) > KNOWN_PLACES:
                del self._places[next(iter(self._places))]
        return found

    def _holders(self, key: str) -> dict[HttpPeer, ObjectInfo]:
        found = self._ask(self._candidates(key), "head", ObjectInfo | None, key=key)
        return {peer: info for peer, info in found.items() if info is not None}

    @staticmethod
    def _newest(holders: dict[HttpPeer, ObjectInfo]) -> tuple[HttpPeer, ObjectInfo] | None:
        """Return the version that was written last: no clock of a peer says so, nor a late call."""
        ages = {peer: (_generation(e), e.modified_at or 0.0) for peer, e in holders.items()}
        return max(holders.items(), key=lambda each: ages[each[0]], default=None)

    # --- writes ----------------------------------------------------------------------------------

    def put(
        self,
        key: str,
        body: Body,
        *,
        digest: int,
        metadata: Metadata | None = None,
        condition: Condition | None = None,
        headers: Headers | None = None,
    ) -> ObjectInfo:
        holders = self._holders(key)
        self._judge(key, holders, condition)
        labels = _labels(metadata, headers, holders.values())
        order = self._candidates(key)
        first = order[:1] if condition is not None and _is_document(key) else []
        targets = list(dict.fromkeys([*first, *(each for each in order if each in holders)]))
        targets += [each for each in self._keepers(order) if each not in targets]
        kept: list[ObjectInfo] = []
        domains: set[str] = set()
        refusals: list[CachetierError] = []
        for peer in targets:
            wanted = peer in holders or peer in first
            is_copy = self._is_elsewhere(peer) and _domain(peer) not in domains
            if not wanted and (len(domains) >= self._copies or not is_copy):
                continue
            under = None
            if condition is not None:
                under = if_match(holders[peer].etag) if peer in holders else IF_ABSENT
            call = {"key": key, "digest": digest, "condition": under and _plain(under), **labels}
            try:
                kept.append(self._call(peer, "put", ObjectInfo, call, body))
            except CannotKeep as error:
                refusals.append(error)
                continue
            if is_copy:
                domains.add(_domain(peer))
        if not domains:
            raise self._nowhere(refusals)
        with self._lock:
            self._places.pop(key, None)
        return _shown(kept[0])

    def create_upload(
        self, key: str, metadata: Metadata | None = None, headers: Headers | None = None
    ) -> str:
        labels = _labels(metadata, headers, self._holders(key).values())
        own, names = secrets.token_hex(8), set[str]()
        call = {"key": key, "upload_id": own, **labels}
        domains: set[str] = set()
        refusals: list[CachetierError] = []
        for peer in self._keepers(self._candidates(key)):
            if len(domains) < self._copies and _domain(peer) not in domains:
                try:
                    self._call(peer, "create_upload", str, call)
                except CannotKeep as error:
                    refusals.append(error)
                else:
                    names.add(peer.name)
                    domains.add(_domain(peer))
        if not names:
            raise self._nowhere(refusals)
        return _joined_id(own, names)

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        call = {"key": key, "number": number, "digest": digest}
        return self._each_upload(key, upload_id, "upload_part", UploadedPart, call, body)[0]

    def copy_part(self, *_arguments: object, **_others: object) -> UploadedPart:
        raise CopiesRefusedError("peers copy nothing: send the bytes")

    def list_parts(self, key: str, upload_id: str) -> dict[int, tuple[str, int]]:
        call, kind = {"key": key}, dict[int, tuple[str, int]]
        found = self._each_upload(key, upload_id, "list_parts", kind, call)
        return dict(sorted(set.intersection(*(set(each.items()) for each in found))))

    def complete_upload(
        self, key: str, upload_id: str, parts: Sequence[UploadedPart], *, digest: int
    ) -> ObjectInfo:
        call = {"key": key, "parts": [_plain(each) for each in parts], "digest": digest}
        found = self._each_upload(key, upload_id, "complete_upload", ObjectInfo, call)
        with self._lock:
            self._places.pop(key, None)
        return _shown(found[0])

    def abort_upload(self, key: str, upload_id: str) -> None:
        for peer, own in self._uploads_of(upload_id):
            if peer is not None:  # one that is away forgets it by itself
                with suppress(TransientError):
                    self._call(peer, "abort_upload", None, {"key": key, "upload_id": own})

    def list_uploads(self, prefix: str) -> Iterator[tuple[str, str]]:
        found = self._ask(self._nodes(), "list_uploads", list[tuple[str, str]], prefix=prefix)
        peers: dict[tuple[str, str], set[str]] = {}
        for peer, uploads in found.items():
            for each in uploads:
                peers.setdefault(each, set()).add(peer.name)
        return iter(sorted((key, _joined_id(own, at)) for (key, own), at in peers.items()))

    def delete(self, key: str, etag: str | None = None) -> None:
        holders = self._holders(key)
        if etag is not None and holders:
            self._judge(key, holders, if_match(etag))
        for peer in holders:
            self._call(peer, "delete", None, {"key": key})
        with self._lock:
            self._places.pop(key, None)

    def _judge(
        self, key: str, holders: dict[HttpPeer, ObjectInfo], condition: Condition | None
    ) -> None:
        newest = self._newest(holders)
        etag = newest[1].etag if newest is not None else None
        if condition is not None and condition.etag != etag:
            raise PreconditionFailedError(f"{key} is {etag or 'not there'}", key=key)

    def _each_upload(
        self,
        key: str,
        upload_id: str,
        operation: str,
        kind: type[Found],
        call: dict[str, Any],
        body: Body | None = None,
    ) -> list[Found]:
        """Make a call of an upload at each peer that has it.

        Raises:
            UploadGoneError: One of them is away, or full: begin again, at others.
        """
        found = []
        for peer, own in self._uploads_of(upload_id):
            if peer is None:
                raise UploadGoneError(f"a peer that had a part of {key} is away", key=key)
            try:
                found.append(self._call(peer, operation, kind, {**call, "upload_id": own}, body))
            except BackpressureError as error:
                raise UploadGoneError(f"{key}: {error.message}", key=key) from error
        return found

    def _uploads_of(self, upload_id: str) -> list[tuple[HttpPeer | None, str]]:
        nodes = {each.name: each for each in self._nodes()}
        own, _, names = upload_id.partition("@")
        return [(nodes.get(name), own) for name in names.split(",")]

    # --- peers -----------------------------------------------------------------------------------

    def _nodes(self) -> list[HttpPeer]:
        """Return the nodes that answer, this one too."""
        members = self._membership()  # who this node is, is known once all were asked
        return [*members.answering(), *filter(None, [members.itself])]

    def _candidates(self, key: str) -> list[HttpPeer]:
        """Return the nodes where an object may lie, in the order of its step."""
        step = "/".join(key.split("/")[:2]).partition("~")[0] if "/" in key else key
        nodes = {each.name: each for each in self._nodes()}
        by_domain: dict[str, list[HttpPeer]] = {}
        for name in ranked(step, nodes):
            by_domain.setdefault(_domain(nodes[name]), []).append(nodes[name])
        rows = zip_longest(*(by_domain[each] for each in ranked(step, by_domain)))
        return [each for each in chain.from_iterable(rows) if each is not None][:CANDIDATES]

    def _is_elsewhere(self, peer: HttpPeer) -> bool:
        own = self._membership().own
        return peer.name != own.store and _domain(peer) != (own.domain or own.store)

    def _keepers(self, order: Iterable[HttpPeer]) -> list[HttpPeer]:
        """Return those of other failure domains, but for the ones that were full a moment ago."""
        full = self._full_now()
        return [each for each in order if self._is_elsewhere(each) and each.name not in full]

    def _full_now(self) -> dict[str, CachetierError]:
        now = self._monotonic()
        with self._lock:
            return {name: error for name, (until, error) in self._full.items() if until > now}

    def _nowhere(self, refusals: Sequence[CachetierError]) -> CachetierError:
        full = self._full_now()
        why = dict.fromkeys(each.message for each in (*full.values(), *refusals))
        kind = BackpressureError if full else TransientError  # of a remote that is away
        return kind(
            f"no peer of another failure domain takes a copy: {'; '.join(why) or 'none answers'}",
            hint="Wait, or raise the room in `peers.copies`; `cachetier status` says who is away.",
        )

    def _call(
        self,
        peer: HttpPeer,
        operation: str,
        kind: type[Found] | None,
        call: dict[str, Any],
        body: Body | None = None,
    ) -> Any:
        try:
            with self._stalls.call(size_of(body) if body is not None else 0, STALL_SECONDS):
                answer = peer.keeper(operation, call, body)
        except CachetierError as error:
            if isinstance(error, BackpressureError):
                with self._lock:
                    self._full[peer.name] = self._monotonic() + FULL_SECONDS, error
            self._membership().failed(peer, error)
            raise
        return msgspec.json.decode(answer, type=kind)

    def _ask(
        self, peers: Sequence[HttpPeer], operation: str, kind: Any, **call: Any
    ) -> dict[HttpPeer, Any]:
        """Ask ``peers`` at once, and return what they answer; those that keep nothing are left out.

        Raises:
            TransientError: Nobody answers; or nobody has anything, and one did not answer: it is
                left out of the next question.
        """

        def ask(peer: HttpPeer) -> Any:
            try:
                return self._call(peer, operation, kind, call)
            except CannotKeep as error:
                return error

        answers = dict(zip(peers, self._threads.map(ask, peers), strict=True))
        found = {peer: each for peer, each in answers.items() if not isinstance(each, Exception)}
        failed = [each for each in answers.values() if isinstance(each, TransientError)]
        if failed and not any(found.values()):
            raise failed[0]
        if not found:
            raise TransientError("no peer answers")
        return found

    def list(self, prefix: str, delimiter: str | None = None) -> Listing:
        return listing_of((each.key for each in self._listed(prefix)), prefix, delimiter)


class NeighbourServer:
    """The other nodes of the cluster; a new node has no store id before ``membership``."""

    def __init__(self, neighbours: NeighbourSettings) -> None:
        self._neighbours = neighbours
        self._lock = threading.Lock()
        self._membership: Membership | None = None

    def open(self) -> None:
        """Ask nobody yet."""

    def bucket(self, _remote: RemoteSettings, timeouts: Timeouts) -> ObjectStore:
        return NeighbourStore(self.membership, self._neighbours.copies, timeouts.stalls)

    def trust(self) -> Trust:
        """Return how nodes know each other; raises ConfigError."""
        tls = self._neighbours.tls
        return trust_of(Path(self._neighbours.trust), TlsFiles(*map(Path, tls)) if tls else None)

    def membership(self) -> Membership:
        """Return the peers, always the same; raises ConfigError as ``trust``."""
        with self._lock:
            if self._membership is None:
                self._membership = self._opened()
            return self._membership

    def _opened(self) -> Membership:
        found, trust = self._neighbours, self.trust()
        store_id = Path(found.store_id_file).read_text(encoding="ascii").strip()
        own = NodeIdentity(store_id, found.place, found.domain)
        headers, here = headers_of(own, trust.token), address_of(found.listen)
        source = "" if here[0] in ANYWHERE else here[0]

        def open_peer(host: str, address: str, port: int) -> HttpPeer:
            return HttpPeer(host, (address, port), headers, trust.context, source)

        return Membership(found.nodes, own, open_peer, SystemClock())


def _plain(value: object) -> Any:
    return msgspec.to_builtins(value)


def _labels(
    metadata: Metadata | None, headers: Headers | None, before: Iterable[ObjectInfo]
) -> dict[str, Metadata]:
    """Return the labels of an object that comes after all versions that were there ``before``."""
    generation = 1 + max(map(_generation, before), default=0)
    return {
        "metadata": {**(metadata or {}), GENERATION_KEY: str(generation)},
        "headers": dict(headers or {}),
    }


def _generation(info: ObjectInfo) -> int:
    return int(info.metadata.get(GENERATION_KEY, "0"))


def _shown(info: ObjectInfo) -> ObjectInfo:
    """Return what a caller put: without the generation."""
    own = {name: each for name, each in info.metadata.items() if name != GENERATION_KEY}
    return replace(info, metadata=own)


def _joined_id(own: str, peers: Iterable[str]) -> str:
    """Return the id of an upload that ``peers`` have under the id ``own``."""
    return f"{own}@{','.join(sorted(peers))}"


def _domain(peer: HttpPeer) -> str:
    return peer.domain or peer.name


def _is_document(key: str) -> bool:
    """Return whether several nodes may write an object."""
    return RESERVED_SEGMENT in key.split("/") and key.endswith(".json")
