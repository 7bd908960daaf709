"""The pace of restores: what they may read in a second, how they give way, and how far they are.

The limit (`max_restore_rate`) is one for all that comes from remotes and peers. While ranks of this
node train, few ranges of remotes are read at once. What comes from peers is never held back for
that: two nodes that both train would wait for each other.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from cachetier_client.clock import Clock

from cachetier.errors import StoppingError
from cachetier.model.shard import Shard
from cachetier.remote.base import ObjectStore
from cachetier.remote.wrapped import Answer, Operation, WrappedObjectStore
from cachetier.restore.remote_shard import RemoteShard

BESIDE_TRAINING = 4  # ranges at once, each of which costs a part of a core
LOOK_SECONDS = 0.1  # training may have ended


@dataclass(frozen=True, slots=True)
class RestoreFigures:
    """The bytes that restores have read since the start, and the progress of those running now.

    ``peers`` has the bytes of each peer, by its store id. ``eta_seconds`` is None while nobody can
    tell.
    """

    from_peers_bytes: int = 0
    from_remotes_bytes: int = 0
    wanted_bytes: int = 0
    done_bytes: int = 0
    eta_seconds: float | None = 0.0
    peers: Mapping[str, int] = field(default_factory=dict)


class RestorePace:
    """Paces and counts the reads of restores. Thread-safe.

    Args:
        clock: For the limit, and the time that is left.
        bytes_per_second: The limit; None for none.
        is_training: Returns whether ranks of this node are in a training step.
    """

    def __init__(
        self,
        clock: Clock,
        bytes_per_second: float | None = None,
        is_training: Callable[[], bool] = lambda: False,
    ) -> None:
        self.clock = clock
        self._rate = bytes_per_second
        self._is_training = is_training
        self._stopping = threading.Event()
        self._turn = threading.Lock()  # of those who wait for the limit
        self._free_at = 0.0
        self._changed = threading.Condition()
        self._reading = 0
        self._read_bytes: Counter[str] = Counter()
        self._left: dict[int, int] = {}  # bytes by version
        self._done_bytes = 0
        self._busy_since = 0.0

    def close(self) -> None:
        """Let those go who wait: they get a StoppingError."""
        self._stopping.set()

    def paced(self, source: RemoteShard) -> RemoteShard:
        """Return a remote copy that is read at this pace."""
        return replace(source, objects=_PacedObjectStore(source.objects, self))

    def await_turn(self, size_bytes: int) -> None:
        """Return once so many bytes may be asked for, of a remote or a peer."""
        if self._rate is None:
            return
        with self._turn:
            left = self._free_at - self.clock.monotonic()
            if left > 0 and self._stopping.wait(left):
                raise StoppingError("the node stops")
            begins_at = max(self._free_at, self.clock.monotonic())
            self._free_at = begins_at + size_bytes / self._rate

    def count(self, peer: str, size_bytes: int) -> None:
        """Count bytes that came from a peer, or without a name from a remote."""
        with self._changed:
            self._read_bytes[peer] += size_bytes

    @contextmanager
    def beside_training(self) -> Iterator[None]:
        """Read a range of a remote inside; it waits while others are read and ranks train."""
        with self._changed:
            while self._reading >= BESIDE_TRAINING and self._is_training():
                if self._stopping.is_set():
                    raise StoppingError("the node stops")
                self._changed.wait(LOOK_SECONDS)
            self._reading += 1
        try:
            yield
        finally:
            with self._changed:
                self._reading -= 1
                self._changed.notify()

    # --- how far -------------------------------------------------------------------------------

    @contextmanager
    def wanting(self, shards: Iterable[Shard]) -> Iterator[None]:
        """Restore ``shards`` inside; one that others restore already counts once."""
        sizes = {shard.version: shard.content.size_bytes for shard in shards}
        with self._changed:
            if not self._left:
                self._busy_since, self._done_bytes = self.clock.monotonic(), 0
            self._left = sizes | self._left
        try:
            yield
        finally:
            with self._changed:
                for version in sizes:
                    self._left.pop(version, None)

    def came(self, version: int, size_bytes: int) -> None:
        """Note that so much more of a shard is here."""
        with self._changed:
            more_bytes = min(size_bytes, self._left.get(version, 0))
            if more_bytes:
                self._left[version] -= more_bytes
                self._done_bytes += more_bytes

    def figures(self) -> RestoreFigures:
        """Return what has come, and what is still to come."""
        with self._changed:
            left, done = sum(self._left.values()), self._done_bytes if self._left else 0
            seconds = self.clock.monotonic() - self._busy_since
            eta_seconds = left * seconds / done if done else None
            peers = {name: size for name, size in self._read_bytes.items() if name}
            return RestoreFigures(
                from_peers_bytes=sum(peers.values()),
                from_remotes_bytes=self._read_bytes[""],
                wanted_bytes=left + done,
                done_bytes=done,
                eta_seconds=eta_seconds if self._left else 0.0,
                peers=peers,
            )


class _PacedObjectStore(WrappedObjectStore):
    def __init__(self, store: ObjectStore, pace: RestorePace) -> None:
        super().__init__(store)
        self._pace = pace

    def _around(
        self, operation: Operation, size_bytes: int, call: Callable[[], Answer], /
    ) -> Answer:
        if operation != "read_into":
            return call()
        self._pace.await_turn(size_bytes)
        with self._pace.beside_training():
            answer = call()
        self._pace.count("", size_bytes)
        return answer
