"""The channel between ``serve`` and its drain process: frames over a socket pair.

The drain asks, ``serve`` answers; a request carries an id, so that many threads share the socket.
Only one frame comes unasked: ``wake``, look for work again. A reply may carry the descriptor of a
data file, so the drain needs no paths. When either end closes the socket, both know: the drain ends
with it.

Source: docs/design/0001-drain-channel.md.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from cachetier_client.transport.wire import (
    REPLY_HEADER_LIMIT_BYTES,
    Frame,
    FrameError,
    receive_frame,
    send_frame,
)

from cachetier.errors import CachetierError, NotFoundError
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)


class ChannelClosedError(Exception):
    """The other end is gone, or this one was closed."""


class RefusedReportError(Exception):
    """``serve`` could not record a report: the work is to be tried again later."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: ``descriptor`` is the receiver's to close."""

    fields: dict[str, Any]
    body: bytes | bytearray = b""
    descriptor: int | None = None


class _PendingReply:
    """A request on its way, and where its sender waits."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.frame: Frame | None = None


class AskingEnd:
    """The drain's end: requests from many threads, answers by id."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._waiting: dict[int, _PendingReply] = {}
        self._closed = False

    def listen(self, on_wake: Callable[[], None]) -> None:
        """Receive until the other end closes; ``on_wake`` is told that there may be work.

        The calling thread does nothing else; every waiting request fails when it returns.
        """
        try:
            while True:
                self._deliver(receive_frame(self._socket, REPLY_HEADER_LIMIT_BYTES), on_wake)
        except (FrameError, OSError):
            pass  # the other end is gone
        finally:
            self._fail_all()

    def ask(self, op: str, /, **fields: Any) -> Reply:
        """Send a request and return its answer: what it reported is then synced.

        Raises:
            NotFoundError: The shard or save was replaced or deleted meanwhile.
            RefusedReportError: It could not be recorded.
            ChannelClosedError: No answer will come.
        """
        number, waiting = next(self._numbers), _PendingReply()
        with self._lock:
            if self._closed:
                raise ChannelClosedError
            self._waiting[number] = waiting
        self._send({"op": op, "id": number, **fields})
        waiting.answered.wait()
        if waiting.frame is None:
            raise ChannelClosedError
        return _checked(waiting.frame)

    def tell(self, op: str, /, **fields: Any) -> None:
        """Send what needs no answer."""
        self._send({"op": op, **fields})

    def close(self) -> None:
        """Hang up; ``listen`` returns."""
        _hang_up(self._socket)

    def _send(self, header: dict[str, Any]) -> None:
        try:
            with self._sending:
                send_frame(self._socket, header)
        except OSError:
            self._fail_all()
            raise ChannelClosedError from None

    def _deliver(self, frame: Frame, on_wake: Callable[[], None]) -> None:
        number = frame.header.get("id")
        if number is None:
            on_wake()
            return
        with self._lock:
            waiting = self._waiting.pop(number, None)
        if waiting is None:
            _close_descriptor(frame)
            return
        waiting.frame = frame
        waiting.answered.set()

    def _fail_all(self) -> None:
        with self._lock:
            self._closed = True
            abandoned, self._waiting = self._waiting, {}
        for waiting in abandoned.values():
            waiting.answered.set()


class AnsweringEnd:
    """The end of ``serve``: each request goes to ``answer`` on whatever thread received it."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()

    def receive(self) -> dict[str, Any] | None:
        """Return the next request, or None when the drain is gone."""
        try:
            frame = receive_frame(self._socket)
        except (FrameError, OSError):
            return None
        _close_descriptor(frame)
        return frame.header

    def reply(self, request: dict[str, Any], answer: Callable[[dict[str, Any]], Reply]) -> None:
        """Answer one request; an error of ``answer`` becomes the answer. Closes its descriptor."""
        reply = _attempt(request, answer)
        try:
            if "id" in request:
                self._send(request["id"], reply)
        except OSError:
            pass  # the drain is gone; whoever receives finds out
        finally:
            if reply.descriptor is not None:
                os.close(reply.descriptor)

    def _send(self, number: int, reply: Reply) -> None:
        with self._sending:
            try:
                fields = {"id": number, **reply.fields}
                send_frame(self._socket, fields, reply.body, reply.descriptor)
            except FrameError as error:  # too large: nothing was sent of it
                tell(log, events.DRAIN_ANSWER_TOO_LARGE, reason=str(error))
                send_frame(
                    self._socket, {"id": number, **_refusal(CachetierError.code, str(error))}
                )

    def wake(self) -> None:
        """Let the drain look for work again."""
        try:
            with self._sending:
                send_frame(self._socket, {"op": "wake"})
        except OSError:
            pass  # the drain is gone; whoever receives finds out

    def close(self) -> None:
        _hang_up(self._socket)


def _attempt(request: dict[str, Any], answer: Callable[[dict[str, Any]], Reply]) -> Reply:
    try:
        reply = answer(request)
    except CachetierError as error:
        return Reply(_refusal(error.code, error.message))
    except Exception as error:  # a defect must not leave a worker waiting for ever
        tell(log, events.DRAIN_REQUEST_FAILED, operation=str(request.get("op")), error=error)
        return Reply(_refusal(CachetierError.code, repr(error)))
    return Reply({"ok": True, **reply.fields}, reply.body, reply.descriptor)


def _refusal(code: str, message: str) -> dict[str, Any]:
    return {"ok": False, "code": code, "message": message}


def _checked(frame: Frame) -> Reply:
    fields = frame.header
    if fields.get("ok"):
        return Reply(fields, frame.body, frame.descriptor)
    _close_descriptor(frame)
    message = str(fields.get("message"))
    if fields.get("code") == NotFoundError.code:
        raise NotFoundError(message)
    raise RefusedReportError(f"{message} ({fields.get('code')})")


def _close_descriptor(frame: Frame) -> None:
    if frame.descriptor is not None:
        os.close(frame.descriptor)


def _hang_up(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other end hung up before
    sock.close()
