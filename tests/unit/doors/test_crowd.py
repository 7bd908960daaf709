"""Who makes place when too many connect: found without a look at each."""

from __future__ import annotations

from typing import Any, cast

from cachetier.doors.http.protocol import Crowd, WatchedProtocol


class Connection:
    """What a crowd knows of a connection; ``looks`` counts how often any was asked."""

    looks = 0

    def __init__(self, host: str, since: float, *, rests: bool = True) -> None:
        self.host = host
        self.is_resting = rests
        self.since = since

    @property
    def rests(self) -> bool:
        Connection.looks += 1
        return self.is_resting

    @property
    def resting_since(self) -> float:
        Connection.looks += 1
        return self.since


def as_protocol(connection: Connection) -> WatchedProtocol:
    return cast("WatchedProtocol", connection)


def crowd_of(*connections: Connection) -> Crowd:
    crowd = Crowd()
    for each in connections:
        crowd.enter(as_protocol(each))
        crowd.look_at(as_protocol(each))
    return crowd


def goes(crowd: Crowd, newcomer: Connection) -> Any:
    crowd.enter(as_protocol(newcomer))
    return crowd.make_place_for(as_protocol(newcomer))


def test_the_longest_rest_of_the_address_that_has_most_makes_place() -> None:
    few, first, second = Connection("few", 0), Connection("many", 1), Connection("many", 2)
    crowd = crowd_of(few, first, second)
    newcomer = Connection("new", 3)

    assert goes(crowd, newcomer) is first
    crowd.leave(as_protocol(few))
    assert goes(crowd, Connection("many", 4)) is second


def test_who_answers_now_does_not_rest_and_rests_again_as_the_last() -> None:
    first, second = Connection("a", 1), Connection("a", 2)
    crowd = crowd_of(first, second)
    for rests in (False, True):
        first.is_resting = rests
        crowd.look_at(as_protocol(first))
    first.since = 3

    assert goes(crowd, Connection("b", 4)) is second


def test_the_newest_that_is_busy_goes_where_nobody_rests_and_else_the_newcomer() -> None:
    old, young = Connection("a", 1, rests=False), Connection("a", 2, rests=False)
    crowd = crowd_of(old, young)

    assert goes(crowd, Connection("b", 3)) is young
    newcomer = Connection("c", 4)
    assert goes(crowd_of(Connection("d", 1, rests=False)), newcomer) is newcomer


def test_ten_thousand_silent_connections_cost_no_look_at_each() -> None:
    crowd = crowd_of(*(Connection("silent", number) for number in range(1024)))
    Connection.looks = 0

    for number in range(10_000):
        assert goes(crowd, Connection("silent", 1024 + number)).since == number

    assert Connection.looks < 3 * 10_000


def test_nothing_is_left_of_who_went() -> None:
    one = Connection("a", 1)
    crowd = crowd_of(one)
    for _ in range(2):
        crowd.leave(as_protocol(one))
    crowd.look_at(as_protocol(one))  # its last answer ended after it had gone

    assert not crowd._there and not crowd._resting
