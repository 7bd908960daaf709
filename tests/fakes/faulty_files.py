"""``Files`` that fail exactly when told to, and say what has fired.

A plan is a list of faults, each bound to the nth call of one operation, so a test that passes has
met the fault it is about: assert on ``fired`` or ``pending``.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from cachetier.errors import FencedError
from cachetier.local.files.data_files import Files

FileOperation = Literal[
    "create",
    "open",
    "preallocate",
    "seal",
    "sync_name",
    "unread",
    "unshared",
    "cut",
    "remove",
    "set_aside",
    "identity",
    "all",
    "free_bytes",
]
Answer = TypeVar("Answer")

SYNCS: tuple[FileOperation, ...] = ("seal", "sync_name")


@dataclass(frozen=True, slots=True)
class FileFault:
    """One fault: at ``call`` (from 1) of ``operation``; ``done`` says whether it took effect."""

    operation: FileOperation
    call: int
    number: int
    done: bool = False


def refuse(operation: FileOperation, call: int = 1, number: int = errno.EIO) -> FileFault:
    """Make a call fail with errno ``number`` before it does anything."""
    return FileFault(operation, call, number)


def fail_late(operation: FileOperation, call: int = 1, number: int = errno.EIO) -> FileFault:
    """Let a call take effect and fail all the same, as a sync may."""
    if operation in ("create", "open"):
        raise ValueError(f"{operation} would leave a descriptor that nobody closes")
    return FileFault(operation, call, number, done=True)


class FaultyFiles:
    """Forwards to ``files``, but for the planned faults.

    A failed ``seal`` or ``sync_name`` is a failed sync, and told as ``Files`` tells it.
    ``calls`` counts the calls of each operation, ``fired`` lists the faults that struck.
    """

    def __init__(self, files: Files, plan: Iterable[FileFault] = ()) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._plan = list(plan)
        self.calls: Counter[FileOperation] = Counter()
        self.fired: list[FileFault] = []

    @property
    def pending(self) -> list[FileFault]:
        """The planned faults that have not fired."""
        with self._lock:
            return list(self._plan)

    def add(self, fault: FileFault) -> None:
        """Plan one more fault; its ``call`` counts from the first call ever."""
        with self._lock:
            self._plan.append(fault)

    def create(self, size_bytes: int, *, memory: bool = False) -> tuple[str, int]:
        return self._around("create", lambda: self._files.create(size_bytes, memory=memory))

    def open(self, file_id: str) -> int:
        return self._around("open", lambda: self._files.open(file_id))

    def preallocate(self, file_id: str, size_bytes: int) -> None:
        self._around("preallocate", lambda: self._files.preallocate(file_id, size_bytes))

    def seal(self, descriptor: int, identity: bytes) -> None:
        self._around("seal", lambda: self._files.seal(descriptor, identity))

    def sync_name(self, file_id: str) -> None:
        self._around("sync_name", lambda: self._files.sync_name(file_id))

    def unread(self, file_id: str) -> bool:
        return self._around("unread", lambda: self._files.unread(file_id))

    def unshared(self, descriptor: int) -> bool:
        return self._around("unshared", lambda: self._files.unshared(descriptor))

    def cut(self, descriptor: int) -> None:
        self._around("cut", lambda: self._files.cut(descriptor))

    def remove(self, file_id: str) -> None:
        self._around("remove", lambda: self._files.remove(file_id))

    def set_aside(self, file_id: str) -> None:
        self._around("set_aside", lambda: self._files.set_aside(file_id))

    def identity(self, file_id: str) -> bytes | None:
        return self._around("identity", lambda: self._files.identity(file_id))

    def all(self) -> Iterator[tuple[str, int]]:
        return iter(self._around("all", lambda: list(self._files.all())))

    def free_bytes(self) -> int:
        return self._around("free_bytes", self._files.free_bytes)

    def _around(self, operation: FileOperation, call: Callable[[], Answer]) -> Answer:
        fault = self._next(operation)
        if fault is None:
            return call()
        if fault.done:
            call()
        reason = os.strerror(fault.number)
        if operation in SYNCS:
            raise FencedError(f"planned: {operation} {fault.call} failed: {reason}")
        raise OSError(fault.number, reason)

    def _next(self, operation: FileOperation) -> FileFault | None:
        """Count a call, and take the fault that is due."""
        with self._lock:
            self.calls[operation] += 1
            due = (operation, self.calls[operation])
            fault = next((f for f in self._plan if (f.operation, f.call) == due), None)
            if fault is not None:
                self._plan.remove(fault)
                self.fired.append(fault)
            return fault
