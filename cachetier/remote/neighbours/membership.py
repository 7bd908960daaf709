"""Which nodes share restores with this one: found by a list or a DNS name, and asked who they are.

Every request says of its node: the version of the protocol, the store id and the bucket. A node
answers another one that is in the list, has the same bucket and speaks the same version; else the
refusal names it. A node that fails is left out for a while, and then asked again.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

from cachetier_client.clock import Clock

from cachetier.errors import CachetierError, ForbiddenError, IntegrityError, TransientError
from cachetier.parsers import address_of
from cachetier.remote.neighbours.client import HttpPeer
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

PROTOCOL = 1
STORE, BUCKET, VERSION = "Cachetier-Store", "Cachetier-Bucket", "Cachetier-Version"
FRESH_SECONDS = 10.0
AWAY_SECONDS = 5.0
LOOK_UP_SECONDS = 1.0
LIAR_SECONDS = 60.0  # its disk or its memory is damaged
ASKED_AT_ONCE = 16

Resolve = Callable[[str], Collection[str]]


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The description that a node gives of itself."""

    store: str
    bucket: str
    domain: str = ""
    version: int = PROTOCOL

    def refuse_unless_alike(self, other: NodeIdentity, where: str) -> None:
        """Raise ForbiddenError if ``other``, at ``where``, cannot share restores with this node."""
        ways_out = {"version": "run one version on both", "bucket": "set the same `remote` on both"}
        for what, way_out in ways_out.items():
            own, theirs = getattr(self, what), getattr(other, what)
            if own != theirs:
                differs = f"has the {what} {theirs}, and this one {own}: {way_out}"
                raise ForbiddenError(f"the node {other.store} at {where} {differs}")


def headers_of(own: NodeIdentity, token: str) -> dict[str, str]:
    """Return what each request to a peer says."""
    names = {STORE: own.store, BUCKET: own.bucket, VERSION: str(own.version)}
    return {**names, "Authorization": f"Bearer {token}"} if token else names


def ranked(what: str, names: Iterable[str]) -> list[str]:
    """Return ``names`` in the order in which they are responsible for ``what``, on every node."""
    return sorted(
        names, key=lambda name: hashlib.blake2b(f"{what}\0{name}".encode(), digest_size=8).digest()
    )


