"""A carrier: a process that moves the bodies of requests, from and to files by their descriptors.

Carriers are forked by a *nursery*, a copy of the deciding process from before it had threads. So
one is there within milliseconds and shares what was imported. It ends with the socket by which it
is told what to do, or with its parent: carriers die with the nursery, the nursery with the
process that decides.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from select import select as wait_for

from cachetier_client.bucket_format.uploads import ObjectInfo, UploadedPart, UploadPartRange
from msgspec import Struct, json

from cachetier import libc
from cachetier.carriers.checked_file import CheckedFile, FileBody
from cachetier.carriers.messages import (
    MESSAGE_BYTES,
    MESSAGES,
    Came,
    Cut,
    Done,
    Failure,
    Fetch,
    Job,
    Start,
)
from cachetier.carriers.stored_blocks import BlockSink
from cachetier.local.files.data_files import write_all
from cachetier.remote.base import ObjectStore
from cachetier.remote.scheme import SCHEMES, RemoteServer, scheme_of
from cachetier.remote.settings import RemoteSettings
from cachetier.remote.stall_guard import StallWatch, Timeouts

CARRIERS_LIMIT = 64
# With pieces of 512 KiB a GiB takes a third more of a processor than with large ones, which most of
# many jobs must do without.
PIECE_BYTES, LARGE_PIECE_BYTES = 1 << 20, 4 << 20
LARGE_PIECES = 4
TELL_SECONDS = 0.02  # a search sees a flow as sharply


class Counters:
    """Numbers that a carrier writes and the deciding process reads, in memory of both.

    Of each carrier: moved bytes, nanoseconds in which it read, and how often it has looked round.
    One that is forked again goes on from the numbers of its predecessor.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Counters in the memory behind ``descriptor``, or in new memory."""
        self.descriptor = os.memfd_create("carriers") if descriptor is None else descriptor
        os.ftruncate(self.descriptor, CARRIERS_LIMIT * 24)
        self._numbers = memoryview(mmap.mmap(self.descriptor, CARRIERS_LIMIT * 24)).cast("Q")

    def write(self, place: int, moved_bytes: int, read_nanoseconds: int) -> None:
        self._numbers[3 * place] = moved_bytes
        self._numbers[3 * place + 1] = read_nanoseconds
        self._numbers[3 * place + 2] += 1

    def of(self, place: int) -> tuple[int, int, int]:
        first = 3 * place
        return self._numbers[first], self._numbers[first + 1], self._numbers[first + 2]

    def moved_bytes(self) -> int:
        """Return the moved bytes of all carriers that there ever were."""
        return sum(self._numbers[0::3])

    def read_seconds(self) -> float:
        """Return for how long carriers read, each of them alone."""
        return sum(self._numbers[1::3]) / 1e9


class Nursery:
    """Forks carriers on request; made before this process has threads.

    ``settle`` is called in each carrier once its store is open, before its first job.
    """

    def __init__(
        self,
        settle: Callable[[], object],
        leave: tuple[int, ...] = (),
        load_after_seconds: float = 0.0,
    ) -> None:
        """Fork the nursery; it closes the descriptors in ``leave``, and then loads what it needs.

        After ``load_after_seconds``, if no carrier is wanted before: others have the processor.
        """
        self.counters = Counters()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        gc.collect()
        gc.freeze()
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            for descriptor in leave:
                os.close(descriptor)
            _apart(parent)
            fork_on_request(theirs, self.counters, settle, load_after_seconds)
        theirs.close()

    def fork(self, place: int) -> tuple[socket.socket, int]:
        """Return the socket of a new carrier that writes its counters at ``place``, and its pid.

        One thread calls this at a time.

        Raises:
            ConnectionError: The nursery is gone.
            OSError: None can be forked now.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                socket.send_fds(self._socket, [bytes([place])], [theirs.fileno()])
            reply = self._socket.recv(16)
            if not reply:
                raise ConnectionResetError("the process that forks carriers is gone")
            if int(reply) < 0:
                raise OSError(-int(reply), os.strerror(-int(reply)))
        except BaseException:
            ours.close()
            raise
        return ours, int(reply)

    def close(self) -> None:
        """End the nursery, and with it whatever carrier is left."""
        self._socket.close()
        os.kill(self._pid, signal.SIGKILL)  # it may be in the middle of what it loads
        os.waitpid(self._pid, 0)


