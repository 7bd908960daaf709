"""A disk with a volatile cache: what was written since its last flush survives a cut by luck.

A process of its own serves one file by the kernel's FUSE protocol, without a library; a loop device
and a file system lie upon it. It keeps each 4 KiB piece that was written since the last flush, and
every version of it. When the power goes, one of them is found afterwards, or what there was before.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import select
import stat
import struct
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from tests.fakes.loop_disk import EXT4, LoopDisk, can_mount, unmount

PIECE_BYTES = 4096
MOST_WRITTEN = 128 << 10  # by one request
FUSE, SYNC_FILE_RANGE = Path("/dev/fuse"), 1 | 2 | 4  # wait for what is on its way, write, and wait

GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC = 3, 4, 14, 15, 16, 17, 18, 20
FLUSH, INIT, FORGET, BATCH_FORGET, INTERRUPT = 25, 26, 2, 42, 36
UNANSWERED = (FORGET, BATCH_FORGET, INTERRUPT)
BIG_WRITES, DIRECT_IO = 1 << 5, 1

_libc = ctypes.CDLL(None, use_errno=True)


class VolatileDisk(LoopDisk):
    """A file system on a disk that forgets: what no flush followed is there in part, or not.

    ``kept`` and ``dropped`` count the pieces that cuts have met in the cache of the disk.
    """

    def __init__(self, home: Path, size_bytes: int, seed: int, make: Sequence[str] = EXT4) -> None:
        self._seed = seed
        self.kept = self.dropped = 0
        super().__init__(home, size_bytes, make)

    def _source(self) -> Path:
        return self._image.with_name("volatile")

    def _mount(self) -> None:
        """Mount the file system, on a disk that has power again."""
        self._seed += 1
        self._source().touch()
        files = str(self._image), str(self._source())
        command = (sys.executable, "-m", __name__, *files, str(self._seed))
        self._server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._heard() == ["on"]
        super()._mount()

    def _unmount(self) -> None:
        super()._unmount()
        unmount(self._source())  # the loop device lets go of it a moment later
        kept, dropped = self._heard()
        self._server.communicate()
        assert self._server.returncode == 0
        self.kept += int(kept)
        self.dropped += int(dropped)

    def cut_power(self) -> None:
        """Let the kernel hand the disk what it has, without a flush; then the power goes."""
        for path in self.path.rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                _libc.sync_file_range(descriptor, *[ctypes.c_long(0)] * 2, SYNC_FILE_RANGE)
                os.close(descriptor)
        assert self._server.stdin is not None
        self._server.stdin.write(b"cut\n")
        self._server.stdin.flush()
        assert self._heard() == ["off"]
        super().cut_power()

    def _heard(self) -> list[str]:
        assert self._server.stdout is not None
        return self._server.stdout.readline().decode().split()


def can_forget() -> bool:
    """Say whether such a disk can be had here."""
    return can_mount() and FUSE.exists()


class Disk:
    """What the disk holds: an image, and above it the versions of pieces since the last flush."""

    def __init__(self, image: int, seed: int) -> None:
        self._image = image
        self._dice = random.Random(seed)
        self._cache: dict[int, list[bytes]] = defaultdict(list)
        self.is_on = True
        self.kept = self.dropped = 0

    def read(self, offset: int, size: int) -> bytes:
        first, last = offset // PIECE_BYTES, -(-(offset + size) // PIECE_BYTES)
        start = offset - first * PIECE_BYTES
        return b"".join(map(self._piece, range(first, last)))[start : start + size]

    def write(self, offset: int, data: memoryview) -> None:
        while data:
            number, start = divmod(offset, PIECE_BYTES)
            part = data[: PIECE_BYTES - start]
            piece = bytearray(self._piece(number))
            piece[start : start + len(part)] = part
            self._cache[number].append(bytes(piece))
            offset, data = offset + len(part), data[len(part) :]

    def flush(self) -> None:
        for number, versions in self._cache.items():
            os.pwrite(self._image, versions[-1], number * PIECE_BYTES)
        self._cache.clear()

    def lose_power(self) -> None:
        """Of each piece that was not flushed leave some version, at random: the last is kept."""
        luck = self._dice.choice((0.1, 0.5, 0.9))
        for number, versions in sorted(self._cache.items()):
            is_kept = self._dice.random() < luck
            self.kept += is_kept
            self.dropped += not is_kept
            left = versions[-1:] if is_kept else versions[:-1]
            if left and (is_kept or self._dice.random() < luck):
                os.pwrite(self._image, self._dice.choice(left), number * PIECE_BYTES)
        self._cache.clear()
        self.is_on = False

    def _piece(self, number: int) -> bytes:
        versions = self._cache.get(number)
        return (
            versions[-1] if versions else os.pread(self._image, PIECE_BYTES, number * PIECE_BYTES)
        )


class Server:
    """Serves a disk as one file, by requests of the kernel."""

    def __init__(self, disk: Disk, size_bytes: int) -> None:
        self._disk = disk
        self._size_bytes = size_bytes

    def serve_one(self, device: int) -> None:
        request = memoryview(os.read(device, MOST_WRITTEN + PIECE_BYTES))
        _, opcode, number = struct.unpack_from("IIQ", request)
        if opcode in UNANSWERED:
            return
        refused, told = 0, b""
        try:
            told = self.answer(opcode, request[40:])
        except OSError as error:
            refused = -(error.errno or errno.EIO)
        os.write(device, struct.pack("IiQ", 16 + len(told), refused, number) + told)

    def answer(self, opcode: int, body: memoryview) -> bytes:
        """Answer one request.

        Raises:
            OSError: With this error it is refused.
        """
        if opcode == INIT:
            limits = 0, 0, MOST_WRITTEN, 1, 0, 0, 0
            return struct.pack("IIIIHHIIHHI28x", 7, 31, 0, BIG_WRITES, *limits)
        if opcode in (GETATTR, SETATTR):
            blocks = self._size_bytes // 512
            kind = stat.S_IFREG | 0o600
            told = struct.pack("6Q10I", 1, self._size_bytes, blocks, *[0] * 6, kind, 1, *[0] * 5)
            return bytes(16) + told
        if opcode == OPEN:
            return struct.pack("QII", 0, DIRECT_IO, 0)
        if opcode == STATFS:
            return bytes(80)
        if opcode in (RELEASE, FLUSH):
            return b""
        return self._on_disk(opcode, body)

    def _on_disk(self, opcode: int, body: memoryview) -> bytes:
        if not self._disk.is_on:
            raise OSError(errno.EIO, "the power is off")
        if opcode == FSYNC:
            self._disk.flush()
            return b""
        if opcode not in (READ, WRITE):
            raise OSError(errno.ENOSYS, "no such operation")
        _, offset, size = struct.unpack_from("QQI", body)
        if opcode == READ:
            return self._disk.read(offset, min(size, self._size_bytes - offset))
        self._disk.write(offset, body[40 : 40 + size])
        return struct.pack("II", size, 0)


def main(image: str, served: str, seed: str) -> None:
    """Serve until ``served`` is unmounted; a line on standard input cuts the power."""
    device = os.open(FUSE, os.O_RDWR)
    how = f"fd={device},rootmode={stat.S_IFREG:o},user_id=0,group_id=0"
    if _libc.mount(b"volatile", served.encode(), b"fuse", 0, how.encode()):
        raise OSError(ctypes.get_errno(), f"{served} cannot be mounted")
    disk = Disk(os.open(image, os.O_RDWR), int(seed))
    server = Server(disk, os.path.getsize(image))
    print("on", flush=True)
    try:
        while True:
            ready, _, _ = select.select([device, sys.stdin], [], [])
            if sys.stdin in ready and disk.is_on:
                sys.stdin.readline()
                disk.lose_power()
                print("off", flush=True)
            if device in ready:
                server.serve_one(device)
    except OSError as error:
        if error.errno != errno.ENODEV:  # it is unmounted
            raise
    print(disk.kept, disk.dropped, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
