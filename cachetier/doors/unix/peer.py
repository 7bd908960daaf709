"""Who is at the other end of a connection: what the kernel says, not the peer."""

from __future__ import annotations

import contextlib
import socket
import struct
from array import array
from typing import NamedTuple

_CREDENTIALS = struct.Struct("iII")
_SO_PEERGROUPS = 59  # which Python has no name for
_GROUPS_BYTES = 4096


class Peer(NamedTuple):
    """The process that connected, its user and groups; others may have the connection since."""

    uid: int
    gids: frozenset[int]
    pid: int


def peer_of(connection: socket.socket) -> Peer:
    """Return who connected."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(found)
    groups = array("I")
    with contextlib.suppress(OSError):  # of more groups than fit none but the first counts
        groups.frombytes(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES))
    return Peer(uid, frozenset((gid, *groups)), pid)
