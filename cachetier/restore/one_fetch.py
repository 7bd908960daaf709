"""One fetch: of all nodes that restore a shard, one asks the bucket for each range of it.

Rendezvous hashing orders this node and the peers that answered when a restore began, for each
range again. The first of them fetches the range, and the others read it there, block by block, as
it arrives. A peer that has the whole shard on its disk is asked before. A peer that fails is
skipped, and the next in the order fetches.

A node that is asked for blocks reads its disk, its memory or the bucket, and asks no peer for any;
one that is asked for a document asks no peer at all. So no two nodes wait for each other. Nothing
that a peer sends is trusted: each block is held against the digest that the manifest pins, and each
document against the digest that its reader knows.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Protocol

from cachetier_client.bucket_format.stored import Stored
from cachetier_client.io.digests import BLOCK_BYTES, blocks_of, digest_of

from cachetier.carriers.stored_blocks import Write
from cachetier.errors import CachetierError, NotFoundError, StoppingError, TransientError
from cachetier.model.objects import is_mount
from cachetier.model.shard import Shard
from cachetier.remote.base import Into, ObjectStore, room_of
from cachetier.remote.fair_slots import FairSlots
from cachetier.remote.neighbours.client import WantedBlocks
from cachetier.remote.neighbours.membership import ranked
from cachetier.remote.wrapped import WrappedObjectStore
from cachetier.restore.pace import RestorePace
from cachetier.restore.remote_shard import Range, RemoteShard
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

FLIGHTS_AT_ONCE = 12  # what a fetcher that is killed had half of is fetched again
KEPT_BYTES = 128 << 20  # for peers that come to a range late
KEPT_DOCUMENTS = 256
# Ranges that a node wants at once, most of them from peers. Each is a thread there and here: with
# more than the processors get round to, all wait so long that peers take each other for dead.
ROUTED_AT_ONCE = min(32, 8 + 2 * len(os.sched_getaffinity(0)))
PEERS_TRIED = 3
HELD_SECONDS = 10.0
ASKED_AT_ONCE = 16
LOOK_SECONDS = 0.5


class PeerNode(Protocol):
    """Another node, as this one asks it.

    Each call may raise TransientError (it does not answer), NotFoundError (it has no such thing) or
    another CachetierError (it could not fetch it).
    """

    @property
    def name(self) -> str:
        """The name that peers know it by."""

    @property
    def domain(self) -> str:
        """The failure domain that it is of."""

    def read_blocks(self, wanted: WantedBlocks, into: Into) -> None:
        """Fill ``into`` with the blocks, as ``ObjectStore.read_into`` does."""

    def held_shards(self, run: str, step: int, save_id: str) -> Collection[str]:
        """Return the names of the shards of a save that are whole on its disk."""

    def document(self, key: str, digest: int) -> bytes:
        """Return the document that has this digest, if it is not another one meanwhile."""


class Peers(Protocol):
    """The nodes that share their restores; ``name`` and ``domain`` are this node's."""

    @property
    def name(self) -> str:
        """The name that peers know it by."""

    @property
    def domain(self) -> str:
        """The failure domain that it is of."""

    def answering(self) -> Sequence[PeerNode]:
        """Return the other nodes that answered lately."""

    def failed(self, peer: PeerNode, error: CachetierError) -> None:
        """Note that a peer did not do what it was asked; it may be left out for a while."""


class Flight:
    """Blocks of a shard that come from a remote into memory, once for all who want them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._came: set[int] = set()
        self._first_byte = 0
        self._data = bytearray()
        self._error: Exception | None = None
        self.ended = False

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    @property
    def failed(self) -> bool:
        return self._error is not None

    def fly(self, source: RemoteShard, wanted: Range) -> None:
        """Read the range; what goes wrong is raised by ``block``."""
        self._first_byte = wanted.first_block * BLOCK_BYTES
        end = min(self._first_byte + len(wanted.sizes) * BLOCK_BYTES, source.content.size_bytes)
        self._data = bytearray(end - self._first_byte)
        error: Exception | None = None
        try:
            source.bring(wanted, self._write, self._has_come)
        except Exception as failure:
            error = failure
        self.ends(error)

    def ends(self, error: Exception | None) -> None:
        """Nothing more comes: all is here, or ``error`` happened."""
        with self._changed:
            self.ended, self._error = True, error
            self._changed.notify_all()

    def _write(self, piece: bytes | bytearray | memoryview, offset: int) -> None:
        start = offset - self._first_byte
        self._data[start : start + len(piece)] = piece

    def _has_come(self, block: int) -> None:
        with self._changed:
            self._came.add(block)
            self._changed.notify_all()

    def block(self, number: int, seconds: float) -> memoryview | None:
        """Return a block that has come and is sound; None if it does not come within ``seconds``.

        Raises:
            CachetierError: It cannot be read.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.ended or number in self._came, seconds)
            if number in self._came:
                start = number * BLOCK_BYTES - self._first_byte
                return memoryview(self._data)[start : start + BLOCK_BYTES].toreadonly()
            if self._error is not None:
                raise self._error
        return None


