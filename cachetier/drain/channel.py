"""The channel between ``serve`` and its drain process: frames over a socket pair.

The drain asks, ``serve`` answers; what is said is in ``messages``. A request carries an id, so that
many threads share the socket; one without waits for no reply. Only one frame comes unasked, and
empty: look for work again. A reply may carry the descriptor of a data file, so the drain needs no
paths. When either end closes the socket, both know: the drain ends with it.

Source: docs/design/0001-drain-channel.md.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any

from cachetier_client.transport.wire import Frame, FrameError, receive_frame, send_frame

from cachetier.drain import messages
from cachetier.drain.messages import AnyRequest, ReplyT, Request
from cachetier.errors import CachetierError, NotFoundError
from cachetier.notifier import Changes
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

ANSWER_THREADS = 8
# Between two wake-ups: thousands of puts a second must not each cost a switch of threads.
QUIET_SECONDS = 0.1
LOOK_SECONDS = 5.0


class ChannelClosedError(Exception):
    """The other end is gone, or this one was closed."""


class RefusedReportError(Exception):
    """``serve`` could not record a report: the work is to be tried again later."""


class AskingEnd:
    """The drain's end: requests from many threads, answers by id."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._waiting: dict[int, Future[Frame | None]] = {}
        self._closed = False

    def listen(self, on_wake: Callable[[], None]) -> None:
        """Receive until the other end closes; ``on_wake`` is called when there may be work.

        The calling thread does nothing else; every waiting request fails when it returns.
        """
        try:
            while True:
                self._deliver(receive_frame(self._socket), on_wake)
        except (FrameError, OSError):
            pass  # the other end is gone
        finally:
            self._fail_all()

    def ask(self, request: Request[ReplyT]) -> ReplyT:
        """Send a request and return its reply: what it reported is then synced.

        Raises:
            NotFoundError: The shard or save was replaced or deleted meanwhile.
            RefusedReportError: It could not be recorded.
            ChannelClosedError: No answer will come.
        """
        name, body = messages.encode_request(request)
        number, reply = next(self._numbers), Future[Frame | None]()
        with self._lock:
            if self._closed:
                raise ChannelClosedError
            self._waiting[number] = reply
        self._send(name, body, number)
        frame = reply.result()
        if frame is None:
            raise ChannelClosedError
        if not frame.header.get("refused"):
            return messages.decode_reply(type(request), frame.body, frame.descriptor)
        refusal = messages.decode_refusal(frame.body)
        if refusal.code == NotFoundError.code:
            raise NotFoundError(refusal.message)
        raise RefusedReportError(f"{refusal.message} ({refusal.code})")

    def tell(self, request: Request[None]) -> None:
        """Send what needs no reply."""
        self._send(*messages.encode_request(request), None)

    def close(self) -> None:
        """Hang up; ``listen`` returns."""
        _hang_up(self._socket)

    def _send(self, name: str, body: bytes, number: int | None) -> None:
        try:
            with self._sending:
                send_frame(self._socket, {"id": number, "request": name}, body)
        except OSError:
            self._fail_all()
            raise ChannelClosedError from None

    def _deliver(self, frame: Frame, on_wake: Callable[[], None]) -> None:
        number = frame.header.get("id")
        if number is None:
            on_wake()
            return
        with self._lock:
            reply = self._waiting.pop(number, None)
        if reply is None:
            _close_descriptor(frame)
            return
        reply.set_result(frame)

    def _fail_all(self) -> None:
        with self._lock:
            self._closed = True
            abandoned, self._waiting = self._waiting, {}
        for reply in abandoned.values():
            reply.set_result(None)


