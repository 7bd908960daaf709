"""The nodes that share restores with this one, made from the settings."""

from __future__ import annotations

from dataclasses import dataclass

from cachetier_client.clock import SystemClock

from cachetier.config.settings import Settings, address_of_door
from cachetier.doors.listening import bound
from cachetier.doors.operations import Operations
from cachetier.local.store import Store
from cachetier.notifier import Changes
from cachetier.peers.answers import PeerAnswers
from cachetier.peers.door import PeerDoor
from cachetier.peers.finishing import Finisher
from cachetier.peers.keeper import KeptObjects
from cachetier.peers.kept_saves import KeptSaves
from cachetier.remote.bucket import Bucket, Remote
from cachetier.remote.neighbours.membership import Membership
from cachetier.remote.neighbours.store import NeighbourServer
from cachetier.remote.neighbours.trust import Trust
from cachetier.restore.one_fetch import OneFetch
from cachetier.restore.pace import RestorePace
from cachetier.tls import Tls

FINISH_SHARE = 3  # of the objective a node may be silent before its peers drain what it left


@dataclass(slots=True)
class NodePeers:
    """The peers of this node, what it reads through them, and the door at which it answers."""

    membership: Membership
    one_fetch: OneFetch
    address: tuple[str, int]
    trust: Trust
    bucket: Bucket
    copies: Bucket | None
    keeper: KeptObjects | None
    finish_after_seconds: float
    saves: KeptSaves | None = None
    door: PeerDoor | None = None

    def start(self, store: Store, node: Operations, changes: Changes) -> None:
        """Answer peers from now on, and ask who they are; raises ConfigError."""
        answers = PeerAnswers(store, node.restore, self.one_fetch, self.bucket.layout)
        tls = Tls(self.trust.tls, lambda _problem: None) if self.trust.tls is not None else None
        listener = bound("peers.listen", self.address)
        self.door = PeerDoor(
            listener,
            self.membership,
            answers,
            token=self.trust.token,
            tls=tls,
            keeper=self.keeper,
        )
        self.door.start()
        self.membership.begin()
        if self.keeper is not None and self.copies is not None:
            clock = SystemClock()
            finisher = Finisher(
                *(self.keeper, self.copies, node.ingest, node.checkpoints, self.membership),
                self.finish_after_seconds,
                clock,
            )
            self.saves = KeptSaves(
                *(store, self.keeper, finisher, self.bucket, changes.ring, clock)
            )
            self.saves.start()

    def stop(self) -> None:
        """Answer and ask nobody any more."""
        if self.saves is not None:
            self.saves.stop()
        if self.door is not None:
            self.door.stop()
        self.membership.close()


def peers_of(
    server: NeighbourServer | None,
    settings: Settings,
    bucket: Bucket,
    pace: RestorePace,
    room_bytes: int,
    replicas: list[Remote],
) -> NodePeers | None:
    """Return the peers at ``server``, if there are any; documents of ``bucket`` come from them too.

    This node keeps copies for them in ``room_bytes``; the first of ``replicas`` has those of all.

    Raises:
        ConfigError: `peers.trust` cannot be used.
    """
    if server is None:
        return None
    membership = server.membership()
    one_fetch = OneFetch(membership, bucket.objects, pace)
    bucket.document = one_fetch.document
    here = address_of_door(settings.peers.listen)
    keeper = KeptObjects(settings.cache_dir, room_bytes, pace.clock) if room_bytes else None
    copies = replicas[0].bucket if room_bytes else None
    who = membership, one_fetch, here, server.trust(), bucket, copies
    return NodePeers(*who, keeper, settings.exposure_objective / FINISH_SHARE)