class Flights:
    """The ranges that this node fetches, for itself and for peers. Thread-safe.

    Memory is bounded: a few are under way at once, and some of those that ended are kept.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[tuple[int, int, int], Flight] = {}  # those asked for last at the end
        self._threads = ThreadPoolExecutor(FLIGHTS_AT_ONCE, thread_name_prefix="one-fetch")

    def close(self) -> None:
        """Release the threads and every reader that waits for a range."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            for flight in self._flights.values():
                if not flight.ended:
                    flight.ends(StoppingError("the node stops"))

    def of(self, shard: Shard, source: RemoteShard, wanted: Range) -> Flight:
        """Return a flight with a range of ``shard``; it begins now, unless it has begun already."""
        first, end = wanted.first_block, wanted.first_block + len(wanted.sizes)
        with self._lock:
            key = shard.version, first, end
            for held, each in self._flights.items():
                covers = held[0] == shard.version and held[1] <= first and end <= held[2]
                key = held if covers and not each.failed else key
            flight = self._flights.pop(key, None)
            if flight is None or flight.failed:
                flight = Flight()
                self._threads.submit(copy_context().run, flight.fly, source, wanted)
            self._flights[key] = flight
            self._forget()
        return flight

    def _forget(self) -> None:
        ended = [key for key, each in self._flights.items() if each.ended]
        kept_bytes = sum(self._flights[key].size_bytes for key in ended)
        for key in ended:
            if kept_bytes <= KEPT_BYTES:
                return
            kept_bytes -= self._flights.pop(key).size_bytes


class OneFetch:
    """Shares restores with the peers. Thread-safe.

    Args:
        peers: Who they are.
        objects: The durable remote, for documents.
        pace: Of what peers send; its clock says for how long something is remembered.
    """

    def __init__(self, peers: Peers, objects: ObjectStore, pace: RestorePace) -> None:
        self.flights = Flights()
        self.pace = pace
        self.slots = FairSlots(lambda: ROUTED_AT_ONCE)
        self.peers = peers
        self._objects = objects
        self._clock = pace.clock
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # of those who ask what peers hold
        self._held: dict[tuple[str, int, str, str], tuple[Collection[str], float]] = {}
        self._asking = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="ask-peers")
        self._reading = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="documents")
        self._documents: dict[tuple[str, int], Future[bytes]] = {}

    def close(self) -> None:
        """Let the threads go."""
        self.flights.close()
        for pool in (self._asking, self._reading):
            pool.shutdown(wait=False, cancel_futures=True)

    def route(self, shard: Shard) -> FetchRoute | None:
        """Return whom to ask for ``shard``; None if there is nobody beside the remotes."""
        peers = {} if is_mount(shard.run) else {each.name: each for each in self.peers.answering()}
        if not peers:
            return None
        save = shard.run, shard.step, shard.save_id
        with self._turn:  # the shards of a step ask once
            now = self._clock.monotonic()
            unknown = [
                each
                for name, each in peers.items()
                if self._held.get((*save, name), ((), -HELD_SECONDS))[1] <= now - HELD_SECONDS
            ]
            for each, names in zip(
                unknown, self._asking.map(self._held_by(save), unknown), strict=True
            ):
                self._held[*save, each.name] = names, now
            old = [key for key, (_, at) in self._held.items() if at <= now - HELD_SECONDS]
            for key in old:
                del self._held[key]
            holders = {name for name in peers if shard.name in self._held[*save, name][0]}
        return FetchRoute(shard, peers, holders, self)

    def _held_by(self, save: tuple[str, int, str]) -> Callable[[PeerNode], Collection[str]]:
        def ask(peer: PeerNode) -> Collection[str]:
            try:
                return frozenset(peer.held_shards(*save))
            except CachetierError as error:
                self.peers.failed(peer, error)
                return ()

        return ask

    # --- documents -------------------------------------------------------------------------------

    def document(self, key: str, digest: int) -> bytes:
        """Return the document under ``key`` that has this digest, or what the remote has there.

        Raises as ``ObjectStore.get`` does.
        """
        peers = {each.name: each for each in self.peers.answering()}
        first = ranked(key, [self.peers.name, *peers])[0]
        if first in peers:
            try:
                body = peers[first].document(key, digest)
            except CachetierError as error:
                self.peers.failed(peers[first], error)
            else:
                if digest_of(body) == digest:
                    return body
        body = self.own_document(key, digest).result()
        return body if digest_of(body) == digest else self._objects.get(key)  # it is newer

    def own_document(self, key: str, digest: int) -> Future[bytes]:
        """Return what the remote has under ``key``, read once for all who ask for this digest."""
        with self._lock:
            found = self._documents.pop((key, digest), None)
            if found is None or (found.done() and found.exception() is not None):
                found = self._reading.submit(self._objects.get, key)
            self._documents[key, digest] = found
            if len(self._documents) > KEPT_DOCUMENTS:
                del self._documents[next(iter(self._documents))]
        return found


