"""The catalog's room: held, given up by the piece, filled up again, and there over a stop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cachetier.local.catalog import connection
from cachetier.local.catalog.connection import LEAST_BYTES, PIECES, Reserve

FILE_BYTES = LEAST_BYTES * 3 // 4


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Reserve]:
    for name in ("catalog.db-wal", "catalog.db-shm"):
        (tmp_path / name).touch()
    held = Reserve(tmp_path / "catalog.db", 0)
    if not held.left_bytes:
        pytest.skip("this filesystem allocates nothing ahead")
    yield held
    held.close()


def test_what_is_held_does_not_change_what_sqlite_sees(held: Reserve, tmp_path: Path) -> None:
    assert held.left_bytes >= FILE_BYTES
    log = (tmp_path / "catalog.db-wal").stat()
    assert (log.st_size, log.st_blocks * 512 >= LEAST_BYTES // 4) == (0, True)


def test_it_is_given_up_by_the_piece_low_at_half_and_filled_up_again(held: Reserve) -> None:
    given = [held.is_low for _ in range(PIECES) if held.give()]

    assert given == [False] * (PIECES // 2) + [True] * (PIECES // 2)
    assert held.left_bytes == 0
    assert not held.give()
    assert held.fill()
    assert held.left_bytes >= FILE_BYTES


def test_a_disk_with_room_gets_nothing_back_at_a_start(held: Reserve, tmp_path: Path) -> None:
    connection.lend_reserve(tmp_path)

    assert held.left_bytes >= FILE_BYTES


def test_nothing_is_filled_up_once_it_is_closed(tmp_path: Path, held: Reserve) -> None:
    other = Reserve(tmp_path / "catalog.db", 0)

    other.close()

    assert other.fill()
    assert not other.is_low
