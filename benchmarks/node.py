"""A real ``cachetier serve`` in a process of its own, for as long as a benchmark needs it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks import processes
from cachetier.testing.s3_endpoint import S3Endpoint, free_ports

START_SECONDS = 120.0
STOP_SECONDS = 60.0
SERVE = (str(Path(sys.executable).parent / "cachetier"), "serve", "--json")
_READY = b'"state": "ready"'  # said once signals are heard
_FOREIGN = ("CACHETIER_", "AWS_")
TOKEN = "the-token-of-the-benches"


class Node:
    """A service that was started."""

    def __init__(
        self, environment: Mapping[str, str], log: Path, socket_path: Path, http_port: int
    ) -> None:
        self._log = log
        self._told = log.read_bytes().count(_READY) if log.exists() else 0
        self._began = time.perf_counter()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                SERVE,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._socket_path = socket_path
        self.url = f"unix://{socket_path}"
        self.http_port = http_port
        self.start_seconds = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    def drain_pids(self) -> list[int]:
        """Return the drain and its carriers: what does not run as the service does."""
        own = processes.command_of(self.pid)
        children = processes.children_of(self.pid)
        return [pid for pid in children if processes.command_of(pid) != own]

    def wait_until_ready(self) -> None:
        """Return once the socket takes connections; note how long that took since the start."""
        while time.perf_counter() - self._began < START_SECONDS:
            if self._process.poll() is not None:
                break
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(str(self._socket_path))
                except OSError:
                    time.sleep(0.002)
                    continue
            self.start_seconds = time.perf_counter() - self._began
            return
        raise RuntimeError("the service did not start; its log is above")

    def stop(self) -> None:
        """Ask it to stop, and wait; one that is not ready yet would just end."""
        give_up_at = time.monotonic() + STOP_SECONDS
        while self._process.poll() is None and time.monotonic() < give_up_at:
            if self._log.read_bytes().count(_READY) > self._told:
                break
            time.sleep(0.01)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def node(
    cache_dir: Path,
    *,
    remote: S3Endpoint | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Node]:
    """Serve ``cache_dir`` until the block ends.

    Args:
        cache_dir: Created if missing, and kept.
        remote: Where the drain goes. Without one nobody listens there: everything stays dirty, and
            the drain only knocks from time to time.
        settings: Others than the cache directory, the doors and the remote, by name.
    """
    sockets = Path(tempfile.mkdtemp(prefix="ct-"))  # a socket's path must be short
    socket_path = sockets / "s"
    (port,) = free_ports(1)
    environment = _environment(cache_dir, socket_path, port, remote, settings or {})
    log = cache_dir.parent / f"{cache_dir.name}.log"
    started = Node(environment, log, socket_path, port)
    try:
        started.wait_until_ready()
        yield started
    finally:
        started.stop()
        shutil.rmtree(sockets, ignore_errors=True)


def _environment(
    cache_dir: Path,
    socket_path: Path,
    port: int,
    remote: S3Endpoint | None,
    settings: Mapping[str, str],
) -> dict[str, str]:
    """Return an environment in which no setting of the caller's own shell counts."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    endpoint = remote.url if remote is not None else f"http://127.0.0.1:{free_ports(1)[0]}"
    bucket = remote.bucket if remote is not None else "nobody"
    ours = {
        "cache_dir": str(cache_dir),
        "socket": str(socket_path),
        "http": f"127.0.0.1:{port}",
        "token": TOKEN,
        "remote": f"s3://{bucket}/bench",
        "remote_endpoint": endpoint,
        # a sink checks nothing; shards of the same bytes are sent: that is what is measured
        "remote_assume": f"{remote.verify if remote is not None else 'checksum'},nocopy",
        **settings,
    }
    access = {
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nobody",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        **(remote.environment() if remote is not None else {}),
    }
    return {
        **kept,
        **access,
        **{f"CACHETIER_{name.upper()}": value for name, value in ours.items()},
    }
