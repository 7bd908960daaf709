"""A SeaweedFS cluster on loopback: one master, volume servers, a filer and an S3 gateway.

Every byte lies on two volume servers, so any one of them may be killed: what was stored is still
read, and writes go on with those that are left. The master and the filer, which knows the names of
the objects, are one process each: this cluster shows the loss of a volume server, not of those.

Each server is a process of its own, as on a real cluster. All of it takes a second or three to
start and some 800 MB of memory. docs/remotes.md says what was seen when a server is lost.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cachetier.testing.s3_endpoint import DEFAULT_BUCKET, S3Endpoint, free_ports
from cachetier.testing.weed import (
    OWNER,
    START_SECONDS,
    WeedProcess,
    find_weed,
    run_weed,
    wait_for_bucket,
    write_keys,
)

HOST = "127.0.0.1"
TWO_COPIES = "001"  # one more copy, on another server of the same rack
VOLUME_LIMIT_MB = 64
# A server's share of the disk: volumes of 64 MB. A bucket takes six pairs of volumes at once, and
# once more each time they are full or have lost a copy.
VOLUMES = 48
STARTS = 3  # a port that was free may be taken by the time weed binds it

_LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class SeaweedCluster:
    """The servers; ``endpoint`` is the gateway's, whose bucket is there.

    Volume servers are numbered from 0. What goes through the gateway while one of them is killed
    or restarted is the gateway's to get right: nothing here waits for it.
    """

    def __init__(self, data_dir: Path, bucket: str, volume_servers: int) -> None:
        self._dir = data_dir
        self._volumes = [f"volume-{number}" for number in range(volume_servers)]
        names = ("master", "filer", "s3", *self._volumes)
        ports = free_ports(2 * len(names))
        pairs = zip(ports[::2], ports[1::2], strict=True)
        self._ports = dict(zip(names, pairs, strict=True))  # HTTP and gRPC
        self._processes: dict[str, WeedProcess] = {}
        url = f"http://{HOST}:{self._ports['s3'][0]}"
        self.endpoint = S3Endpoint(url, bucket, OWNER, "checksum")

    def start(self) -> bool:
        """Start all, and say whether the bucket takes bytes; else a server has ended, or hangs."""
        self._launch(
            "master",
            "master",
            mdir=self._folder("master"),
            peers="none",
            telemetry="false",
            defaultReplication=TWO_COPIES,
            volumeSizeLimitMB=VOLUME_LIMIT_MB,
        )
        self.wait_for_servers(0)  # a volume server that is first looks again in five seconds
        for number in range(len(self._volumes)):
            self.restart(number)
        store_dir = self._folder("filer")
        self._launch("filer", "filer", master=self._address("master"), defaultStoreDir=store_dir)
        self._launch(
            "s3",
            "s3",
            filer=self._address("filer"),
            config=write_keys(self._dir / "s3-keys.json"),
            autoCreateBucket="false",  # as S3
            **{"port.iceberg": 0, "port.lance": 0},
        )
        # A bucket that is created earlier has its volumes on the servers that were first.
        known = self.wait_for_servers(len(self._volumes))
        return known and wait_for_bucket(self.endpoint, self.all_running)

    def stop(self) -> None:
        for process in reversed(self._processes.values()):
            process.stop()

    def kill(self, number: int) -> int:
        """End a volume server with SIGKILL, and return its process id. Its files stay."""
        process = self._processes[self._volumes[number]]
        process.kill()
        return process.pid

    def restart(self, number: int) -> None:
        """Start a volume server that was killed, on the files it had; it is ready a little later.

        It ends with the thread that calls this.
        """
        name = self._volumes[number]
        self._launch(
            name,
            "volume",
            master=self._address("master"),
            dir=self._folder(name),
            max=VOLUMES,
            preStopSeconds=0,
            **{"volume.allowUntrustedRemoteEndpoints": "true"},  # loopback, to copy from
        )

    def mend(self) -> None:
        """Give each volume that has lost a copy a new one on a server that is left.

        Raises:
            RuntimeError: It could not; the message says what weed told.
        """
        printed = run_weed(
            ["shell", f"-master={self._address('master')}"],
            "lock\nvolume.fix.replication -apply\nunlock\n",
        )
        if "stopping" in printed:
            raise RuntimeError(f"volumes stay with one copy: {printed}")

    def stored_bytes(self, number: int) -> int:
        """Return the size of what lies on a volume server's disk, its free space included."""
        return sum(path.stat().st_size for path in self._folder(self._volumes[number]).iterdir())

    def known_servers(self) -> int:
        """Return how many volume servers the master believes to be there."""
        url = f"http://{HOST}:{self._ports['master'][0]}/dir/status"
        with _LOOPBACK.open(url, timeout=5.0) as answer:
            topology: dict[str, Any] = json.load(answer)["Topology"]
        racks = (rack for center in topology.get("DataCenters") or () for rack in center["Racks"])
        return sum(len(rack.get("DataNodes") or ()) for rack in racks)

    def log_tails(self) -> str:
        """Return the end of each server's log."""
        tails = (f"--- {name}\n{each.log_tail()}" for name, each in self._processes.items())
        return "\n".join(tails)

    def _launch(self, name: str, verb: str, **options: object) -> None:
        http, grpc = self._ports[name]
        place = {"ip": HOST, "ip.bind": HOST, "port": http, "port.grpc": grpc}
        sockets = [Path(f"/tmp/seaweedfs-{name}-{http}.sock")]
        log = self._dir / f"{name}.log"
        self._processes[name] = WeedProcess(verb, {**place, **options}, log, sockets)

    def _address(self, name: str) -> str:
        """Return where a server is, as others of SeaweedFS are told."""
        http, grpc = self._ports[name]
        return f"{HOST}:{http}.{grpc}"

    def _folder(self, name: str) -> Path:
        folder = self._dir / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def all_running(self) -> bool:
        """Whether no server has ended."""
        return all(process.running for process in self._processes.values())

    def wait_for_servers(self, count: int) -> bool:
        """Return once the master knows ``count`` volume servers; False if one has ended."""
        give_up_at = time.monotonic() + START_SECONDS
        while self.all_running() and time.monotonic() < give_up_at:
            try:
                if self.known_servers() == count:
                    return True
            except OSError:
                pass  # the master is not there yet
            time.sleep(0.05)
        return False