def _apart(parent: int) -> None:
    """Live as long as ``parent``: what stops the service stops that one first, which stops us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    libc.die_with_parent()
    if os.getppid() != parent:
        os._exit(0)


def fork_on_request(
    requests: socket.socket,
    counters: Counters,
    settle: Callable[[], object],
    load_after_seconds: float,
) -> None:
    """Fork carriers until the other end closes; this process never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    try:
        wait_for([requests], [], [], load_after_seconds)
        for each in SCHEMES.values():
            each.load()
        while True:
            data, descriptors, _, _ = socket.recv_fds(requests, 16, 1)
            if not data:
                os._exit(0)
            with socket.socket(fileno=descriptors[0]) as sock:
                nursery = os.getpid()
                try:
                    pid = os.fork()
                except OSError as error:
                    pid = -(error.errno or 1)
                if pid == 0:
                    requests.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    _apart(nursery)
                    _carry(sock, counters, data[0], settle)
            requests.send(str(pid).encode())
    except BaseException:
        traceback.print_exc()  # the service logs it
    finally:
        os._exit(1)  # never into what the deciding process would do next


def _carry(
    sock: socket.socket, counters: Counters, place: int, settle: Callable[[], object]
) -> None:
    start = MESSAGES.decode(sock.recv(MESSAGE_BYTES))
    assert isinstance(start, Start)
    carrier = Carrier(sock, start, counters, place)
    gc.freeze()  # what a client is made of stays, and need not be looked through again and again
    settle()
    carrier.run()


