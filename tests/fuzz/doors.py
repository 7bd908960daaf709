"""Send mutants to both doors of a service, several at a time, and judge each answer."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from cachetier_client.transport.wire import (
    PROTOCOL,
    REPLY_HEADER_LIMIT_BYTES,
    ConnectionClosedError,
    Frame,
    receive_frame,
)

from tests.fuzz.mutants import Mutant, mutant_of
from tests.fuzz.recording import DOORS, PATTERN, TOKEN, Exchange, connected, frame, header_of
from tests.fuzz.target import SECRET, Target

THREADS = 4  # for each door
PATIENCE_SECONDS = 0.15  # a peer that waits longer for an answer hangs up
LINGER = struct.pack("ii", 1, 0)
# A deadline that has passed, room or time that is lacking, a store that is away: docs/http.md.
DOCUMENTED = frozenset({503, 504, 507})
BEFORE_THE_TOKEN = frozenset({100, 400, 401, 403, 408, 421})
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_OPEN = re.compile(rb'\{"state": ?"(live|ready|not ready)"')


@dataclass
class Tally:
    """How the answers of one door came out."""

    tried: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    let_in: int = 0

    @property
    def refused(self) -> int:
        """How many mutants heard an error, or were hung up on without a word."""
        return self.tried - self.answers["taken"] - self.answers["waited"]

    def __str__(self) -> str:
        told = ", ".join(f"{number} {kind}" for kind, number in self.answers.most_common())
        return f"{self.tried} tried, {self.refused} refused, {self.let_in} let in: {told}"


class LetInError(AssertionError):
    """A peer got what it has no right to."""


def fuzz(
    target: Target, recorded: dict[str, Sequence[Exchange]], seed: int, numbers: range
) -> dict[str, Tally]:
    """Send the mutants of ``numbers`` to each door; both at the same time."""
    tallies = {door: Tally() for door in DOORS}
    threads = []
    for door in DOORS:
        ahead = itertools.chain(numbers)
        work = (target, door, recorded[door], seed, ahead, tallies[door], threading.Lock())
        threads += [threading.Thread(target=_work, args=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tallies


def _work(
    target: Target,
    door: str,
    recorded: Sequence[Exchange],
    seed: int,
    ahead: Iterator[int],
    tally: Tally,
    lock: threading.Lock,
) -> None:
    while True:
        with lock:
            number = next(ahead, None)
            if number is None or len(tally.failures) > 20:
                return
        mutant = mutant_of(door, recorded, seed, number)
        failure, let_in = "", False
        try:
            kind = SEND[door](target.urls[door], mutant)
        except LetInError as error:
            kind, failure, let_in = "let in", str(error), True
        except Exception as error:
            kind, failure = "failure", f"{type(error).__name__}: {error}"
        with lock:
            tally.tried += 1
            tally.answers[kind] += 1
            tally.let_in += let_in
            if failure:
                replay = f"python -m tests.fuzz --door {door} --seed {seed} --at {number}"
                tally.failures.append(f"{failure}\n    {mutant.name}; to replay: {replay}")


@contextmanager
def rude(url: str) -> Iterator[socket.socket]:
    """Lend a connection that hangs up without leaving a port behind."""
    connection = connected(url)
    connection.settimeout(PATIENCE_SECONDS)
    try:
        yield connection
    finally:
        if connection.family != socket.AF_UNIX:
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        connection.close()


# --- HTTP ----------------------------------------------------------------------------------------


def send_http(url: str, mutant: Mutant) -> str:
    """Send a mutant; return how it came out.

    Raises:
        LetInError: More was answered than there were tokens, or what is nobody's to read.
        AssertionError: The service failed on it.
    """
    with rude(url) as connection:
        answer, silent = _heard(connection, mutant)
    if SECRET in answer:
        raise LetInError(f"it gave what lies beside its directory: {answer[:500]!r}")
    places = [found.start() for found in _STATUS.finditer(answer)]
    answers = [answer[a:b] for a, b in itertools.pairwise([*places, len(answer)])]
    statuses = [int(each[9:12]) for each in answers]
    admitted = [
        each
        for each, status in zip(answers, statuses, strict=True)
        if status not in BEFORE_THE_TOKEN and not _OPEN.search(each)
    ]
    if len(admitted) > mutant.sent.count(TOKEN.encode()):
        raise LetInError(f"{len(admitted)} answers without so many tokens: {admitted[-1][:500]!r}")
    for each, status in zip(answers, statuses, strict=True):
        assert status < 500 or status in DOCUMENTED, each[:1500]
    if not statuses:
        return "waited" if silent else "closed"
    return "taken" if statuses[-1] < 400 else str(statuses[-1])


def _heard(connection: socket.socket, mutant: Mutant) -> tuple[bytes, bool]:
    """Return all that came back, and whether it ended by the peer's own impatience."""
    heard = bytearray()
    with suppress(ConnectionError):
        connection.sendall(mutant.sent)
    with suppress(OSError):
        if mutant.ends:
            connection.shutdown(socket.SHUT_WR)
    try:
        while piece := connection.recv(1 << 20):
            heard += piece
    except TimeoutError:
        return bytes(heard), True
    except ConnectionError:
        pass
    return bytes(heard), False


