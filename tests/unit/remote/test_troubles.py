"""Which requests the proxy strikes, and how heads are read to decide it."""

from __future__ import annotations

import pytest

from cachetier.testing.http_wire import Framing, Head, WireError
from cachetier.testing.troubles import Trouble, Troubles


def request(method: str, length: int = 0) -> Head:
    return Head.parse(f"{method} /b/k HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode())


def answer(line: str, *fields: str) -> Head:
    return Head.parse("\r\n".join([line, *fields, "", ""]).encode())


def test_nothing_happens_unless_it_is_planned() -> None:
    troubles = Troubles()

    assert [troubles.strike(request(method, 5)) for method in ("PUT", "GET")] == [None, None]
    assert not troubles.fired


def test_replies_are_lost_to_requests_that_change_something() -> None:
    troubles = Troubles(lose_replies=2)
    struck = [troubles.strike(request(method)) for method in ("GET", "PUT", "DELETE", "POST")]

    assert struck == [None, Trouble.LOST_REPLY, Trouble.LOST_REPLY, None]
    assert troubles.fired == {Trouble.LOST_REPLY: 2}


def test_resets_strike_requests_with_a_body() -> None:
    troubles = Troubles(resets=1)

    assert troubles.strike(request("PUT")) is None
    assert troubles.strike(request("PUT", 5)) is Trouble.RESET
    assert troubles.strike(request("PUT", 5)) is None


def test_requests_beyond_the_rate_are_slowed_down() -> None:
    now = 0.0
    troubles = Troubles(slowdown_rate=2.0, clock=lambda: now)

    def burst(count: int) -> list[Trouble | None]:
        return [troubles.strike(request("GET")) for _ in range(count)]

    assert burst(4) == [None, None, Trouble.SLOW_DOWN, Trouble.SLOW_DOWN]
    now = 0.5
    assert burst(2) == [None, Trouble.SLOW_DOWN]
    now = 100.0
    assert burst(3) == [None, None, Trouble.SLOW_DOWN]
    troubles.limit(0)
    assert burst(9) == [None] * 9
    assert troubles.fired == {Trouble.SLOW_DOWN: 4}


@pytest.mark.parametrize(
    ("head", "method", "framing"),
    [
        (answer("HTTP/1.1 200 OK", "Content-Length: 7"), "GET", 7),
        (answer("HTTP/1.1 200 OK", "Transfer-Encoding: chunked"), "GET", "chunked"),
        (answer("HTTP/1.1 200 OK"), "GET", "until_close"),
        (answer("HTTP/1.1 200 OK", "content-length: 7"), "HEAD", 0),
        (answer("HTTP/1.1 204 No Content"), "DELETE", 0),
        (answer("HTTP/1.1 304 Not Modified"), "GET", 0),
        (answer("HTTP/1.1 100 Continue"), "PUT", 0),
    ],
)
def test_the_length_of_an_answer_follows_from_its_head(
    head: Head, method: str, framing: Framing
) -> None:
    assert head.answer_framing(method) == framing


@pytest.mark.parametrize(
    ("head", "closes"),
    [
        (answer("HTTP/1.1 200 OK"), False),
        (answer("HTTP/1.1 200 OK", "Connection: close"), True),
        (answer("HTTP/1.0 200 OK"), True),
        (answer("HTTP/1.0 200 OK", "Connection: keep-alive"), False),
    ],
)
def test_a_connection_lasts_as_its_version_says(head: Head, closes: bool) -> None:
    assert head.closes is closes


def test_what_is_no_http_is_refused() -> None:
    with pytest.raises(WireError):
        Head.parse(b"nonsense\r\n\r\n")
