"""What all tests of crashes share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pytest

from cachetier.local.catalog import wal
from tests.stateful.unsynced import unsynced


@pytest.fixture
def vfs() -> Iterator[str]:
    with unsynced() as name:
        yield name


@pytest.fixture(scope="package", autouse=True)
def _sums_of_frames_are_remembered() -> Iterator[None]:
    """Thousands of restarts from images of one life sum the same frames, in Python."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal, "_checksum", lru_cache(maxsize=4096)(wal._checksum))
        yield
