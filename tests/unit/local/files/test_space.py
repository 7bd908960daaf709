"""The byte budget: nothing is taken twice, nothing is forgotten."""

from __future__ import annotations

import threading

import pytest

from cachetier.local.files.space import Space


def never() -> None:
    raise AssertionError("nobody should have to make room")


def test_room_is_taken_up_to_the_last_byte_and_not_beyond() -> None:
    space = Space(100)

    assert space.try_reserve(60)
    assert space.try_reserve(40)
    assert not space.try_reserve(1)
    assert space.used_bytes == 100


def test_nothing_needs_no_room() -> None:
    space = Space(0)

    assert space.try_reserve(0)
    assert space.reserve(0, 0.0, never)


def test_what_is_released_can_be_taken_again() -> None:
    space = Space(100)
    assert space.try_reserve(100)

    space.release(30)

    assert space.try_reserve(30)
    assert not space.try_reserve(1)


def test_bytes_found_at_start_up_count_even_beyond_the_capacity() -> None:
    space = Space(100)

    space.account(150)

    assert space.used_bytes == 150
    assert not space.try_reserve(0), "a full store takes nothing"
    space.release(60)
    assert space.try_reserve(10)


def test_whoever_finds_no_room_asks_for_it_and_says_how_much() -> None:
    space = Space(100)
    assert space.try_reserve(90)
    wanted: list[int] = []

    def make_room() -> None:
        wanted.append(space.wanted_bytes)
        space.release(90)

    assert space.reserve(50, 0.0, make_room)
    assert wanted == [50]
    assert (space.used_bytes, space.wanted_bytes) == (50, 0)


def test_without_room_in_time_nothing_is_taken() -> None:
    space = Space(100)
    assert space.try_reserve(90)

    assert not space.reserve(50, 0.0, lambda: None)

    assert (space.used_bytes, space.wanted_bytes) == (90, 0)


def test_a_failure_to_make_room_leaves_no_wish_behind() -> None:
    """The evictor would go on making room for a caller that has gone."""
    space = Space(100)
    assert space.try_reserve(90)

    with pytest.raises(OSError, match="remote"):
        space.reserve(50, 0.0, lambda: _fail("remote"))

    assert (space.used_bytes, space.wanted_bytes) == (90, 0)


def _fail(message: str) -> None:
    raise OSError(message)


def test_a_waiter_goes_on_as_soon_as_room_is_released() -> None:
    space = Space(100)
    assert space.try_reserve(100)
    asked, taken = threading.Event(), []
    waiter = threading.Thread(
        target=lambda: taken.append(space.reserve(40, 30.0, asked.set)), daemon=True
    )
    waiter.start()
    assert asked.wait(30)

    space.release(10)
    space.release(30)

    waiter.join(30)
    assert taken == [True]
    assert space.used_bytes == 100


def test_many_threads_never_take_more_than_there_is() -> None:
    space, most, lock = Space(10), [0], threading.Lock()

    def work() -> None:
        for _ in range(200):
            if space.try_reserve(3):
                with lock:
                    most[0] = max(most[0], space.used_bytes)
                space.release(3)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert most[0] <= 10
    assert space.used_bytes == 0


# --- a disk that has less than the capacity -------------------------------------------------------


def test_a_disk_that_refuses_bytes_takes_less_than_them_until_it_is_looked_at() -> None:
    space = Space(100)
    assert space.try_reserve(40)
    assert space.try_reserve(30)

    space.refuse(30, free_bytes=10)

    assert (space.used_bytes, space.limit_bytes, space.disk_is_full) == (40, 50, True)
    assert not space.try_reserve(11)
    assert space.try_reserve(10)
    space.look(free_bytes=20)
    assert (space.limit_bytes, space.disk_is_full) == (70, True)
    space.look(free_bytes=50)
    assert (space.limit_bytes, space.disk_is_full) == (100, False)


def test_a_quota_refuses_what_the_disk_says_it_has() -> None:
    space = Space(100)
    assert space.try_reserve(30)

    space.refuse(30, free_bytes=10**9)

    assert not space.try_reserve(30), "something has to go first"
    assert space.try_reserve(29)


def test_a_disk_that_cannot_even_name_a_file_needs_something_to_go() -> None:
    space = Space(100)
    assert space.try_reserve(40)

    space.refuse(0, free_bytes=0)

    assert not space.try_reserve(0)
    space.release(1)
    assert space.try_reserve(0)
