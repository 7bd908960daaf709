"""A real, small ext4 of its own, which others can fill to the last byte: a loop device.

Tests that need one are skipped where nothing may be mounted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_CHUNKS = tuple(1 << power for power in range(26, 11, -1))


class SmallDisk:
    """An ext4 at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._others = path / "others"

    @property
    def free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def fill(self) -> None:
        """Have others take every free byte."""
        self._others.mkdir(exist_ok=True)
        for number in range(20):  # others here may write, and give back, meanwhile
            # A file each time: the last block cannot be had by one that needs it for its extents.
            descriptor = os.open(self._others / str(number), os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                for size_bytes in _CHUNKS:
                    self._take(descriptor, size_bytes)
            finally:
                os.close(descriptor)
            if not self.free_bytes:
                return
        raise AssertionError(f"{self.free_bytes} bytes cannot be taken")

    def free(self) -> None:
        """Have others give back what they took."""
        shutil.rmtree(self._others)

    def break_down(self) -> None:
        """Have ext4 find itself damaged: it takes no more writes from now on."""
        device = Path(os.path.realpath(_device_of(self.path))).name
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("planned")

    def _take(self, descriptor: int, size_bytes: int) -> None:
        try:
            while True:
                os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, size_bytes)
        except OSError:
            pass  # no room for so many


@contextmanager
def small_disk(directory: Path, size_mib: int = 64) -> Iterator[SmallDisk]:
    """Make an ext4 of ``size_mib`` and mount it below ``directory`` until the block ends."""
    image, point = directory / "disk.img", directory / "disk"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(size_mib << 20)
    try:
        _run("mkfs.ext4", "-q", "-m", "0", "-b", "4096", "-O", "^metadata_csum", str(image))
        _run("mount", "-o", "loop,errors=remount-ro", str(image), str(point))
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs root, mkfs.ext4 and loop devices: {error}")
    try:
        yield SmallDisk(point)
    finally:
        _run("umount", "--lazy", str(point))
        image.unlink()


def _device_of(point: Path) -> str:
    """Return the device mounted at ``point``."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return next(line.split()[0] for line in lines if line.split()[1] == str(point))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)
