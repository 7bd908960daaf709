"""Slow, many and greedy callers of the HTTP door: nobody keeps the others out."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from cachetier.doors.http.door import HttpDoor
from cachetier.doors.http.limits import RequestLimits
from tests.integration.serving import (
    OWNER,
    SECONDS,
    Caller,
    Served,
    received,
    serving,
    shard_path,
)

LARGE = 24 << 20  # more than the kernel keeps between the two ends
QUICK = RequestLimits(uploads=2, downloads=2, crowded_seconds=0.4)
MANY = 1100
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    with serving() as served:
        served.put("large", bytes(LARGE))
        served.put("small", b"x" * 100)
        yield served


@contextmanager
def connected(caller: Caller, host: str = "127.0.0.1", window: int = 0) -> Iterator[socket.socket]:
    """Lend a bare connection that comes from an address of its own, and reads little ahead."""
    with socket.socket() as connection:
        if window:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        connection.bind((host, 0))
        connection.settimeout(SECONDS)
        connection.connect(("127.0.0.1", caller.port))
        yield connection


def asked(connection: socket.socket, request: str, body: bytes = b"") -> None:
    connection.sendall(f"{request} HTTP/1.1\r\n{OWNER}".encode() + body)


@pytest.fixture(autouse=True)
def machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each address of the loopback count as a machine of its own."""
    for module in ("access.principals", "doors.http.protocol"):
        monkeypatch.setattr(f"cachetier.{module}.network_of", lambda address: address)


