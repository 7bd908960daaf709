"""Counts what costs most, in every process that imports this: syncs, statements, messages.

``tools.house.costs`` puts the folder ``counter`` first on ``PYTHONPATH``, so that Python imports
this at the start of ``serve`` and of the drain; the client is the process of the tool itself. Each
process has a file of counters of its own, which others may read at any time.

- *syncs*: ``fsync`` and ``fdatasync`` of Python, and those that SQLite asks its files for;
- *statements*: what SQLite is given to do;
- *messages*: frames between ``serve`` and its drain, whose sockets have no name at either end.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

KINDS = ("syncs", "statements", "messages")
FOLDER = "HOUSE_COSTS_FOLDER"
_SHAPE = struct.Struct(f"{len(KINDS)}q")


class Counters:
    """The counters of this process, in a file."""

    def __init__(self, folder: Path) -> None:
        self._counts = [0] * len(KINDS)
        self._lock = threading.Lock()
        path = folder / f"{os.getpid()}.counts"
        path.write_bytes(bytes(_SHAPE.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _SHAPE.size)

    def add(self, kind: str) -> None:
        with self._lock:
            self._counts[KINDS.index(kind)] += 1
            _SHAPE.pack_into(self._memory, 0, *self._counts)


def read(folder: Path) -> dict[str, int]:
    """Return what all processes of a folder have counted."""
    sums = [0] * len(KINDS)
    for path in folder.glob("*.counts"):
        data = path.read_bytes()
        if len(data) == _SHAPE.size:
            sums = [a + b for a, b in zip(sums, _SHAPE.unpack(data), strict=True)]
    return dict(zip(KINDS, sums, strict=True))


def install(folder: Path) -> None:
    """Count in this process, and in what it forks.

    A forked process counts in a file of its own from its first moment on.
    """
    holder = [Counters(folder)]
    os.register_at_fork(after_in_child=lambda: holder.__setitem__(0, Counters(folder)))

    def counted(kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **named: Any) -> Any:
            holder[0].add(kind)
            return call(*arguments, **named)

        return counting

    os.fsync = counted("syncs", os.fsync)
    os.fdatasync = counted("syncs", os.fdatasync)
    _count_sqlite(lambda kind: holder[0].add(kind))  # noqa: PLW0108 - whichever is there then
    _count_frames(lambda: holder[0].add("messages"))


def _count_sqlite(add: Callable[[str], None]) -> None:
    class CountedFile(apsw.VFSFile):
        def __init__(self, name: Any, flags: list[int]) -> None:
            super().__init__("unix", name, flags)

        def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
            add("syncs")
            super().xSync(flags)

    class CountedVfs(apsw.VFS):
        def __init__(self) -> None:
            super().__init__("counted", "unix", makedefault=True)

        def xOpen(self, name: Any, flags: list[int]) -> CountedFile:  # noqa: N802 - SQLite's name
            return CountedFile(name, flags)

    def traced(connection: apsw.Connection) -> None:
        def trace(_cursor: Any, _sql: str, _bindings: Any) -> bool:
            add("statements")
            return True

        connection.exec_trace = trace

    globals()["_vfs"] = CountedVfs()  # which SQLite uses as long as it lives
    apsw.connection_hooks.append(traced)


def _count_frames(add: Callable[[], None]) -> None:
    send = socket.socket.sendmsg

    def sendmsg(self: socket.socket, *arguments: Any) -> int:
        if self.family == socket.AF_UNIX and not self.getsockname() and not self.getpeername():
            add()
        return send(self, *arguments)

    socket.socket.sendmsg = sendmsg  # type: ignore[assignment,method-assign]


if FOLDER in os.environ:
    install(Path(os.environ[FOLDER]))