def addresses_of(host: str) -> Collection[str]:
    """Return the addresses of a host; raises OSError if nobody knows its name."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return {str(address[4][0]) for address in found}


class Membership:
    """The peers of this node. Thread-safe.

    Args:
        nodes: Where they listen, as ``host:port``; a name may stand for many addresses.
        own: This node.
        open_peer: Returns the node at (host as listed, address, port), to be asked who it is.
        clock: For how long an answer counts.
        resolve: Returns the addresses of a host.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        own: NodeIdentity,
        open_peer: Callable[[str, str, int], HttpPeer],
        clock: Clock,
        resolve: Resolve = addresses_of,
    ) -> None:
        self.own = own
        self._nodes = nodes
        self._open_peer = open_peer
        self._clock = clock
        self._resolve = resolve
        self._turn = threading.Lock()  # of those who ask all
        self._lock = threading.Lock()
        self._asking = ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="peers")
        self._known: dict[tuple[str, int], HttpPeer] = {}
        self._answering: tuple[HttpPeer, ...] = ()
        self._asked_at: float | None = None
        self._looked_up_at = -LOOK_UP_SECONDS
        self._addresses: frozenset[str] = frozenset()
        self._is_logged = False
        self._heard_at: dict[str, float] = {}
        self._away_until: dict[tuple[str, int], float] = {}
        self.problems: tuple[str, ...] = ()
        self.itself: HttpPeer | None = None  # this node, as the list has it

    @property
    def name(self) -> str:
        return self.own.store

    @property
    def domain(self) -> str:
        return self.own.domain

    def begin(self) -> None:
        """Ask all who they are, behind the caller: what is wrong with the list is told."""
        self._asking.submit(self.answering)

    def close(self) -> None:
        """Hang up."""
        self._asking.shutdown(wait=False, cancel_futures=True)
        for each in self._known.values():
            each.close()

    def lists(self, address: str) -> bool:
        """Return whether ``address`` is a node's; names are looked up again if it is not."""
        if address not in self._addresses:
            with self._lock:
                if self._clock.monotonic() - self._looked_up_at >= LOOK_UP_SECONDS:
                    self._look_up()
        return address in self._addresses

    def heard_from(self, store: str, address: str) -> None:
        """Note that a peer is there, as it called: it is asked at the next need, if it was away."""
        known = {self.own.store, *(each.name for each in self._answering)}
        now = self._clock.monotonic()
        with self._lock:
            here = [where for where in self._away_until if where[0] == address]
            heard_at = self._heard_at.get(address, -LOOK_UP_SECONDS)
            if (store not in known or here) and now - heard_at >= LOOK_UP_SECONDS:
                self._heard_at[address], self._asked_at = now, None
                for where in here:
                    del self._away_until[where]

    def answering(self) -> Sequence[HttpPeer]:
        """Return the other nodes that answered lately; ask them if that is a while ago."""
        with self._turn:
            asked_at = self._asked_at
            if asked_at is None or self._clock.monotonic() - asked_at >= FRESH_SECONDS:
                with self._lock:
                    problems = self._look_up()
                self._ask_all(problems)
        return tuple(each for each in self._answering if not self._is_away(each))

    def failed(self, peer: object, error: CachetierError) -> None:
        """Leave a peer out for a while if it did not answer, or sent wrong bytes."""
        seconds = LIAR_SECONDS if isinstance(error, IntegrityError) else AWAY_SECONDS
        if isinstance(peer, HttpPeer) and isinstance(error, TransientError | IntegrityError):
            with self._lock:
                self._away_until[peer.where] = self._clock.monotonic() + seconds

    def _is_away(self, peer: HttpPeer) -> bool:
        return self._away_until.get(peer.where, 0.0) > self._clock.monotonic()

    def _look_up(self) -> list[str]:
        """Find the addresses of all nodes; return what is wrong with the list."""
        self._looked_up_at = self._clock.monotonic()
        problems, places = [], Counter[tuple[str, int]]()
        for node in self._nodes:
            host, port = address_of(node)
            try:
                found = {(address, port) for address in self._resolve(host)}
            except OSError as error:
                why = f"cannot be found ({error.strerror or error})"
                problems.append(f"the peer {node} {why}: correct `peers.nodes`, or its name in DNS")
                continue
            places.update(found)
            for address, _ in found:
                if (address, port) not in self._known:
                    self._known[address, port] = self._open_peer(host, address, port)
        for gone in [each for each in self._known if each not in places]:
            self._known.pop(gone).close()
        twice = [f"{host}:{port}" for (host, port), times in places.items() if times > 1]
        advice = "list it once in `peers.nodes`"
        problems += [f"two of the peers have the address {each}: {advice}" for each in twice]
        self._addresses = frozenset(address for address, _port in places)
        return problems

    def _ask_all(self, problems: Sequence[str]) -> None:
        self._asked_at = self._clock.monotonic()  # who calls meanwhile is asked again
        asked = [each for each in [*self._known.values()] if not self._is_away(each)]
        answers = list(self._asking.map(self._ask, asked))
        alike = [each for each in answers if isinstance(each, HttpPeer)]
        itself = [each for each, answer in zip(asked, answers, strict=True) if answer is None]
        self.itself = itself[0] if itself else self.itself
        names = Counter(each.name for each in alike)
        one = "list a node once, and give none a copy of another one's cache"
        found = [*problems, *(each for each in answers if isinstance(each, str))]
        found += [f"two peers have the store id {e}: {one}" for e in names if names[e] > 1]
        if not itself and len(asked) == len(self._known) > 0:
            found.append("this node is not among `peers.nodes`, so others refuse it: add it there")
        self._tell(found)
        if names.keys() != {each.name for each in self._answering} or not self._is_logged:
            own = ", ".join(f"{each.where[0]}:{each.where[1]}" for each in itself) or "not listed"
            tell(log, events.PEERS_KNOWN, peers=len(names), listed=len(self._known), own=own)
        self._answering, self._is_logged = tuple({e.name: e for e in alike}.values()), True

    def _ask(self, peer: HttpPeer) -> HttpPeer | str | None:
        """Return ``peer`` if it may be read from, why not, or None for this node itself."""
        try:
            answer = peer.hello()
            other = NodeIdentity(**{each.name: answer[each.name] for each in fields(NodeIdentity)})
            if other.store == self.own.store:
                peer.name, peer.domain = other.store, other.domain
                return None
            self.own.refuse_unless_alike(other, f"{peer.where[0]}:{peer.where[1]}")
        except ForbiddenError as error:
            return error.message
        except (CachetierError, KeyError, TypeError) as error:
            with self._lock:
                self._away_until[peer.where] = self._clock.monotonic() + AWAY_SECONDS
            return error.message if isinstance(error, CachetierError) else f"{peer} is no peer"
        peer.name, peer.domain = other.store, other.domain
        return peer

    def _tell(self, problems: Sequence[str]) -> None:
        for problem in problems:
            if problem not in self.problems:
                tell(log, events.PEERS_TROUBLE, problem=problem)
        self.problems = tuple(problems)
