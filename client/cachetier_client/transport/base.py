"""The client side of a door, one attempt at a time; ``retrying.py`` repeats them.

Source: docs/protocol.md, "Operations"; docs/http.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cachetier_client.bucket_format.stored import NO_FACTS, ShardFacts
from cachetier_client.deadline import Deadline
from cachetier_client.errors import InvalidRequestError
from cachetier_client.identity.names import SaveIds, ShardIds, checked_name
from cachetier_client.io.aligned import Block
from cachetier_client.io.buffers import Gathered

Reply = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PutRequest:
    """A shard about to be put, before its bytes: its ids, its name, its size and its facts.

    ``size_bytes`` is None if it is not known yet; ``memory``: memory is safe enough for it.

    Raises:
        InvalidNameError: The name is outside the grammar.
        InvalidRequestError: The size is not that of a shard, or contradicts the facts.
    """

    ids: SaveIds
    name: str
    size_bytes: int | None
    facts: ShardFacts = NO_FACTS
    memory: bool = False

    def __post_init__(self) -> None:
        checked_name(self.name)
        if self.size_bytes is None:
            return
        if self.size_bytes < 0:
            raise InvalidRequestError(f"size_bytes {self.size_bytes} is not a number of bytes")
        self.facts.check(self.size_bytes)

    def fields(self) -> dict[str, Any]:
        """Return them as a request carries them."""
        return {
            **self.ids.fields(),
            "name": self.name,
            "size_bytes": self.size_bytes,
            **self.facts.fields(),
            **({"ack": "memory"} if self.memory else {}),
        }


class ConnectionLostError(Exception):
    """The service cannot be reached, or went away before it answered.

    Whether it did what was asked is unknown; every operation may be repeated. ``was_idle`` says
    that the connection had been kept from an earlier call: the service may merely have restarted
    since.
    """

    def __init__(self, message: str, *, was_idle: bool = False) -> None:
        super().__init__(message)
        self.was_idle = was_idle


class Sink(Protocol):
    """A shard on its way into the service, block by block."""

    def reserve(self, total_bytes: int, deadline: Deadline) -> None:
        """Have room for ``total_bytes``; called before they are written."""

    def write(self, block: Block, size_bytes: int, offset: int, deadline: Deadline) -> None:
        """Take a block; may be called from several threads if ``parallel``."""

    def commit(self, size_bytes: int, digests: Sequence[int], deadline: Deadline) -> Reply:
        """Make the shard safe; return the receipt."""

    def abort(self, deadline: Deadline) -> None:
        """Leave nothing behind; does not raise."""

    @property
    def parallel(self) -> bool:
        """Whether blocks may come out of order."""


class Source(Protocol):
    """A shard opened for reading."""

    size_bytes: int
    digest: int
    is_remote: bool
    """Whether the service fetches each block: who reads one waits, and computes nothing."""

    def read_block(self, number: int, into: memoryview, deadline: Deadline) -> None:
        """Fill ``into`` with a block, verified as far as the door allows."""

    def close(self) -> None:
        """Let it go; may be called twice."""


class Transport(Protocol):
    """One service, reached by one door. Thread-safe and fork-safe."""

    url: str

    def put(self, request: PutRequest, data: Gathered, deadline: Deadline) -> Reply:
        """Store one shard; return the receipt."""

    def get(self, shard: ShardIds, out: memoryview | None, deadline: Deadline) -> memoryview:
        """Return the shard's bytes, verified, in ``out`` or in fresh memory."""

    def call(self, op: str, fields: dict[str, Any], deadline: Deadline) -> Reply:
        """Do any other operation of the protocol; return its reply."""

    def open_sink(self, request: PutRequest, deadline: Deadline) -> Sink:
        """Begin a shard that comes block by block."""

    def open_source(
        self, shard: ShardIds, deadline: Deadline, *, restore: bool, blocks: int | None = None
    ) -> Source:
        """Open a shard for reading; one that is only remote is brought back first if ``restore``.

        Else it is left there while little of it is read. Who knows how many ``blocks`` it will be
        says so: then it need not be found out.
        """

    def noticed_incidents(self) -> bool:
        """Return whether a reply spoke of incidents since this was last asked."""

    def forget_idle(self) -> None:
        """Close the connections nobody is using."""

    def close(self) -> None:
        """Let everything go; may be called twice."""


class LastingTransport(Transport, Protocol):
    """A transport whose calls outlast a service that is away for a while."""

    @property
    def fallbacks(self) -> tuple[int, int]:
        """How many shards, and bytes, went another way."""