@contextmanager
def slow_readers(caller: Caller, number: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as held:
        readers = [
            held.enter_context(connected(caller, f"127.0.1.{n}", 4096))
            for n in range(1, number + 1)
        ]
        for reader in readers:
            asked(reader, f"GET {shard_path('large')}", b"\r\n")
            assert reader.recv(100).startswith(b"HTTP/1.1 200")
        yield readers


def held_request(connection: socket.socket, name: str = "held") -> None:
    """Begin a put whose body never comes, and return once it is being served."""
    asked(
        connection, f"PUT {shard_path(name)}", b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"
    )
    assert connection.recv(4096).startswith(b"HTTP/1.1 100")


def begun_upload(connection: socket.socket, name: str) -> None:
    """Begin a large put, and return once it has a place."""
    head = f"Expect: 100-continue\r\nContent-Length: {LARGE}\r\n\r\n"
    asked(connection, f"PUT {shard_path(name)}", head.encode())
    assert connection.recv(4096).startswith(b"HTTP/1.1 100")
    connection.sendall(bytes(100_000))


def one_made_way(connections: list[socket.socket]) -> bool:
    answered, _, _ = select.select(connections, [], [], SECONDS)
    return any(b'"busy"' in each.recv(4096) for each in answered)


def test_slow_readers_keep_nobody_from_a_small_shard(shared: Served) -> None:
    with shared.second_door(RequestLimits(downloads=2)) as (_door, caller):
        with slow_readers(caller, 2):
            assert caller("GET", shard_path("small")).status == 200
            assert caller("HEAD", shard_path("large")).status == 200


def test_slow_readers_make_way_for_a_large_shard(shared: Served) -> None:
    with shared.second_door(QUICK) as (_door, caller), slow_readers(caller, 2) as readers:
        assert caller("GET", shard_path("large")).body == bytes(LARGE)
        assert any(len(received(reader)) < LARGE for reader in readers)


def test_uploads_that_drip_make_way_for_others(shared: Served) -> None:
    with (
        shared.second_door(QUICK) as (_door, caller),
        connected(caller, "127.0.1.1") as first,
        connected(caller, "127.0.1.2") as second,
    ):
        begun_upload(first, "drip-1")
        begun_upload(second, "drip-2")
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(0.05):
                for each in (first, second):
                    try:
                        each.send(b"x" * 100)
                    except OSError:
                        pass

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            answer = caller("PUT", f"{shard_path('whole')}?timeout_seconds=50", bytes(1 << 20))
            assert answer.status == 201
        finally:
            stop.set()
            dripping.join()
        assert one_made_way([first, second])


def test_one_address_leaves_places_to_others(shared: Served) -> None:
    """Four uploads of one, of which none counts as slow, and one of somebody else."""
    with (
        shared.second_door(replace(QUICK, crowded_bytes=0)) as (_door, caller),
        connected(caller, "127.0.1.9") as other,
        ExitStack() as held,
    ):
        many = [held.enter_context(connected(caller)) for _ in range(4)]
        for number, each in enumerate(many[:2]):
            begun_upload(each, f"many-{number}")
        for number, each in enumerate(many[2:]):
            head = f"Content-Length: {LARGE}\r\n\r\n"
            asked(each, f"PUT {shard_path(f'waiting-{number}')}", head.encode())
        asked(other, f"PUT {shard_path('one')}", b"Content-Length: 200000\r\n\r\n" + bytes(200_000))
        assert other.recv(4096).startswith(b"HTTP/1.1 201")
        assert one_made_way(many[:2])


def test_one_address_leaves_requests_to_others(shared: Served) -> None:
    with (
        shared.second_door(RequestLimits(requests=4)) as (_door, caller),
        connected(caller, "127.0.1.7") as other,
        ExitStack() as held,
    ):
        for _ in range(4):
            held_request(held.enter_context(connected(caller)))
        assert caller("GET", "/v1/runs").code == "busy"
        asked(other, "GET /v1/runs", b"\r\n")
        assert other.recv(4096).startswith(b"HTTP/1.1 200")


def test_one_address_leaves_connections_to_others(shared: Served) -> None:
    with (
        shared.second_door(RequestLimits(connections=4)) as (_door, caller),
        ExitStack() as held,
    ):
        for _ in range(4):
            held_request(held.enter_context(connected(caller)))
        with connected(caller, "127.0.1.7") as other:
            other.sendall(LIVEZ)
            assert other.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_reader_who_takes_a_little_now_and_then_is_cut_off(shared: Served) -> None:
    limits = RequestLimits(progress_seconds=0.6, progress_bytes=200_000)
    with shared.second_door(limits) as (door, caller), slow_readers(caller, 1) as (reader,):
        ends_at = time.monotonic() + SECONDS
        while door.connections and time.monotonic() < ends_at:
            try:
                reader.recv(5000)
            except ConnectionResetError:
                break
            time.sleep(0.05)
        assert door.connections == 0


def test_a_probe_gets_in_beside_more_pollers_than_there_are_places(shared: Served) -> None:
    limits = RequestLimits(header_seconds=600.0)  # all of them rest until the last is there
    with shared.second_door(limits) as (door, caller), ExitStack() as held:
        for _ in range(MANY):
            poller = held.enter_context(caller.raw())
            poller.sendall(LIVEZ)
            assert poller.recv(4096).startswith(b"HTTP/1.1 200")
        assert all(caller("GET", "/livez").status == 200 for _ in range(20))
        assert _is_full(door)


def _is_full(door: HttpDoor) -> bool:
    return 1000 <= door.connections <= RequestLimits().connections


def test_puts_that_wait_for_room_keep_nobody_from_reading() -> None:
    with serving(capacity="10 MB") as served, ExitStack() as held:
        served.put("kept", b"x" * 100)
        assert served.put("most", bytes(9_600_000)).status == 201
        for number in range(100):
            waiting = held.enter_context(served.call.raw())
            path = f"{shard_path(f'w{number}')}?timeout_seconds=600"
            asked(waiting, f"PUT {path}", b"Content-Length: 60000\r\n\r\n" + bytes(60_000))
        ends_at = time.monotonic() + SECONDS
        wanted = served.service.store.space
        while wanted.wanted_bytes < 94 * 60_000:  # six have found room
            assert time.monotonic() < ends_at, wanted.wanted_bytes
            time.sleep(0.01)
        assert served.call("GET", shard_path("kept")).status == 200
