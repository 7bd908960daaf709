"""Stores of tests whose large bodies are sent by carriers, as those of a drain are.

A test has threads, so its nursery is a program of its own instead of a fork.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cachetier.carriers.pool import Carriers
from cachetier.carriers.process import Counters, Nursery, fork_on_request
from cachetier.remote.base import ObjectStore
from cachetier.remote.settings import RemoteSettings
from cachetier.remote.stall_guard import Timeouts
from cachetier.testing.s3_endpoint import S3Endpoint

AT_ONCE = 16


class ProgramNursery(Nursery):
    """A nursery for carriers that have the keys of ``endpoint``; it ends with this process."""

    def __init__(self, endpoint: S3Endpoint) -> None:
        self.counters = Counters()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptors = theirs.fileno(), self.counters.descriptor
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.carried", *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                env={**os.environ, **endpoint.environment()},
            )

    def close(self) -> None:
        self._socket.close()
        self._process.wait()
        os.close(self.counters.descriptor)


@contextmanager
def carriers_to(endpoint: S3Endpoint, *, timeouts: Timeouts | None = None) -> Iterator[Carriers]:
    """Yield carriers to a server of tests."""
    nursery = ProgramNursery(endpoint)
    carriers = Carriers(nursery, settings_of(endpoint), 2, AT_ONCE, timeouts or Timeouts())
    try:
        yield carriers
    finally:
        carriers.close()
        nursery.close()


def settings_of(endpoint: S3Endpoint) -> RemoteSettings:
    return RemoteSettings(
        "durable",
        endpoint.bucket,
        endpoint=endpoint.url,
        verify=endpoint.verify,
        conditional_writes=endpoint.conditional_writes,
        addressing_style="path",
    )


def carried(carriers: Carriers, endpoint: S3Endpoint, timeouts: Timeouts) -> ObjectStore:
    """Return the store of ``endpoint`` with its large bodies sent by ``carriers``."""
    return carriers.store(settings_of(endpoint), endpoint.store(timeouts=timeouts))


if __name__ == "__main__":
    requests, counters = map(int, sys.argv[1:])
    fork_on_request(socket.socket(fileno=requests), Counters(counters), lambda: None, 0.0)