class AnsweringEnd:
    """The end of ``serve``: each request goes to ``answer`` on whatever thread received it."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._sending = threading.Lock()

    def receive(self) -> Frame | None:
        """Return the next request, still encoded, or None when the drain is gone."""
        try:
            frame = receive_frame(self._socket)
        except (FrameError, OSError):
            return None
        _close_descriptor(frame)
        return frame

    def reply(self, frame: Frame, answer: Callable[[AnyRequest], object]) -> None:
        """Answer one request; an error of ``answer`` becomes the answer. Closes its descriptor."""
        number = frame.header["id"]
        header, body, descriptor = _attempt(frame, answer)
        try:
            if number is not None:
                self._send({"id": number, **header}, body, descriptor)
        except OSError:
            pass  # the drain is gone; whoever receives finds out
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _send(self, header: dict[str, Any], body: bytes, descriptor: int | None) -> None:
        with self._sending:
            try:
                send_frame(self._socket, header, body, descriptor)
            except FrameError as error:  # too large: nothing was sent of it
                tell(log, events.DRAIN_ANSWER_TOO_LARGE, reason=str(error))
                body = messages.encode_refusal(CachetierError.code, str(error))
                send_frame(self._socket, {**header, "refused": True}, body)

    def wake(self) -> None:
        """Let the drain look for work again."""
        try:
            with self._sending:
                send_frame(self._socket, {})
        except OSError:
            pass  # the drain is gone; whoever receives finds out

    def close(self) -> None:
        _hang_up(self._socket)


class DrainLink:
    """Serves one drain by its socket, from ``start`` until it hangs up or ``close``.

    ``answer`` does what it asks; it is woken when something changes.
    """

    def __init__(
        self, sock: socket.socket, answer: Callable[[AnyRequest], object], changes: Changes
    ) -> None:
        self._channel = AnsweringEnd(sock)
        self._answer = answer
        self._changes = changes
        self._closed = threading.Event()
        self._pool = ThreadPoolExecutor(ANSWER_THREADS, thread_name_prefix="drain-answer")
        self._threads = [
            threading.Thread(target=self._receive, name="drain-requests", daemon=True),
            threading.Thread(target=self._wake, name="drain-wake", daemon=True),
        ]

    def start(self) -> None:
        """Begin to answer.

        Raises:
            RuntimeError: No thread is left; ``close`` ends what was begun.
        """
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Hang up; returns when no request is being answered any more."""
        self._closed.set()
        self._channel.close()
        self._changes.ring()  # the waking thread waits there
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._pool.shutdown()

    def _receive(self) -> None:
        while (frame := self._channel.receive()) is not None:
            try:
                self._pool.submit(self._channel.reply, frame, self._answer)
            except RuntimeError as error:  # no thread is left, and nobody knows if it was taken
                tell(
                    log,
                    events.DRAIN_REQUEST_FAILED,
                    operation=str(frame.header.get("request")),
                    error=error,
                )
                self._channel.close()  # the drain ends with it, and the next one asks again

    def _wake(self) -> None:
        seen = 0
        while not self._closed.wait(QUIET_SECONDS):
            rings = self._changes.next_ring(seen, LOOK_SECONDS)
            if rings != seen:
                seen = rings
                self._channel.wake()


def _attempt(
    frame: Frame, answer: Callable[[AnyRequest], object]
) -> tuple[dict[str, Any], bytes, int | None]:
    """Return what the answer's header says beside the id, its body and its descriptor."""
    name = str(frame.header.get("request"))
    try:
        request = messages.decode_request(name, frame.body)
        return {}, *messages.encode_reply(answer(request))
    except CachetierError as error:
        return {"refused": True}, messages.encode_refusal(error.code, error.message), None
    except Exception as error:  # a defect must not leave a worker waiting for ever
        tell(log, events.DRAIN_REQUEST_FAILED, operation=name, error=error)
        body = messages.encode_refusal(CachetierError.code, repr(error))
        return {"refused": True}, body, None


def _close_descriptor(frame: Frame) -> None:
    if frame.descriptor is not None:
        os.close(frame.descriptor)


def _hang_up(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other end hung up before
    sock.close()
