"""Wait for an answer, or for the peer of a connection to hang up, whichever comes first."""

from __future__ import annotations

import os
import select
import socket
from concurrent.futures import Future
from typing import Any


def answered_before_it_hung_up(connection: socket.socket, answer: Future[Any]) -> bool:
    """Return once ``answer`` is there; False, and it is cancelled, if the peer has gone first."""
    there = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        answer.add_done_callback(lambda _answer: os.eventfd_write(there, 1))
        poll = select.poll()
        poll.register(there, select.POLLIN)
        poll.register(connection, select.POLLRDHUP)
        poll.poll()
        answer.cancel()
        os.eventfd_read(there)  # by now it was written, or will be at once: not after the close
        return not answer.cancelled()
    finally:
        os.close(there)
