"""The carriers of one process: they send the bodies that are parts of files, and it decides.

``Carriers.store`` stands below the policy of calls: when a part is sent, how often and how fast is
decided before. Each call is one job of one carrier, the least busy; another carrier is forked while
all have several, up to a limit. Small bodies, and bodies in memory, are sent from here.

A carrier that dies fails none of its jobs: each is done again by another. One of them may be the
reason, so from then on each of them has a carrier to itself until it is through. A job that was
alone in two carriers when they died is not tried any more.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from itertools import count
from typing import Any, TypeGuard

from cachetier_client.bucket_format.uploads import ObjectInfo, UploadedPart
from msgspec import DecodeError, json

from cachetier.carriers.checked_file import FileBody
from cachetier.carriers.messages import MESSAGE_BYTES, REPLIES, Came, Cut, Done, Fetch, Job, Start
from cachetier.carriers.process import CARRIERS_LIMIT, Nursery
from cachetier.carriers.stored_blocks import BlockSink
from cachetier.errors import IntegrityError, TransientError
from cachetier.remote.base import Body, Condition, Headers, Into, Metadata, ObjectStore
from cachetier.remote.settings import RemoteSettings
from cachetier.remote.stall_guard import Timeouts
from cachetier.remote.wrapped import WrappedObjectStore

SMALL_BYTES = 1 << 20  # of less a job costs as much as its bytes
BUSY_JOBS = 4  # of a carrier: with more of them another one is forked
KILLS_LIMIT = 2
SILENT_SECONDS = 60.0


class _Carrier:
    """One carrier as the deciding process sees it: its socket, and the jobs that it has."""

    def __init__(self, sock: socket.socket, pid: int, place: int, start: Start) -> None:
        self.pid = pid
        self.place = place
        self.jobs: dict[int, Future[Done | int]] = {}
        self._hear: dict[int, Callable[[int], object]] = {}
        self._socket = sock
        self._lock = threading.Lock()
        self.is_alive = True
        with suppress(OSError):  # it has died already: whoever listens notices
            sock.send(json.encode(start))
        threading.Thread(target=self._listen, name="carrier-replies", daemon=True).start()

    def begin(
        self, job: Job | Fetch, descriptor: int, came: Callable[[int], object]
    ) -> Future[Done | int]:
        """Hand over a job; if the carrier dies, its result is how many jobs that had then.

        ``came`` gets each block that has come before that.
        """
        reply = Future[Done | int]()
        with self._lock:
            self.jobs[job.number], self._hear[job.number] = reply, came
            alive = self.is_alive
        if alive:
            with suppress(OSError):  # likewise
                socket.send_fds(self._socket, [json.encode(job)], [descriptor])
        else:
            reply.set_result(0)  # it died before
        return reply

    def cut(self, number: int) -> None:
        with suppress(OSError):
            self._socket.send(json.encode(Cut(number)))

    def kill(self) -> None:
        """End it, whatever it does; it was not replaced, so the pid is its own."""
        if self.is_alive:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        with suppress(OSError, DecodeError), self._socket:
            while reply := self._socket.recv(MESSAGE_BYTES):
                answer = REPLIES.decode(reply)
                if isinstance(answer, Came):
                    self._hear[answer.number](answer.block)
                    continue
                with self._lock:
                    waiting = self.jobs.pop(answer.number)
                    del self._hear[answer.number]
                waiting.set_result(answer)
        self._end()

    def _end(self) -> None:
        """Let nobody wait for a dead carrier."""
        with self._lock:
            self.is_alive = False
            abandoned = list(self.jobs.values())
        for waiting in abandoned:
            waiting.set_result(len(abandoned))


class Carriers:
    """Up to ``limit`` carriers, made to reach the server of ``remote``. Thread-safe."""

    def __init__(
        self, nursery: Nursery, remote: RemoteSettings, limit: int, at_once: int, times: Timeouts
    ) -> None:
        """No carrier is forked before the first job.

        Args:
            nursery: Forks them.
            remote: What they prepare to reach.
            limit: How many there may be, beside one for jobs that may kill theirs.
            at_once: How many jobs there are at most.
            times: How long each waits for the remote; it has a stall guard of its own.
        """
        self.counters = nursery.counters
        self.on_lost: Callable[[], object] = lambda: None  # the nursery is gone: none will come
        self.lost = False
        self._nursery = nursery
        self._start = Start(remote, at_once, times.connect_seconds, times.read_seconds)
        self._limit = min(limit, CARRIERS_LIMIT - 1)
        self._numbers = count(1)
        self._forking = threading.Lock()
        self._places: list[_Carrier | None] = [None] * (self._limit + 1)  # the last for suspects
        self._alone = threading.Lock()
        self._kills: dict[tuple[str, str, int], int] = {}  # by jobs that may be the reason
        self._of_thread: dict[int, tuple[_Carrier, int]] = {}

    def store(self, remote: RemoteSettings, store: ObjectStore) -> ObjectStore:
        """Return ``store``, the bucket of ``remote``; carriers move large parts of files."""
        return _CarriedObjectStore(store, self, remote)

    def prepare(self) -> None:
        """Have one carrier, for jobs that come soon; none where there may be none."""
        if self._limit:
            self._carrier_at(0)

    def pids(self) -> Sequence[int]:
        """Return the processes of all carriers there are."""
        return [each.pid for each in self._places if each is not None and each.is_alive]

    def cut(self, thread: int) -> None:
        """Break off the job that ``thread`` waits for, if any."""
        if (found := self._of_thread.get(thread)) is not None:
            carrier, number = found
            carrier.cut(number)

    def close(self) -> None:
        """End all carriers; the jobs that they have go on elsewhere."""
        for carrier in self._places:
            if carrier is not None:
                carrier.close()

    def do(
        self,
        rest: Callable[[int], Job | Fetch],
        descriptor: int,
        came: Callable[[int], object] = lambda _block: None,
    ) -> Done:
        """Have a carrier do the job that ``rest`` makes of a new number; return how it ended.

        ``rest`` is asked again after the death of a carrier, and then leaves out the blocks that
        ``came`` has got.

        Raises:
            IntegrityError: It was alone in two carriers when they died.
            TransientError: There is no carrier, and none can be forked.
        """
        while True:
            job = rest(next(self._numbers))
            kills = self._kills.get(job.name)
            if kills == KILLS_LIMIT:
                what = f"{job.key}: the processes that were to carry the bytes from {job.name[2]}"
                raise IntegrityError(
                    f"{what} died of it, {KILLS_LIMIT} times", key=job.key, kills=kills
                )
            with nullcontext() if kills is None else self._alone:
                done = self._attempt(job, descriptor, came, suspected=kills is not None)
            if done is not None:
                self._kills.pop(job.name, None)
                return done

    def _attempt(
        self,
        job: Job | Fetch,
        descriptor: int,
        came: Callable[[int], object],
        *,
        suspected: bool,
    ) -> Done | None:
        """Return how ``job`` ended, or None if its carrier died."""
        carrier = self._carrier_at(self._limit) if suspected else self._least_busy()
        reply = carrier.begin(job, descriptor, came)
        thread = threading.get_ident()
        self._of_thread[thread] = carrier, job.number
        try:
            done = self._awaited(carrier, reply)
        finally:
            del self._of_thread[thread]
        if isinstance(done, Done):
            return done
        self._kills[job.name] = self._kills.get(job.name, 0) + (done == 1)
        return None

    def _awaited(self, carrier: _Carrier, reply: Future[Done | int]) -> Done | int:
        while True:
            rounds = self.counters.of(carrier.place)[2]
            try:
                return reply.result(SILENT_SECONDS)
            except TimeoutError:
                if rounds == self.counters.of(carrier.place)[2]:  # it hangs
                    carrier.kill()

    def _least_busy(self) -> _Carrier:
        alive = {
            place: len(each.jobs)
            for place, each in enumerate(self._places[:-1])
            if each is not None and each.is_alive
        }
        place = min(alive, key=alive.__getitem__, default=0)
        if alive.get(place, BUSY_JOBS) >= BUSY_JOBS and len(alive) < self._limit:
            place = next(free for free in range(self._limit) if free not in alive)
        return self._carrier_at(place)

    def _carrier_at(self, place: int) -> _Carrier:
        """Return the carrier at ``place``, which is forked if there is none."""
        carrier = self._places[place]
        if carrier is None or not carrier.is_alive:
            with self._forking:
                carrier = self._places[place]
                if carrier is None or not carrier.is_alive:
                    try:
                        sock, pid = self._nursery.fork(place)
                        carrier = self._places[place] = _Carrier(sock, pid, place, self._start)
                    except (OSError, RuntimeError) as error:
                        if isinstance(error, ConnectionError):
                            self.lost = True
                            self.on_lost()
                        raise TransientError(f"no process can be started: {error}") from error
        return carrier


class _CarriedObjectStore(WrappedObjectStore):
    """A store whose large bodies come from files, and into files, by carriers.

    All other calls are its own.
    """

    def __init__(self, store: ObjectStore, carriers: Carriers, remote: RemoteSettings) -> None:
        super().__init__(store)
        self._carriers = carriers
        self._remote = remote

    def put(
        self,
        key: str,
        body: Body,
        *,
        digest: int,
        metadata: Metadata | None = None,
        condition: Condition | None = None,
        headers: Headers | None = None,
    ) -> ObjectInfo:
        if not _is_large(body):
            return self._store.put(
                key, body, digest=digest, metadata=metadata, condition=condition, headers=headers
            )
        done = self._do(key, body, digest, metadata=metadata, condition=condition, headers=headers)
        assert done.stored is not None
        return done.stored

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        if not _is_large(body):
            return self._store.upload_part(key, upload_id, number, body, digest=digest)
        done = self._do(key, body, digest, upload_id=upload_id, upload_part=number)
        assert done.part is not None
        return done.part

    def read_into(self, key: str, start: int, into: Into, etag: str | None = None) -> None:
        if (
            isinstance(into, BlockSink)
            and into.descriptor is not None
            and into.size_bytes >= SMALL_BYTES
            and not self._carriers.lost
        ):
            self._fetch(key, start, into, into.descriptor, etag)
        else:
            self._store.read_into(key, start, into, etag)

    def _fetch(
        self, key: str, start: int, into: BlockSink, descriptor: int, etag: str | None
    ) -> None:
        def rest(number: int) -> Fetch:
            left = into.left()
            begin = start + into.size_bytes - left.size_bytes
            return Fetch(number, self._remote, key, begin, left, etag)

        done = self._carriers.do(rest, descriptor, into.written_elsewhere)
        if done.failure is not None:
            raise done.failure.as_error()

    def _do(self, key: str, body: FileBody, digest: int, **how: Any) -> Done:
        file, part = body.file, body.part
        digests = tuple(file.expected(part))
        done = self._carriers.do(
            lambda number: Job(number, self._remote, key, part, digests, digest, **how),
            file.descriptor,
        )
        body.was_read(done.read_seconds)
        if done.failure is not None:
            raise done.failure.as_error()
        return done


def _is_large(body: Body) -> TypeGuard[FileBody]:
    return isinstance(body, FileBody) and body.size_bytes >= SMALL_BYTES