# --- the socket ----------------------------------------------------------------------------------

HELLO = frame({"op": "hello", "protocol": PROTOCOL, "client_id": "0123456789abcdef"})


def send_unix(url: str, mutant: Mutant) -> str:
    """Send a mutant on a connection that was greeted, unless it is of the greeting itself.

    Raises:
        LetInError: Somebody was served who had not greeted, or got what is nobody's to read.
        AssertionError: The service failed on it.
    """
    frames: list[Frame] = []
    greets = mutant.name.startswith("hello")
    with rude(url) as connection:
        with suppress(ConnectionError, TimeoutError, ConnectionClosedError):
            if not greets:
                connection.sendall(HELLO)
                frames.append(_next(connection))
            for number, message in enumerate(mutant.messages):
                connection.sendall(message)
                if number != mutant.changed and header_of(message)["op"] == "block":
                    continue
                if number < len(mutant.messages) - 1:
                    with suppress(TimeoutError):
                        frames.append(_filled(_next(connection), mutant))
        silent = _rest(connection, frames, ends=mutant.ends)
    try:
        return _judged(mutant, frames, silent=silent)
    finally:
        for each in frames:
            if each.descriptor is not None:
                os.close(each.descriptor)


def _next(connection: socket.socket) -> Frame:
    return receive_frame(connection, REPLY_HEADER_LIMIT_BYTES)


def _rest(connection: socket.socket, frames: list[Frame], *, ends: bool) -> bool:
    """Gather what is still to come; return whether the peer had to end it by itself."""
    with suppress(OSError):
        if ends:
            connection.shutdown(socket.SHUT_WR)
    began = len(frames)
    try:
        while True:
            frames.append(_next(connection))
            if not ends:
                connection.settimeout(0.001)  # more comes at once, or never
    except (ConnectionClosedError, ConnectionError):
        return False
    except (TimeoutError, BlockingIOError):
        return len(frames) == began


def _filled(reply: Frame, mutant: Mutant) -> Frame:
    """Write a staged put's bytes, as its client does, and let go of the file."""
    if reply.descriptor is None or reply.header.get("plane") != "descriptor":
        return reply
    with suppress(Exception):  # of a commit that is mutated, too
        size_bytes = header_of(mutant.messages[-1])["size_bytes"]
        flags = fcntl.fcntl(reply.descriptor, fcntl.F_GETFL)
        fcntl.fcntl(reply.descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)  # takes any bytes
        os.pwrite(reply.descriptor, PATTERN[:size_bytes], 0)
        os.ftruncate(reply.descriptor, size_bytes)
    os.close(reply.descriptor)
    return Frame(reply.header, reply.body)


def _judged(mutant: Mutant, frames: list[Frame], *, silent: bool) -> str:
    greeted = False
    for each in frames:
        taken = each.header["ok"]
        if taken and not greeted and "protocol" not in each.header:
            raise LetInError(f"it was not greeted, and gave {str(each.header)[:500]}")
        greeted = greeted or bool(taken)
        if SECRET in each.body or SECRET.decode() in str(each.header):
            raise LetInError("it gave what lies beside its directory")
        assert taken or each.header["error"]["code"] != "internal", each.header
    told = frames if mutant.name.startswith("hello") else frames[1:]
    if not told:
        return "waited" if silent else "closed"
    return "taken" if told[-1].header["ok"] else str(told[-1].header["error"]["code"])


SEND: dict[str, Callable[[str, Mutant], str]] = {"http": send_http, "unix": send_unix}
