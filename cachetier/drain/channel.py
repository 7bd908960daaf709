"""The channel between ``serve`` and its drain process: a socket pair that carries calls.

The drain calls a method of ``DrainService``, and ``serve`` answers. A frame's header names the
method; arguments and reply are JSON that msgspec writes and reads by the method's annotations. A
call carries an id, so that many threads share the socket; one without waits for no reply. Only one
frame comes unasked, and empty: look for work again. A reply may carry the descriptor of a data
file, so the drain needs no paths. When either end closes the socket, both know: the drain ends.

Source: docs/design/0001-drain-channel.md, docs/design/0046-the-channel-as-a-service.md.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from inspect import Parameter, signature
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple, cast, get_type_hints

from cachetier_client.transport.wire import Frame, FrameError, receive_frame, send_frame
from msgspec import Struct, defstruct, json, structs

from cachetier.drain.messages import LocalShard, NoReply
from cachetier.drain.serve.service import DrainService
from cachetier.errors import CachetierError, NotFoundError
from cachetier.notifier import Changes
from cachetier.telemetry import events
from cachetier.telemetry.events import tell

log = logging.getLogger(__name__)

ANSWER_THREADS = 8
# Between two wake-ups, for each change since the last: thousands of puts a second must not each
# cost a switch of threads, and a seal right after a put does not wait long.
QUIET_SECONDS, QUIET_AT_MOST_SECONDS = 0.03, 0.1
LOOK_SECONDS = 5.0


class ChannelClosedError(Exception):
    """The other end is gone, or this one was closed."""


class RefusedReportError(Exception):
    """``serve`` could not record a report: the work is to be tried again later."""


class ServiceMethod(NamedTuple):
    """One method of ``DrainService`` as it crosses: what makes and reads a call and its reply."""

    arguments: type[Struct]
    call: json.Decoder[Struct]
    reply: json.Decoder[Any]
    waits: bool

    @classmethod
    def of(cls, function: Callable[..., object]) -> ServiceMethod:
        """Return the method that the annotations of ``function`` describe."""
        kinds, parameters = get_type_hints(function, include_extras=True), signature(function)
        reply = kinds.pop("return")
        fields = [
            (name, kind) if default is Parameter.empty else (name, kind, default)
            for name, kind in kinds.items()
            for default in [parameters.parameters[name].default]
        ]
        arguments = defstruct(function.__name__, fields, frozen=True, forbid_unknown_fields=True)
        return cls(arguments, json.Decoder(arguments), json.Decoder(reply), reply is not NoReply)

    def result(self, frame: Frame) -> Any:
        """Return a reply; the descriptor is the caller's, or closed where no reply has it."""
        try:
            reply = self.reply.decode(frame.body)
        except BaseException:
            _close_descriptor(frame.descriptor)
            raise
        if isinstance(reply, LocalShard):
            return structs.replace(reply, descriptor=frame.descriptor)
        _close_descriptor(frame.descriptor)
        return reply


# Made here, by one thread: msgspec crashes where two meet a type for the first time at once.
METHODS = {
    name: ServiceMethod.of(function)
    for name, function in vars(DrainService).items()
    if not name.startswith("_")
}


