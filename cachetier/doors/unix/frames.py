"""Frames from a peer who may be hostile: bounded in memory and time, however many there are.

A peer who has not said hello may send little, and soon. Of larger frames all connections together
hold no more than ``ROOM_BYTES``; who stalls in the middle of one, or drips, is hung up on, as is
who does not read answers.
"""

from __future__ import annotations

import socket
import struct
import threading
import time

from cachetier_client.io.digests import BLOCK_BYTES
from cachetier_client.transport.wire import HEADER_LIMIT_BYTES, Frame, FrameError, receive_frame

STALL_SECONDS = 20
HELLO_BYTES = 4096
ROOM_BYTES = 256 << 20
OWN_BYTES = 2 * (HEADER_LIMIT_BYTES + BLOCK_BYTES)  # of it: two frames of the service's own user
_TIMEVAL = struct.Struct("ll")


class FrameRoom:
    """Memory for the larger frames of all connections."""

    def __init__(self, size_bytes: int = ROOM_BYTES) -> None:
        self._free_bytes = size_bytes
        self._freed = threading.Condition()

    def take(self, size_bytes: int, *, is_own: bool = False) -> None:
        """Wait until ``size_bytes`` are free, beside what is kept for the service's own user.

        Raises:
            FrameError: Not in time.
        """
        needed_bytes = size_bytes + (0 if is_own else OWN_BYTES)
        with self._freed:
            if not self._freed.wait_for(lambda: self._free_bytes >= needed_bytes, STALL_SECONDS):
                raise FrameError("not enough memory for a frame of this size")
            self._free_bytes -= size_bytes

    def give_back(self, size_bytes: int) -> None:
        with self._freed:
            self._free_bytes += size_bytes
            self._freed.notify_all()


class Frames:
    """The frames of one connection; one is held at a time."""

    def __init__(self, connection: socket.socket, room: FrameRoom, *, is_own: bool = False) -> None:
        stall = _TIMEVAL.pack(STALL_SECONDS, 0)  # of one call, in the kernel: it costs nothing
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, stall)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, stall)
        self._connection = connection
        self._room = room
        self._is_own = is_own
        self._held_bytes = 0
        self.resting_since: float | None = time.monotonic()
        self.putting = False  # whether puts are under way by the connection that rests

    def rests(self, *, putting: bool | None = None) -> None:
        """Let go of the frame before: the connection rests, with puts under way or without."""
        self.let_go()
        if putting is not None:
            self.putting = putting
        self.resting_since = time.monotonic()

    def next(self, *, greeted: bool) -> Frame:
        """Return the next frame, whenever it comes.

        Raises:
            ConnectionClosedError, FrameError: There is none, or not in time.
        """
        limits = (HEADER_LIMIT_BYTES, BLOCK_BYTES) if greeted else (HELLO_BYTES, 0)
        while True:
            try:
                frame = receive_frame(
                    self._connection, *limits, begun_seconds=STALL_SECONDS, admit=self._take
                )
            except BlockingIOError:
                if greeted:
                    continue
                raise FrameError(f"no hello came in {STALL_SECONDS} s") from None
            self.resting_since = None
            return frame

    def let_go(self) -> None:
        """Give back the memory of the frame that is held."""
        if not self._held_bytes:
            return
        self._room.give_back(self._held_bytes)
        self._held_bytes = 0

    def _take(self, size_bytes: int) -> None:
        self.resting_since = None  # a large frame is on its way
        self._room.take(size_bytes, is_own=self._is_own)
        self._held_bytes = size_bytes
