"""A body straight from its socket: a thread receives into a block, past the parser and the loop.

While a connection is lent nobody else reads from it. TLS and chunks need the loop; a body of known
length in clear text needs neither.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable

from cachetier.doors.http.problems import BodyCutShortError

LEND = "cachetier.lend"  # the connection's extension of the scope
LOOK_MILLISECONDS = 500


class DirectStream:
    """The rest of one body, of ``left_bytes``; ``earlier`` came before the connection was lent."""

    def __init__(
        self, connection: int, earlier: bytes, left_bytes: int, given_back: Callable[[bool], None]
    ) -> None:
        """Read from the socket of the number ``connection``.

        ``given_back`` hears once whether the whole body was read.
        """
        self.earlier = earlier
        self.left_bytes = left_bytes
        self._socket = socket.socket(fileno=os.dup(connection))
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._given_back = given_back

    def fill(self, block: memoryview, moved: Callable[[int], None]) -> int:
        """Receive, blocking, until ``block`` is full or the body ends; return how much came.

        ``moved`` hears of each piece.

        Raises:
            BodyCutShortError: The connection ended before.
        """
        room = block[: self.left_bytes]
        filled = 0
        while filled < len(room):
            try:
                count = self._socket.recv_into(room[filled:])
            except BlockingIOError:
                self._readable.poll(LOOK_MILLISECONDS)
                continue
            except OSError:
                count = 0
            if not count:
                raise BodyCutShortError("the connection ended before the body did")
            filled += count
            moved(count)
        self.left_bytes -= filled
        return filled

    def stop(self) -> None:
        """End a ``fill`` that waits for its peer, for good."""
        try:
            self._socket.shutdown(socket.SHUT_RD)
        except OSError:  # it is gone, and so does not wait
            return

    def close(self) -> None:
        """Give the connection back."""
        self._socket.close()
        self._given_back(self.left_bytes == 0)


# Returns the rest of the body of one request, or None where it cannot be lent.
Lend = Callable[[], DirectStream | None]