class AskingEnd:
    """The drain's end: many threads call the methods of ``serve``, replies come by id.

    A call returns when what it reported is synced, one without a reply at once. It raises

    - NotFoundError: The shard or save was replaced or deleted meanwhile.
    - RefusedReportError: It could not be recorded.
    - ChannelClosedError: No answer will come.
    """

    def __init__(self, sock: socket.socket) -> None:
        calls = {name: partial(self.ask, name) for name in METHODS}
        self.serve = cast("DrainService", SimpleNamespace(**calls))
        self._socket = sock
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._waiting: dict[int, Future[Frame | None]] = {}
        self._closed = False

    def listen(self, on_wake: Callable[[], None]) -> None:
        """Receive until the other end closes; ``on_wake`` is called when there may be work.

        The calling thread does nothing else; every waiting call fails when it returns.
        """
        try:
            while True:
                self._deliver(receive_frame(self._socket), on_wake)
        except (FrameError, OSError):
            pass  # the other end is gone
        finally:
            self._fail_all()

    def ask(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call a method of ``serve``, and return its reply, if it has one."""
        method = METHODS[name]
        body = json.encode(method.arguments(*args, **kwargs))
        if not method.waits:
            return self._send(name, body, None)
        number, reply = next(self._numbers), Future[Frame | None]()
        with self._lock:
            if self._closed:
                raise ChannelClosedError
            self._waiting[number] = reply
        self._send(name, body, number)
        frame = reply.result()
        if frame is None:
            raise ChannelClosedError
        if "refused" not in frame.header:
            return method.result(frame)
        code, message = frame.header["refused"], frame.body.decode()
        if code == NotFoundError.code:
            raise NotFoundError(message)
        raise RefusedReportError(f"{message} ({code})")

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
            _close_descriptor(frame.descriptor)
            return
        reply.set_result(frame)

    def _fail_all(self) -> None:
        with self._lock:
            self._closed = True
            abandoned, self._waiting = self._waiting, {}
        for reply in abandoned.values():
            reply.set_result(None)


class DrainLink:
    """Serves one drain by its socket, from ``start`` until it hangs up or ``close``.

    ``service`` does what the drain asks; it is woken when something changes.
    """

    def __init__(self, sock: socket.socket, service: DrainService, changes: Changes) -> None:
        self._socket = sock
        self._sending = threading.Lock()
        self._service = service
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
        _hang_up(self._socket)
        self._changes.ring()  # the waking thread waits there
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._pool.shutdown()

    def _receive(self) -> None:
        with suppress(FrameError, OSError):  # the drain is gone
            while True:
                frame = receive_frame(self._socket)
                _close_descriptor(frame.descriptor)
                try:
                    self._pool.submit(self._reply, frame)
                except RuntimeError as error:  # no thread is left, and nobody knows if it was taken
                    name = str(frame.header.get("request"))
                    tell(log, events.DRAIN_REQUEST_FAILED, operation=name, error=error)
                    _hang_up(self._socket)  # the drain ends with it, and the next one asks again

    def _reply(self, frame: Frame) -> None:
        """Answer one request; an error of ``service`` becomes the answer. Closes its descriptor."""
        number = frame.header["id"]
        header, body, descriptor = self._answer(frame)
        try:
            if number is not None:
                self._send({"id": number, **header}, body, descriptor)
        except OSError:
            pass  # the drain is gone; whoever receives finds out
        finally:
            _close_descriptor(descriptor)

    def _send(self, header: dict[str, Any], body: bytes, descriptor: int | None) -> None:
        with self._sending:
            try:
                send_frame(self._socket, header, body, descriptor)
            except FrameError as error:  # too large: nothing was sent of it
                tell(log, events.DRAIN_ANSWER_TOO_LARGE, reason=str(error))
                header["refused"] = CachetierError.code
                send_frame(self._socket, header, str(error).encode())

    def _answer(self, frame: Frame) -> tuple[dict[str, Any], bytes, int | None]:
        """Return what the answer's header says beside the id, its body and its descriptor."""
        name = str(frame.header.get("request"))
        try:
            arguments = structs.asdict(METHODS[name].call.decode(frame.body))
            return {}, *encode_reply(getattr(self._service, name)(**arguments))
        except CachetierError as error:
            code, message = error.code, error.message
        except Exception as error:  # a defect must not leave a worker waiting for ever
            tell(log, events.DRAIN_REQUEST_FAILED, operation=name, error=error)
            code, message = CachetierError.code, f"{name}: {error!r}"
        return {"refused": code}, message.encode("utf-8", "replace"), None  # a path may be no text

    def _wake(self) -> None:
        seen, quiet_seconds = 0, 0.0
        while not self._closed.wait(quiet_seconds):
            rings = self._changes.next_ring(seen, LOOK_SECONDS)
            quiet_seconds = min(QUIET_SECONDS * (rings - seen), QUIET_AT_MOST_SECONDS)
            if rings != seen:
                seen = rings
                with suppress(OSError), self._sending:  # as above
                    send_frame(self._socket, {})


def encode_reply(reply: object) -> tuple[bytes, int | None]:
    """Return the body of a frame, and the descriptor that goes along."""
    descriptor = reply.descriptor if isinstance(reply, LocalShard) else None
    try:
        return json.encode(reply), descriptor
    except BaseException:
        _close_descriptor(descriptor)
        raise


def _close_descriptor(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


def _hang_up(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the other end hung up before
    sock.close()
