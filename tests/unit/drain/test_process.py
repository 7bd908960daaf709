"""One drain at a time: a lock says so, and the one that does not get it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from cachetier.drain.loop import Signals
from cachetier.drain.process import LOCK_TRIES, lock_drain


class Awaiting(Signals):
    """Counts the pauses; after ``until`` of them the predecessor has ended."""

    def __init__(self, predecessor: int, until: int | None = None) -> None:
        super().__init__()
        self.pauses = 0
        self._predecessor, self._until = predecessor, until

    def sleep(self, seconds: float) -> None:
        self.pauses += 1
        if self.pauses == self._until:
            fcntl.flock(self._predecessor, fcntl.LOCK_UN)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "drain.lock"


def test_a_drain_that_waits_in_vain_for_its_predecessor_ends(path: Path) -> None:
    predecessor = lock_drain(path, Signals())
    signals = Awaiting(predecessor)

    with pytest.raises(SystemExit, match="another drain holds"):
        lock_drain(path, signals)

    assert signals.pauses == LOCK_TRIES
    os.close(predecessor)


def test_a_drain_waits_a_while_for_its_predecessor(path: Path) -> None:
    predecessor = lock_drain(path, Signals())
    signals = Awaiting(predecessor, until=3)

    descriptor = lock_drain(path, signals)

    assert signals.pauses == 3
    os.close(descriptor)
    os.close(predecessor)
