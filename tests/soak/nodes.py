"""The nodes of the soak: real services on disks of their own, and what can be done to them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import apsw
from cachetier_client import Client
from cachetier_client.errors import CachetierClientError

from cachetier.testing.s3_endpoint import S3Endpoint
from tests.fakes.loop_disk import Disk

PREFIX = "soak"
START_SECONDS = 90.0
STOP_SECONDS = 60.0
REPAIR_SECONDS = 180.0

# Read by each Python of a node at its start: it does not outlive what started it, and its wall
# clock is off by what a file says, now.
CLOCK = """
import ctypes, os, time
ctypes.CDLL(None).prctl(1, 9)
_real, _path, _seen = time.time, os.environ["SOAK_CLOCK"], [0.0, 0.0]
def _time():
    if time.monotonic() > _seen[0]:
        with open(_path) as file:
            _seen[:] = time.monotonic() + 0.2, float(file.read() or 0)
    return _real() + _seen[1]
time.time = _time
"""


@dataclass(frozen=True)
class Figures:
    """Memory and descriptors of a node's processes."""

    serve_bytes: int
    serve_files: int
    drain_bytes: int
    drain_files: int


@dataclass
class Node:
    """One service and its disk; the service may be away at any time."""

    name: str
    home: Path
    disk: Disk
    endpoint: S3Endpoint
    settings: Mapping[str, str] = field(default_factory=dict)
    clock_offset: float = 0.0

    def __post_init__(self) -> None:
        self.cache_dir = self.disk.path / "cache"
        self.url = f"unix://{self.home}/s"
        self.log = self.home / "service.log"
        self._process: subprocess.Popen[bytes] | None = None
        site = self.home / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(CLOCK)
        self.set_clock(self.clock_offset)
        paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()]
        chosen = {
            "cache_dir": str(self.cache_dir),
            "socket": f"{self.home}/s",
            "http": "",
            "remote": f"s3://{self.endpoint.bucket}/{PREFIX}",
            "remote_endpoint": self.endpoint.url,
            "log": "info:json",
            "grace": "5s",
            **self.settings,
        }
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("CACHETIER_")},
            **{f"CACHETIER_{name.upper()}": value for name, value in chosen.items()},
            **self.endpoint.environment(),
            "MALLOC_ARENA_MAX": "2",
            "PYTHONPATH": os.pathsep.join(paths),
            "SOAK_CLOCK": str(self.home / "clock"),
        }

    # --- running ---------------------------------------------------------------------------------

    def launch(self) -> None:
        """Start the service's process, and look no further."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cachetier", "serve"],
                env=self._environment,
                stdout=log,
                stderr=log,
            )

    def start(self) -> None:
        """Start the service, and return once it answers."""
        self.launch()
        give_up_at = time.monotonic() + START_SECONDS
        while not self.answers():
            if self.ended() or time.monotonic() > give_up_at:
                raise RuntimeError(f"{self.name} does not start: see {self.log}")
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def answers(self) -> bool:
        with suppress(CachetierClientError), self.client() as client:
            client.status(timeout_seconds=5)
            return True
        return False

    def kill(self) -> None:
        """SIGKILL the service; its drain must follow by itself."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_SECONDS)

    def wait(self, seconds: float) -> int:
        """Return the exit code of a service that must end by itself; 0 if it serves instead."""
        assert self._process is not None
        give_up_at = time.monotonic() + seconds
        while self._process.poll() is None:
            if self.answers() or time.monotonic() > give_up_at:
                return 0
            time.sleep(0.05)
        return self._process.returncode

    def repair(self) -> None:
        """Run ``fsck --repair``; one that takes too long is killed, and says where it was."""
        command = [sys.executable, "-X", "faulthandler", "-m", "cachetier", "fsck", "--repair"]
        with (self.home / "repair.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                process.wait(REPAIR_SECONDS)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)
                process.wait()

    def client(self) -> Client:
        return Client(self.url, fallback="fail")

    def set_clock(self, offset_seconds: float) -> None:
        """Let the wall clock of the node jump to so many seconds ahead of the true one."""
        self.clock_offset = offset_seconds
        new = self.home / "clock.new"
        new.write_text(str(offset_seconds))
        new.rename(self.home / "clock")

    # --- looking ---------------------------------------------------------------------------------

    def drain_pid(self) -> int | None:
        with self.client() as client:
            pid = client.status(timeout_seconds=10)["drain"]["pid"]
        return None if pid is None else int(pid)

    def dirty_shards(self) -> int:
        """Read from a dead service's catalog how many shards are dirty, without touching it."""
        copy = self.home / "autopsy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for name in ("catalog.db", "catalog.db-wal"):
            with suppress(FileNotFoundError):
                shutil.copy(self.cache_dir / name, copy)
        connection = apsw.Connection(str(copy / "catalog.db"))
        try:
            counted = connection.execute("SELECT count(*) FROM shards WHERE state = 'dirty'").get
            return int(str(counted))
        finally:
            connection.close()

    def figures(self) -> Figures:
        assert self._process is not None
        drain = self.drain_pid()
        return Figures(*_figures(self._process.pid), *(_figures(drain) if drain else (0, 0)))

    def close(self) -> None:
        self.kill()
        time.sleep(0.2)  # its drain dies with it
        self.disk.close()


def _figures(pid: int) -> tuple[int, int]:
    """Return the resident bytes and the open descriptors of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))


def copy_tree(source: Path, target: Path) -> None:
    """Copy a directory with its attributes, and sync it: a power cut may come at any time."""
    shutil.copytree(source, target, symlinks=True)
    command = "sync", "--file-system", str(target)
    subprocess.run(command, check=True, capture_output=True)
