"""An object store that fails exactly when told to, and says what has fired.

A plan is a list of faults, each bound to the nth call of one operation, so a test that passes has
met the fault it is about: assert on ``fired`` or ``pending``.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto

from cachetier_client.bucket_format.uploads import ObjectInfo, UploadedPart

from cachetier.errors import RemoteError, TransientError
from cachetier.remote.base import (
    Body,
    Condition,
    Headers,
    Into,
    Metadata,
    ObjectStore,
    deliver,
    room_of,
)
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore
from tests.fakes.memory_store import bytes_of


class FaultMoment(Enum):
    """Where in a call the fault strikes."""

    BEFORE = auto()  # the store never saw the call
    AFTER = auto()  # the store did it, and the reply is lost
    BODY = auto()  # one bit of the body flips on the way


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: at ``call`` (from 1) of ``operation``."""

    operation: Operation
    call: int
    moment: FaultMoment
    error: type[RemoteError] = TransientError


def fail(operation: Operation, call: int = 1, error: type[RemoteError] = TransientError) -> Fault:
    """Make a call fail with ``error`` before it reaches the store."""
    return Fault(operation, call, FaultMoment.BEFORE, error)


def lose_reply(operation: Operation, call: int = 1) -> Fault:
    """Let a call take effect, and its reply get lost."""
    return Fault(operation, call, FaultMoment.AFTER)


def corrupt(operation: Operation, call: int = 1) -> Fault:
    """Flip one bit of the body that ``put``, ``upload_part``, ``get`` or ``read_into`` moves."""
    if operation not in ("put", "upload_part", "get", "read_into"):
        raise ValueError(f"{operation} moves no body to corrupt")
    return Fault(operation, call, FaultMoment.BODY)


class FaultyObjectStore(WrappedObjectStore):
    """Forwards to ``store``, but for the planned faults and while it is told to be down.

    ``calls`` counts the calls of each operation, ``fired`` lists the faults that struck.
    """

    def __init__(self, store: ObjectStore, plan: Iterable[Fault] = ()) -> None:
        super().__init__(store)
        self._lock = threading.Lock()
        self._plan = list(plan)
        self._outage: type[RemoteError] | None = None
        self.calls: Counter[Operation] = Counter()
        self.fired: list[Fault] = []

    @property
    def pending(self) -> list[Fault]:
        """The planned faults that have not fired."""
        with self._lock:
            return list(self._plan)

    def add(self, fault: Fault) -> None:
        """Plan one more fault; its ``call`` counts from the first call ever."""
        with self._lock:
            self._plan.append(fault)

    def go_down(self, error: type[RemoteError] = TransientError) -> None:
        """Fail every call with ``error`` until ``mend``; ``fired`` gets a fault for each."""
        with self._lock:
            self._outage = error

    def mend(self) -> None:
        """End ``go_down``."""
        with self._lock:
            self._outage = None

    def head(self, key: str) -> ObjectInfo | None:
        return self._act(self._next("head", key), lambda: self._store.head(key))

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
        fault = self._next("put", key)
        sent = _flipped(body) if _strikes(fault, FaultMoment.BODY) else body
        return self._act(
            fault,
            lambda: self._store.put(
                key,
                sent,
                digest=digest,
                metadata=metadata,
                condition=condition,
                headers=headers,
            ),
        )

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body, *, digest: int
    ) -> UploadedPart:
        fault = self._next("upload_part")
        sent = _flipped(body) if _strikes(fault, FaultMoment.BODY) else body
        return self._act(
            fault, lambda: self._store.upload_part(key, upload_id, number, sent, digest=digest)
        )

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        fault = self._next("get", key)
        body = self._act(fault, lambda: self._store.get(key, start, length))
        return _flipped(body) if _strikes(fault, FaultMoment.BODY) else body

    def read_into(self, key: str, start: int, into: Into, etag: str | None = None) -> None:
        fault = self._next("read_into")
        if not _strikes(fault, FaultMoment.BODY):
            self._act(fault, lambda: self._store.read_into(key, start, into, etag))
            return
        view = memoryview(bytearray(room_of(into)))
        self._act(fault, lambda: self._store.read_into(key, start, view, etag))
        deliver([_flipped(view)], into)

    def _around(self, operation: Operation, _size: int, call: Callable[[], Answer], /) -> Answer:
        return self._act(self._next(operation), call)

    def _act(self, fault: Fault | None, call: Callable[[], Answer]) -> Answer:
        if fault is not None and fault.moment is FaultMoment.BEFORE:
            raise fault.error(f"planned: {fault.operation} {fault.call} never reached the store")
        answer = call()
        if fault is not None and fault.moment is FaultMoment.AFTER:
            raise fault.error(f"planned: the reply to {fault.operation} {fault.call} is lost")
        return answer

    def _next(self, operation: Operation, key: str = "") -> Fault | None:
        """Count a call, and take the fault that is due; what a drain claims at first is neither."""
        with self._lock:
            if "/.cachetier/stores/" in key and self._outage is None:
                return None
            self.calls[operation] += 1
            call = self.calls[operation]
            if self._outage is not None:
                fault = Fault(operation, call, FaultMoment.BEFORE, self._outage)
            else:
                due = (f for f in self._plan if (f.operation, f.call) == (operation, call))
                found = next(due, None)
                if found is None:
                    return None
                self._plan.remove(found)
                fault = found
            self.fired.append(fault)
            return fault


def _strikes(fault: Fault | None, moment: FaultMoment) -> bool:
    return fault is not None and fault.moment is moment


def _flipped(body: Body) -> bytes:
    """Return ``body`` with one bit in its middle flipped."""
    flipped = bytearray(bytes_of(body))
    if not flipped:
        raise ValueError("an empty body has no bit to flip")
    flipped[len(flipped) // 2] ^= 1
    return bytes(flipped)