class Carrier:
    """Does jobs, ``at_once`` of them at a time, and says how each ended."""

    def __init__(self, sock: socket.socket, start: Start, counters: Counters, place: int) -> None:
        self._socket = sock
        self._counters = counters
        self._place = place
        self._before = counters.of(place)
        self._stalls = StallWatch()
        self._timeouts = Timeouts(start.connect_seconds, start.read_seconds, self._stalls)
        self._at_once = start.at_once
        self._servers: dict[RemoteSettings, RemoteServer] = {}
        self._server(start.remote).open()
        self._stores: dict[RemoteSettings, ObjectStore] = {}
        self._running: dict[int, int] = {}  # threads by job
        self._has_work = threading.Event()
        self._lock, self._telling = threading.Lock(), threading.Lock()
        self._writing = threading.Lock()  # a file takes one writer; others would spin
        self._large = [mmap.mmap(-1, LARGE_PIECE_BYTES) for _ in range(LARGE_PIECES)]  # idle ones
        self._small: list[mmap.mmap] = []
        self._readers, self._reading_since, self._read_nanoseconds = 0, 0, self._before[1]

    def run(self) -> None:
        """Take messages until the other end closes, and tell how far they are."""
        for _ in range(self._at_once + 1):  # all of them busy, one still hears what is to be cut
            threading.Thread(target=self._take, name="carrier", daemon=True).start()
        while self._has_work.wait():
            time.sleep(TELL_SECONDS)
            with self._lock:
                if not self._running:
                    self._has_work.clear()
            self._tell()

    def _take(self) -> None:
        """Take messages; all threads do, as each hand-over among busy ones would cost a wait."""
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._socket, MESSAGE_BYTES, 1)
            if not data:
                os._exit(0)
            message = MESSAGES.decode(data)
            if isinstance(message, Job | Fetch):
                self._do(message, descriptors[0])
            elif isinstance(message, Cut):
                with self._lock:
                    thread = self._running.get(message.number)
                    if thread is not None:
                        self._stalls.cut(thread)

    def _tell(self) -> None:
        with self._telling:  # not the other lock: each connection is asked
            moved_bytes = self._before[0] + self._stalls.moved_bytes()
            self._counters.write(self._place, moved_bytes, self._read_nanoseconds)

    def _do(self, job: Job | Fetch, descriptor: int) -> None:
        with self._lock:
            self._running[job.number] = threading.get_ident()
        self._has_work.set()
        done = self._done(job, descriptor)
        with self._lock:  # whoever cuts this job has done so by now
            del self._running[job.number]
        if not self._running:  # else it is told soon
            self._tell()
        self._reply(done)

    def _reply(self, message: Struct) -> None:
        try:
            self._socket.send(json.encode(message))
        except OSError:
            os._exit(0)  # nobody is there to hear it

    def _done(self, job: Job | Fetch, descriptor: int) -> Done:
        """Do one job and return how it ended; ``descriptor`` is closed."""
        read_seconds: list[float] = []
        try:
            if isinstance(job, Fetch):
                self._fetch(job, descriptor)
                return Done(job.number, 0.0)
            file = CheckedFile(descriptor, job.block_digests, first_block=job.part.first_block)
            with closing(file):
                answer = self._send(
                    job, FileBody(file, job.part, partial(self._pieces, file, read_seconds))
                )
        except Exception as error:
            return Done(job.number, sum(read_seconds), failure=Failure.of(error))
        if isinstance(answer, UploadedPart):
            return Done(job.number, sum(read_seconds), part=answer)
        return Done(job.number, sum(read_seconds), stored=answer)

    def _fetch(self, job: Fetch, descriptor: int) -> None:
        def write(piece: bytes | bytearray | memoryview, offset: int) -> None:
            with self._writing:
                write_all(descriptor, memoryview(piece), offset)

        into = BlockSink(job.blocks, write, lambda block: self._reply(Came(job.number, block)))
        try:
            if job.blocks.sizes:  # else the carrier before died of something else than its job
                self._store(job.remote).read_into(job.key, job.start, into, job.etag)
        finally:
            os.close(descriptor)

    def _server(self, remote: RemoteSettings) -> RemoteServer:
        """Return the server of ``remote``, which other buckets have too."""
        key = remote.beside("")
        if key not in self._servers:
            self._servers[key] = scheme_of(remote).server(
                remote, max_connections=self._at_once, timeouts=self._timeouts
            )
        return self._servers[key]

    def _store(self, remote: RemoteSettings) -> ObjectStore:
        with self._lock:
            store = self._stores.get(remote)
            if store is None:
                store = self._server(remote).bucket(remote, self._timeouts)
                self._stores[remote] = store
        return store

    def _send(self, job: Job, body: FileBody) -> UploadedPart | ObjectInfo:
        store, digest = self._store(job.remote), job.digest
        if job.upload_id is not None:
            return store.upload_part(job.key, job.upload_id, job.upload_part, body, digest=digest)
        return store.put(
            job.key,
            body,
            digest=digest,
            metadata=job.metadata,
            condition=job.condition,
            headers=job.headers,
        )

    def _pieces(
        self, file: CheckedFile, read_seconds: list[float], part: UploadPartRange
    ) -> Iterator[memoryview]:
        with self._lock:
            idle = next((each for each in (self._large, self._small) if each), None)
            memory = idle.pop() if idle is not None else mmap.mmap(-1, PIECE_BYTES)
        try:
            with memoryview(memory) as buffer:
                yield from file.read_pieces(part, buffer, partial(self._reading, read_seconds))
        finally:
            (self._large if len(memory) == LARGE_PIECE_BYTES else self._small).append(memory)

    @contextmanager
    def _reading(self, read_seconds: list[float]) -> Iterator[None]:
        began = time.monotonic_ns()
        with self._lock:
            self._readers += 1
            self._reading_since = began if self._readers == 1 else self._reading_since
        try:
            yield
        finally:
            now = time.monotonic_ns()
            read_seconds.append((now - began) / 1e9)
            with self._lock:
                self._readers -= 1
                self._read_nanoseconds += 0 if self._readers else now - self._reading_since
