"""Stores as people meet them: how they take bodies, how fast, how far away, and what is in front.

A grid of three ways to take bodies, three speeds of a connection and three round trips; and single
troubles. Round trips are real ones where this machine can have a second host (see ``far``), else a
pause before each answer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from pathlib import Path
from typing import Literal
from unittest.mock import patch

from benchmarks.drain.link import Shape
from benchmarks.drain.remote import HERE, RunningSink, sink
from benchmarks.link import far
from tests.integration.certificates import Authority
from tests.stores.servers import haproxy_before, nginx_before

MB = 1e6
WAYS = {"whole bodies": inf, "small buffers": 0.0, "32 MB of buffers": 32 * MB}
SPEEDS = (8 * MB, 60 * MB, 0.0)
ROUND_TRIPS_MS = (0, 35, 120)
# Of peers the first counts; a node of the benches sees no variable that begins with AWS_.
TRUSTED = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")


@dataclass(frozen=True, slots=True)
class World:
    """One store.

    Args:
        name: What the table calls it.
        shape: What each connection meets.
        total: Bytes a second of all connections together; 0 without a limit.
        rtt_ms: Its round trip.
        losses_per_million: Packets that are lost, where the round trip is real.
        tls: Whether it is reached over TLS.
        front: The proxy before it, with its defaults.
    """

    name: str
    shape: Shape
    total: float = 0.0
    rtt_ms: float = 0.0
    losses_per_million: int = 0
    tls: bool = False
    front: Literal["nginx", "HAProxy"] | None = None

    @property
    def is_limited(self) -> bool:
        """Whether anything but the processor limits it."""
        return bool(self.shape.each or self.total)


def _cell(way: str, each: float, rtt_ms: int) -> World:
    speed = f"{each / MB:.0f} MB/s a connection" if each else "no limit"
    return World(f"{way}, {speed}, {rtt_ms} ms", Shape(each, ahead=WAYS[way]), rtt_ms=rtt_ms)


GRID = [_cell(*axes) for axes in product(WAYS, SPEEDS, ROUND_TRIPS_MS)]
_SLOW = Shape(each=8 * MB)
SINGLY = [
    World("jitter, one of 50 ten times slower", Shape(8 * MB, 0.035, 0.5, 0.02)),
    World("0.1 % lost", Shape(60 * MB), rtt_ms=35, losses_per_million=1000),
    World("slower from 24 connections on", replace(_SLOW, knee=24), rtt_ms=35),
    World("200 MB/s in all that halve", Shape(8 * MB, halves_after=1e9), 200 * MB, rtt_ms=35),
    World("TLS", replace(_SLOW, latency=0.035), tls=True),
    World("nginx in front", replace(_SLOW, latency=0.035), front="nginx"),
    World("HAProxy in front", replace(_SLOW, latency=0.035), front="HAProxy"),
]
WORLDS = {world.name: world for world in (*GRID, *SINGLY)}


class Opened:
    """A store that runs: ``take_shape`` makes it as slow as its world says; until then it is not.

    ``remote`` is the sink itself, ``endpoint`` how it is reached.
    """

    def __init__(self, world: World, remote: RunningSink) -> None:
        self.remote = remote
        self.endpoint = remote.endpoint
        self._world = world

    def take_shape(self) -> None:
        self.remote.take_shape(self._world.shape, self._world.total)

    def be_quick(self) -> None:
        self.remote.take_shape(Shape())


@contextmanager
def opened(world: World, directory: Path) -> Iterator[Opened]:
    """Run a store of ``world`` until the block ends; child processes trust its certificate.

    Raises:
        FileNotFoundError: The proxy in front of it is not on this machine.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        there = HERE
        files: tuple[Path, ...] = ()
        if world.rtt_ms and far.why_not() is None:
            there = stack.enter_context(
                far.far_host(directory, world.rtt_ms, world.losses_per_million)
            )
        elif world.rtt_ms:
            late = replace(world.shape, latency=world.shape.latency + world.rtt_ms / 1e3)
            world = replace(world, shape=late)
        if world.tls:
            authority = Authority(directory / "authority")
            issued = authority.issue("sink")
            stack.enter_context(patch.dict(os.environ, dict.fromkeys(TRUSTED, str(authority.ca))))
            files = (issued.certificate, issued.key)
        store = Opened(world, stack.enter_context(sink(*files, there=there)))
        if world.front is not None:
            before = {"nginx": nginx_before, "HAProxy": haproxy_before}[world.front]
            store.endpoint = stack.enter_context(before(store.endpoint, directory))
        yield store
