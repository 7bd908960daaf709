"""Stand-ins for time and for the system calls that move blocks."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from cachetier_client.io.aligned import DirectIO, address_of, switch_to_direct
from cachetier_client.io.block_file import SystemFiles


@dataclass
class FakeClock:
    """Time that passes only when someone sleeps; ``on_sleep`` sees each nap first."""

    time: float = 1000.0
    naps: list[float] = field(default_factory=list)
    on_sleep: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.time

    def now(self) -> float:
        return 1.7e9 + self.time

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.time += seconds
        self.on_sleep()


@dataclass
class FaultyFiles(SystemFiles):
    """The system's calls, failing as told; ``fired`` counts the faults."""

    refuses_direct: bool = False  # as some file systems do: F_SETFL fails
    refuses_direct_writes: bool = False  # as others do: the flag is taken, the write is not
    write_error: int | None = None
    longest_write: int | None = None
    fired: int = 0
    syncs: int = 0
    was_direct: bool = False

    def switch_to_direct(self, descriptor: int) -> DirectIO | None:
        if self.refuses_direct:
            self.fired += 1
            return None
        needs = switch_to_direct(descriptor)
        if needs is None and self.refuses_direct_writes:
            needs = DirectIO(4096, 4096)  # pretend, where tests run on a file system without
        self.was_direct = needs is not None
        return needs

    def pwrite(self, descriptor: int, data: memoryview, offset: int) -> int:
        if self.write_error is not None:
            self.fired += 1
            raise OSError(self.write_error, os.strerror(self.write_error))
        if self.refuses_direct_writes:
            self.refuses_direct_writes = False
            self.fired += 1
            raise OSError(errno.EINVAL, "no direct I/O here")
        if self.longest_write is not None and len(data) > self.longest_write:
            self.fired += 1
            return os.pwrite(descriptor, data[: self.longest_write], offset)
        return os.pwrite(descriptor, data, offset)

    def fdatasync(self, descriptor: int) -> None:
        self.syncs += 1
        os.fdatasync(descriptor)


@dataclass
class RecordingFiles(SystemFiles):
    """The system's calls; notes where the bytes were in memory, and what was read."""

    written_from: list[int] = field(default_factory=list)
    read: list[tuple[int, int]] = field(default_factory=list)  # offset in the file, address

    def pwrite(self, descriptor: int, data: memoryview, offset: int) -> int:
        self.written_from.append(address_of(data))
        return super().pwrite(descriptor, data, offset)

    def preadv(self, descriptor: int, into: memoryview, offset: int) -> int:
        self.read.append((offset, address_of(into)))
        return super().preadv(descriptor, into, offset)


@dataclass
class HeldFiles(SystemFiles):
    """The system's calls; a write waits until it is let through."""

    reached: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)

    def pwrite(self, descriptor: int, data: memoryview, offset: int) -> int:
        self.reached.set()
        assert self.open.wait(30)
        return super().pwrite(descriptor, data, offset)
