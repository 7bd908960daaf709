"""Hosts in network namespaces: each has an address and a link of its own, which a test may cut."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from examples.peers.cluster import Network


def ip(*words: str, program: str = "ip") -> None:
    """Run ``ip``, or another program of its package."""
    subprocess.run([program, *words], check=True, capture_output=True)


class NamespaceNetwork(Network):
    """Hosts behind one bridge, on which the store is."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._net = f"198.{random.choice((18, 19))}.{random.randrange(256)}"  # RFC 2544: for tests
        self.store_host = f"{self._net}.1"

    def listen(self, number: int) -> str:
        return f"{self._net}.{number + 2}"

    def prefix(self, number: int) -> Sequence[str]:
        return "ip", "netns", "exec", self._host(number)

    def make(self, count: int) -> None:
        """Make the bridge and so many hosts."""
        bridge = f"b{self._mark}"
        ip("link", "add", bridge, "type", "bridge")
        ip("addr", "add", f"{self.store_host}/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for number in range(count):
            host, link = self._host(number), self._link(number)
            inside = *self.prefix(number), "ip"
            ip("netns", "add", host)
            ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", host)
            ip("link", "set", link, "master", bridge, "up")
            ip(*inside[1:], "addr", "add", f"{self.listen(number)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip(*inside[1:], "link", "set", device, "up")

    def remove(self, count: int) -> None:
        """Remove what is there of them."""
        for number in range(count):
            subprocess.run(["ip", "netns", "del", self._host(number)], check=False)
        subprocess.run(["ip", "link", "del", f"b{self._mark}"], check=False)

    def cut(self, number: int) -> None:
        """Take the link of a host down: nobody hears of it, and it of nobody."""
        ip("link", "set", self._link(number), "down")

    def mend(self, number: int) -> None:
        """Bring the link of a host up again."""
        ip("link", "set", self._link(number), "up")

    def slow(self, number: int, rate: str) -> None:
        """Let a host send no more than ``rate``, as tc writes it."""
        words = "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate
        ip(*self.prefix(number)[1:], "tc", *words, "burst", "64kb", "latency", "1s")

    def _host(self, number: int) -> str:
        return f"ct{self._mark}{number}"

    def _link(self, number: int) -> str:
        return f"v{self._mark}{number}"


@contextmanager
def namespaces(count: int) -> Iterator[NamespaceNetwork]:
    """Lend so many hosts until the block ends; skips where there can be none."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    network = NamespaceNetwork(f"{random.randrange(1 << 32):08x}")
    try:
        try:
            network.make(count)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode()}")
        yield network
    finally:
        network.remove(count)
