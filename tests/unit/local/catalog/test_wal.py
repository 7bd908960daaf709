"""A torn tail is taken back; damage in the middle is refused. Logs are built here, byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from cachetier.errors import CatalogDamagedError
from cachetier.local.catalog import connection

PAGE_BYTES = 512
FRAME_BYTES = 24 + PAGE_BYTES


def log_of(commits: list[int], *, salts: tuple[int, int] = (7, 8)) -> bytearray:
    """Build a log; each number is a frame: 0, or the size in pages with which it ends a commit."""
    header = struct.pack(">6I", 0x377F0683, 3007000, PAGE_BYTES, 0, *salts)
    running = connection._checksum(header, ">", (0, 0))
    log = bytearray(header + struct.pack(">2I", *running))
    for number, pages in enumerate(commits, 1):
        head, page = struct.pack(">2I", number, pages), bytes([number]) * PAGE_BYTES
        running = connection._checksum(head + page, ">", running)
        log += head + struct.pack(">4I", *salts, *running) + page
    return log


def frame_at(number: int) -> int:
    return 32 + (number - 1) * FRAME_BYTES


def check(tmp_path: Path, log: bytes | bytearray) -> None:
    (tmp_path / "log").write_bytes(log)
    connection.check_frames(tmp_path / "log")


def test_a_sound_log_passes(tmp_path: Path) -> None:
    check(tmp_path, log_of([0, 0, 3, 4, 0, 5]))


def test_no_log_and_an_empty_one_pass(tmp_path: Path) -> None:
    connection.check_frames(tmp_path / "absent")
    check(tmp_path, b"")
    check(tmp_path, b"\0" * 32)


@pytest.mark.parametrize("frame", [5, 6])
def test_a_bad_frame_of_the_last_commit_is_a_torn_tail(tmp_path: Path, frame: int) -> None:
    log = log_of([3, 0, 4, 4, 0, 5])
    log[frame_at(frame) + 100] ^= 1

    check(tmp_path, log)


@pytest.mark.parametrize("frame", [1, 2, 3, 4])
def test_a_bad_frame_before_the_last_commit_is_damage(tmp_path: Path, frame: int) -> None:
    log = log_of([3, 0, 4, 4, 0, 5])
    log[frame_at(frame) + 100] ^= 1

    with pytest.raises(CatalogDamagedError, match=f"at byte {frame_at(frame)}"):
        check(tmp_path, log)


@pytest.mark.parametrize("pages", [1, 2, 4, 1024])
def test_a_commit_whose_size_lost_its_only_bit_is_still_a_commit(
    tmp_path: Path, pages: int
) -> None:
    log = log_of([3, pages, 5])
    log[frame_at(2) + 4 : frame_at(2) + 8] = bytes(4)

    with pytest.raises(CatalogDamagedError):
        check(tmp_path, log)


@pytest.mark.parametrize("salt", [8, 12])
def test_a_frame_with_one_wrong_salt_is_damage(tmp_path: Path, salt: int) -> None:
    log = log_of([3, 4, 5])
    log[frame_at(2) + salt] ^= 1

    with pytest.raises(CatalogDamagedError):
        check(tmp_path, log)


def test_frames_of_an_earlier_life_after_the_last_commit_pass(tmp_path: Path) -> None:
    old = log_of([3, 4, 5, 6], salts=(1, 2))
    new = log_of([3, 4])

    check(tmp_path, new + old[len(new) :])


def test_a_hole_in_the_last_commit_shows_an_earlier_life_and_passes(tmp_path: Path) -> None:
    """The power went before the second frame of three was written over."""
    old = log_of([3, 4, 5, 6], salts=(1, 2))
    new = log_of([3, 0, 0, 4])
    new[frame_at(3) : frame_at(4)] = old[frame_at(3) : frame_at(4)]

    check(tmp_path, new)


def test_a_head_of_an_earlier_life_in_front_of_a_new_frame_passes(tmp_path: Path) -> None:
    """The sector that ends with the head of frame 42 was not written, those around it were."""
    old = log_of([9] * 45, salts=(1, 2))
    new = log_of([9] * 40 + [0, 0, 0, 9])
    sector = slice(frame_at(42) + 8 - connection.SECTOR_BYTES, frame_at(42) + 8)
    assert sector.start % connection.SECTOR_BYTES == 0
    new[sector] = old[sector]

    check(tmp_path, new)


def test_a_hole_before_the_last_commit_is_damage(tmp_path: Path) -> None:
    log = log_of([3, 0, 4, 5])
    log[frame_at(2) : frame_at(3)] = bytes(FRAME_BYTES)

    with pytest.raises(CatalogDamagedError):
        check(tmp_path, log)


def test_a_damaged_header_hides_every_commit_and_is_refused(tmp_path: Path) -> None:
    for offset in range(32):
        log = log_of([3, 4])
        log[offset] ^= 0x10
        with pytest.raises(CatalogDamagedError):
            check(tmp_path, log)


def test_logs_of_machines_of_either_byte_order_are_read(tmp_path: Path) -> None:
    header = struct.pack(">6I", 0x377F0682, 3007000, PAGE_BYTES, 0, 7, 8)
    log = bytearray(header + struct.pack(">2I", *connection._checksum(header, "<", (0, 0))))

    check(tmp_path, log + bytes(10))
