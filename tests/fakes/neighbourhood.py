"""Nodes that keep copies for each other, with real doors on loopback, and nothing else."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import cast

from cachetier_client.clock import SystemClock

from cachetier.peers.answers import PeerAnswers
from cachetier.peers.door import PeerDoor
from cachetier.peers.keeper import KeptObjects
from cachetier.remote.neighbours.client import HttpPeer
from cachetier.remote.neighbours.membership import Membership, NodeIdentity, headers_of
from cachetier.remote.neighbours.store import NeighbourStore
from cachetier.remote.stall_guard import StallWatch

TOKEN = "t" * 40
ROOM_BYTES = 1 << 30


class _NoAnswers:
    def close(self) -> None:
        pass


class Neighbour:
    """One node: what it keeps, its door, and its view of the others."""

    def __init__(self, home: Path, listener: socket.socket, listed: list[str], domain: str) -> None:
        own = NodeIdentity(home.name, "bucket", domain)
        headers = headers_of(own, TOKEN)
        self.name = home.name
        self.address = listener.getsockname()

        def open_peer(host: str, address: str, port: int) -> HttpPeer:
            return HttpPeer(host, (address, port), headers, source=self.address[0])

        self.membership = Membership(listed, own, open_peer, SystemClock())
        self._home = home
        self._door: PeerDoor | None = None
        self.open(listener)

    def open(self, listener: socket.socket) -> None:
        """Answer, with what is on the disk."""
        self.keeper = KeptObjects(self._home, ROOM_BYTES, SystemClock())
        answers = cast("PeerAnswers", _NoAnswers())
        door = PeerDoor(listener, self.membership, answers, token=TOKEN, keeper=self.keeper)
        door.start()
        self._door = door

    def kill(self) -> None:
        """Answer nobody any more."""
        if self._door is not None:
            self._door.stop()
            self._door = None

    def restart(self) -> None:
        self.kill()
        self.open(socket.create_server(self.address))

    def store(self, copies: int = 1) -> NeighbourStore:
        return NeighbourStore(lambda: self.membership, copies, StallWatch())


class Neighbourhood:
    """``domains`` has an entry for each node."""

    def __init__(self, directory: Path, domains: tuple[str, ...] = ("", "", "")) -> None:
        listeners = [socket.create_server((f"127.0.0.{n + 2}", 0)) for n in range(len(domains))]
        listed = ["{}:{}".format(*each.getsockname()) for each in listeners]
        self.nodes = []
        for number, (listener, domain) in enumerate(zip(listeners, domains, strict=True)):
            home = directory / f"{number:032x}"
            home.mkdir()
            self.nodes.append(Neighbour(home, listener, listed, domain))

    def holders(self, key: str) -> list[int]:
        """Return the numbers of the nodes that keep an object."""
        return [number for number, each in enumerate(self.nodes) if each.keeper.head(key)]

    def close(self) -> None:
        for each in self.nodes:
            each.kill()
            each.membership.close()
