"""What a hostile, broken or slow caller may send: a clear refusal, and nothing left behind."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from cachetier.doors.http.limits import RequestLimits
from tests.integration.serving import OWNER, Caller, Served, received, serving, shard_path
from tests.integration.test_http_crowds import held_request

BAD_NAMES = [
    "..",
    "../../etc/passwd",
    "a/../b",
    "./a",
    "a//b",
    "/a",
    "a/",
    "",
    ".cachetier/manifest.json",
    "a/.cachetier/b",
    "%2e%2e",
    "%2e%2e%2fetc%2fpasswd",
    "a%2f..%2fb",
    "%252e%252e",
    "a%00b",
    "%00",
    "a%0d%0aX-Injected:%20yes",
    "a%0ab",
    "%ff%fe",
    "%c0%ae%c0%ae",
    "caf%c3%a9",
    "a%20b",
    "a+b%20",
    "a~b",
    "a:b",
    "a*b",
    "a%5c..%5cb",
    "a%7fb",
    "x" * 256,
    "x" * 300,
    "a/" * 128 + "a",
    "%e2%80%ae",
    "a%",
    "a%zz",
]
BAD_RUNS = ["..", ".", "%2e%2e", "a%2fb", "-r", "%00", "%ff", "r%0d%0a", "x" * 129, "", "a~~b"]
BAD_STEPS = ["-1", "01", "1.0", "1e3", "%31%00", "9007199254740992", "x", "", "+1", "1" * 400]


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with serving() as served:
        yield served
        assert served.holds_nothing()


def bare(shared: Served, method: str, path: str, body: bytes = b"x") -> tuple[int, bytes]:
    """Send a path exactly as it is; no library tidies it up."""
    head = f"{method} {path} HTTP/1.1\r\n{OWNER}Content-Length: {len(body)}\r\n"
    answer = shared.call.send_raw(f"{head}Connection: close\r\n\r\n".encode() + body)
    status, _, rest = answer.partition(b"\r\n")
    return int(status.split()[1]), rest


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
def test_a_hostile_shard_name_is_refused_up_front(shared: Served, method: str, name: str) -> None:
    status, rest = bare(shared, method, shard_path(name), b"x" if method == "PUT" else b"")
    assert status == 400
    assert b'"code": "invalid_name"' in rest
    assert b"X-Injected" not in rest.partition(b"\r\n\r\n")[0]


@pytest.mark.parametrize("run", BAD_RUNS)
@pytest.mark.parametrize("rest", ["steps", "latest", "steps/1", "steps/1/shards/x"])
def test_a_hostile_run_is_refused_up_front(shared: Served, run: str, rest: str) -> None:
    status, body = bare(shared, "GET", f"/v1/runs/{run}/{rest}", b"")
    assert status == 400
    assert b'"code": "invalid_name"' in body


@pytest.mark.parametrize("step", BAD_STEPS)
@pytest.mark.parametrize("rest", ["", "/seal", "/wait", "/shards/x"])
def test_a_hostile_step_is_refused_up_front(shared: Served, step: str, rest: str) -> None:
    method = {"": "DELETE", "/seal": "POST", "/wait": "GET", "/shards/x": "PUT"}[rest]
    status, body = bare(shared, method, f"/v1/runs/r/steps/{step}{rest}", b"")
    assert status == 400
    assert b'"code": "invalid_name"' in body


def test_slashes_may_be_written_either_way(shared: Served) -> None:
    shared.call("PUT", shard_path("a%2Fb"), b"one")
    assert shared.call("GET", shard_path("a/b")).body == b"one"
    assert shared.call("DELETE", shard_path("a/b")).status == 204


HEAD = f"PUT {shard_path('x')} HTTP/1.1\r\n{OWNER}"
BAD_HEADS = {
    "length and chunks": HEAD
    + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "chunks and length": HEAD
    + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "two lengths": HEAD + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "a negative length": HEAD + "Content-Length: -5\r\n\r\nhello",
    "a length that is no number": HEAD + "Content-Length: five\r\n\r\nhello",
    "an endless length": HEAD + f"Content-Length: {'9' * 40}\r\n\r\nhello",
    "an unknown coding": HEAD + "Transfer-Encoding: gzip\r\n\r\nhello",
    "a bad chunk": HEAD + "Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    "too many headers": HEAD + "".join(f"X-{n}: y\r\n" for n in range(5000)) + "\r\n",
    "a huge header": HEAD + f"X: {'y' * 200_000}\r\n\r\n",
    "a huge path": f"GET {shard_path('x' * 200_000)} HTTP/1.1\r\n{OWNER}\r\n",
    "no HTTP": "hello, is this the cache?\r\n\r\n",
    "a folded header": HEAD + "X: a\r\n b\r\nContent-Length: 1\r\n\r\nx",
    "NUL in a header": HEAD + "X: a\x00b\r\nContent-Length: 1\r\n\r\nx",
    "a space before the colon": HEAD + "Content-Length : 1\r\n\r\nx",
}


@pytest.mark.parametrize("kind", BAD_HEADS)
def test_a_malformed_head_is_refused_and_the_connection_closed(shared: Served, kind: str) -> None:
    answer = shared.call.send_raw(BAD_HEADS[kind].encode())
    assert answer.startswith(b"HTTP/1.1 400"), answer[:200]
    assert b"201 Created" not in answer
    assert shared.call("GET", shard_path("x")).status == 404


def test_a_sender_who_is_refused_may_send_on_and_read_why(shared: Served) -> None:
    body = b"x" * (32 << 20)
    answer = shared.call("PUT", f"{shard_path('x')}?ack=never", body)
    assert (answer.status, answer.code) == (400, "invalid_request")


# --- deadlines -----------------------------------------------------------------------------------

# Each test has one limit that is short: no other ends what it sends, however slow the machine is.
PATIENT = RequestLimits(header_seconds=600.0, progress_seconds=600.0, request_seconds=600.0)
SLOW_BODIES = replace(PATIENT, progress_seconds=0.6, progress_bytes=1000)


@pytest.fixture
def short_heads(shared: Served) -> Iterator[Caller]:
    """Lend a second door to the same node, with little patience for heads and for rest."""
    with shared.second_door(replace(PATIENT, header_seconds=0.6)) as (_door, caller):
        yield caller


@pytest.fixture
def short_bodies(shared: Served) -> Iterator[Caller]:
    """Lend one with little patience for bodies."""
    with shared.second_door(SLOW_BODIES) as (_door, caller):
        yield caller


def until_closed(caller: Caller, first: bytes, drip: bytes = b"") -> bytes:
    """Send ``first``, then ``drip`` until the service ends it; return what it answered."""
    answer, ends_at = b"", time.monotonic() + 60
    with caller.raw() as connection:
        connection.sendall(first)
        connection.settimeout(0.1)
        while time.monotonic() < ends_at:
            try:
                piece = connection.recv(65536)
                if not piece:
                    return answer
                answer += piece
            except TimeoutError:
                pass
            except ConnectionError:
                return answer
            try:
                connection.sendall(drip)
            except OSError:
                return answer
    raise AssertionError(f"it was not closed: {answer!r}")


def test_a_shard_beyond_the_limit_is_refused_before_its_body(shared: Served) -> None:
    with shared.call.raw() as connection:
        connection.sendall(f"{HEAD}Content-Length: {10**17}\r\n\r\n".encode() + b"x" * 100)
        answer = b""
        while b"invalid_request" not in answer:
            piece = connection.recv(65536)
            assert piece, answer
            answer += piece
    assert answer.startswith(b"HTTP/1.1 400")


def test_a_silent_connection_is_closed(short_heads: Caller) -> None:
    assert until_closed(short_heads, b"") == b""


def test_a_head_that_never_ends_is_closed(short_heads: Caller) -> None:
    assert until_closed(short_heads, b"GET /livez HTTP/1.1\r\n", b"X: y\r\n") == b""


def test_an_idle_connection_is_closed_after_an_answer(short_heads: Caller) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"
    ended = (until_closed(short_heads, request) for _ in range(20))  # one may be sent too late
    assert next(filter(None, ended)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("length", [5000, 50_000_000])
@pytest.mark.parametrize("drip", [b"", b"x"])
def test_a_body_that_stalls_or_drips_is_ended(
    short_bodies: Caller, length: int, drip: bytes
) -> None:
    head = f"PUT {shard_path('slow')} HTTP/1.1\r\n{OWNER}Content-Length: {length}\r\n\r\n"
    answer = until_closed(short_bodies, head.encode() + b"some", drip)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"\r\nconnection: close\r\n" in answer.lower()  # not one more byte is waited for


def test_a_small_document_that_stalls_is_ended(short_bodies: Caller) -> None:
    head = f"POST /v1/flush HTTP/1.1\r\n{OWNER}Content-Length: 500\r\n\r\n{{".encode()
    assert until_closed(short_bodies, head).startswith(b"HTTP/1.1 408")


def test_a_document_too_large_is_refused(shared: Served) -> None:
    kind = {"Content-Type": "application/json"}
    answer = shared.call("POST", "/v1/flush", b" " * (2 << 20), kind)
    assert (answer.status, answer.code) == (400, "invalid_request")


def test_a_reader_who_does_not_read_is_cut_off(shared: Served) -> None:
    shared.put("unread", b"x" * (32 << 20))
    with shared.second_door(SLOW_BODIES) as (door, caller), caller.raw() as connection:
        connection.sendall(f"GET {shard_path('unread')} HTTP/1.1\r\n{OWNER}\r\n".encode())
        connection.recv(10)
        ends_at = time.monotonic() + 60
        while door.connections:
            assert time.monotonic() < ends_at
            time.sleep(0.01)
        assert len(received(connection)) < 32 << 20
    assert shared.call("DELETE", shard_path("unread")).status == 204


def test_a_request_ends_with_its_own_deadline_whatever_it_waits_for(shared: Served) -> None:
    with shared.second_door(replace(PATIENT, request_seconds=1.0)) as (_door, caller):
        answer = caller("PUT", f"{shard_path('late')}?ack=durable&timeout_seconds=600", b"x")
    assert (answer.status, answer.code) == (504, "deadline")
    assert shared.call("DELETE", shard_path("late")).status in (204, 404)  # 404: it ended before


# --- how many at once ----------------------------------------------------------------------------


def alive(connection: socket.socket) -> bool:
    """Ask for a whole answer, whose head may come before its body."""
    connection.sendall(b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n")
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    return answer.status == 200 and answer.read() == b'{"state":"live"}'


def test_a_full_door_hangs_up_on_the_longest_rest(shared: Served) -> None:
    with (
        shared.second_door(RequestLimits(connections=3)) as (door, caller),
        caller.raw() as first,
        caller.raw() as second,
        caller.raw() as third,
    ):
        for each in (first, third, second):
            assert alive(each)
            time.sleep(0.005)  # the loop's clock counts milliseconds

        assert caller("GET", "/livez").status == 200
        assert received(first) == b""
        for each in (third, second):
            assert alive(each)
        assert door.connections <= 3


def test_where_every_connection_is_busy_others_are_turned_away(shared: Served) -> None:
    with (
        shared.second_door(RequestLimits(connections=3)) as (_door, caller),
        caller.raw() as first,
        caller.raw() as second,
        caller.raw() as third,
    ):
        for each in (first, second, third):
            held_request(each)
        assert caller.send_raw(b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n") == b""


def test_bodies_that_never_come_keep_nobody_out(shared: Served) -> None:
    """Of probes nobody waits for a body, and those who sign in have places of their own."""
    limits = RequestLimits(requests=2, strangers=2)
    with shared.second_door(limits) as (_door, caller), ExitStack() as held:
        for path in ("/livez", "/livez", "/session", "/session", "/session"):
            connection = held.enter_context(caller.raw())
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\n"
            connection.sendall(f"{head}Content-Length: 9\r\n\r\n".encode())
        assert caller("GET", "/v1/runs").status == 200
        assert caller("GET", "/livez").status == 200


def test_requests_beyond_the_limit_hear_when_to_come_again(shared: Served) -> None:
    with (
        shared.second_door(RequestLimits(requests=2)) as (_door, caller),
        caller.raw() as first,
        caller.raw() as second,
    ):
        held_request(first)
        held_request(second)
        answer = caller("GET", "/v1/runs")
        assert (answer.status, answer.code) == (503, "busy")
        assert answer.headers["retry-after"] == "1"
        assert caller("GET", "/livez").status == 200