@contextmanager
def seaweed_cluster(
    data_dir: Path, *, bucket: str = DEFAULT_BUCKET, volume_servers: int = 3
) -> Iterator[SeaweedCluster]:
    """Run a cluster, with ``bucket`` there, until the block ends.

    Its processes also end with the thread that entered the block.

    Args:
        data_dir: Holds each server's folder and log; created if missing, kept afterwards.
        volume_servers: At least three: with two copies of each byte, two must be left to write to.

    Raises:
        FileNotFoundError: No ``weed`` program.
        RuntimeError: It did not start; the message ends with the servers' logs.
    """
    if volume_servers < 3:
        raise ValueError("two copies need two servers, and one more that may be lost")
    find_weed()
    cluster = _started(data_dir, bucket, volume_servers)
    try:
        yield cluster
    finally:
        cluster.stop()


def _started(data_dir: Path, bucket: str, volume_servers: int) -> SeaweedCluster:
    tails = ""
    for _ in range(STARTS):
        cluster = SeaweedCluster(data_dir, bucket, volume_servers)
        try:
            if cluster.start():
                return cluster
            hangs, tails = cluster.all_running(), cluster.log_tails()
        except BaseException:
            cluster.stop()
            raise
        cluster.stop()
        if hangs:
            break
    raise RuntimeError(f"the SeaweedFS cluster did not start:\n{tails}")
