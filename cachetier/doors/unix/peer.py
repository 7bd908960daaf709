"""Who is at the other end of a connection: what the kernel says, not the peer."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_CREDENTIALS = struct.Struct("3i")


class Peer(NamedTuple):
    """The process that connected, and its user; others may have the connection since."""

    pid: int
    uid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return who connected."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(found)
    return Peer(pid, uid)
