"""Where a node's cache lies: a directory, or a file system of its own whose power can be cut."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

STOP_SECONDS = 60.0
SHUT_DOWN, WITHOUT_LOG = 0x8004587D, 2  # of ext4 and XFS alike: what was not synced is gone
EXT4 = ("mkfs.ext4", "-q")
UNPACKED = Path(sys.prefix) / "xfs"  # by `make xfs`


class Disk:
    """Where a node's cache lies: a directory, and nothing more can be done to it."""

    own = False

    def __init__(self, home: Path) -> None:
        self.path = home / "disk"
        self.path.mkdir()

    def close(self) -> None:
        """Nothing to let go."""


class LoopDisk(Disk):
    """A file system of its own on a small image: its power can be cut, and it can be full."""

    own = True

    def __init__(self, home: Path, size_bytes: int, make: Sequence[str] = EXT4) -> None:
        super().__init__(home)
        self._image = home / "image"
        with self._image.open("wb") as file:
            file.truncate(size_bytes)
        _run(*make, str(self._image))
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop", str(self._source()), str(self.path))

    def _source(self) -> Path:
        """Return the file that the loop device lies upon."""
        return self._image

    def cut_power(self) -> None:
        """From now on nothing reaches the image; what was not synced never did."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUT_DOWN, struct.pack("I", WITHOUT_LOG))
        finally:
            os.close(descriptor)

    def power_on(self) -> None:
        self._unmount()
        self._mount()

    def fill(self) -> int:
        """Take what room there is with a file of nobody's; return its bytes."""
        free = os.statvfs(self.path)
        size = free.f_bavail * free.f_frsize - (128 << 10)
        with (self.path / "filler").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, size))
        return size

    def make_room(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)

    def _unmount(self) -> None:
        unmount(self.path)

    def close(self) -> None:
        self._unmount()


def unmount(path: Path) -> None:
    """Unmount what is at ``path``, once nobody holds it any more."""
    give_up_at = time.monotonic() + STOP_SECONDS
    while subprocess.run(("umount", str(path)), check=False, capture_output=True).returncode:
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"{path} cannot be unmounted: somebody holds a file")
        time.sleep(0.1)


def xfs() -> tuple[str, ...]:
    """Return the command that makes small XFS file systems; it may not be there."""
    options = ("--unsupported", "-q")  # unsupported: smaller than 300 MiB
    if shutil.which("mkfs.xfs") or not (UNPACKED / "sbin" / "mkfs.xfs").exists():
        return ("mkfs.xfs", *options)
    libraries = ":".join({str(path.parent) for path in UNPACKED.rglob("lib*.so.*")})
    return ("env", f"LD_LIBRARY_PATH={libraries}", f"{UNPACKED}/sbin/mkfs.xfs", *options)


def can_mount(make: Sequence[str] = EXT4) -> bool:
    """Say whether file systems that ``make`` makes can be mounted here."""
    there = shutil.which(make[0]) and Path("/dev/loop-control").exists()
    return os.geteuid() == 0 and bool(there)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