@dataclass(frozen=True, slots=True)
class FetchRoute:
    """Whom to ask for the ranges of one shard, fixed when its restore begins. Thread-safe."""

    shard: Shard
    peers: dict[str, PeerNode]
    holders: set[str]
    one_fetch: OneFetch
    skipped: set[str] = field(default_factory=set)

    def bring(
        self, source: RemoteShard, wanted: Range, write: Write, came: Callable[[int], None]
    ) -> None:
        """Have a range written as ``RemoteShard.bring`` does, by a peer or from ``source``.

        Blocks that a peer sent before it failed are not asked for again.
        """
        content, pace, peers = self.shard.content, self.one_fetch.pace, self.one_fetch.peers
        first, end = wanted.first_block, wanted.first_block + len(wanted.sizes)

        def has_come(block: int) -> None:
            nonlocal first
            first = max(first, block + 1)
            came(block)

        for peer, held in self._order(wanted.first_block):
            there = _AtPeer(source.objects, peer, self.shard, held)
            copy = RemoteShard(there, peer.name, content, Stored.raw(content), peer.name)
            blocks = copy.blocks(first, end - first)
            pace.await_turn(sum(blocks.sizes))
            try:
                copy.bring(blocks, write, has_come)
            except NotFoundError:
                self.holders.discard(peer.name)
            except CachetierError as error:
                self.skipped.add(peer.name)
                peers.failed(peer, error)
                ids = {"run": self.shard.run, "step": self.shard.step, "name": self.shard.name}
                tell(log, events.PEER_SKIPPED, peer=peer.name, reason=error.message, **ids)
            else:
                pace.count(peer.name, sum(blocks.sizes))
            if first == end:
                return
        flight = self.one_fetch.flights.of(self.shard, source, source.blocks(first, end - first))
        for number in range(first, end):
            while (block := flight.block(number, LOOK_SECONDS)) is None:
                pass  # whoever reads it gives up in the end: see its policy
            write(block, number * BLOCK_BYTES)
            came(number)

    def block(self, source: RemoteShard, wanted: Range) -> bytearray:
        """Return the one block of ``wanted``, verified."""
        start = wanted.first_block * BLOCK_BYTES
        found = bytearray(min(BLOCK_BYTES, source.content.size_bytes - start))

        def write(piece: bytes | bytearray | memoryview, offset: int) -> None:
            found[offset - start : offset - start + len(piece)] = piece

        self.bring(source, wanted, write, lambda _block: None)
        return found

    def _order(self, first_block: int) -> Iterator[tuple[PeerNode, bool]]:
        """Yield whom to ask before this node fetches a range, and whether for its disk alone."""
        what = f"{self.shard.run}/{self.shard.step}/{self.shard.save_id}/{self.shard.name}"
        this, tried = self.one_fetch.peers, 0
        order = ranked(f"{what}/{first_block}", [this.name, *self.peers])
        near = sorted(
            self.holders & self.peers.keys(),
            key=lambda name: (self.peers[name].domain != this.domain, order.index(name)),
        )
        for name, held in [(each, True) for each in near] + [
            (each, False) for each in order[: order.index(this.name)]
        ]:
            if name in self.skipped or (held and name not in self.holders):
                continue
            if tried == PEERS_TRIED:
                return
            tried += 1
            yield self.peers[name], held


class _AtPeer(WrappedObjectStore):
    """The raw bytes of a shard as a peer sends them."""

    def __init__(self, store: ObjectStore, peer: PeerNode, shard: Shard, held: bool) -> None:
        super().__init__(store)
        self._peer = peer
        self._shard = shard
        self._held = held

    def read_into(self, _key: str, start: int, into: Into, etag: str | None = None) -> None:  # noqa: ARG002
        shard, size_bytes = self._shard, room_of(into)
        ids = shard.run, shard.step, shard.save_id, shard.name
        where = start // BLOCK_BYTES, blocks_of(size_bytes)
        wanted = WantedBlocks(*ids, shard.content.digest, *where, self._held)
        try:
            self._peer.read_blocks(wanted, into)
        except TransientError:  # it may be late only: to skip it costs the bucket all its ranges
            self._peer.read_blocks(wanted, into)
