"""GET answers with the first blocks of a shard while the rest still comes from the remote."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator

import pytest
from cachetier_client.io.digests import BLOCK_BYTES, digest_of

from cachetier.remote.base import Into
from cachetier.restore.remote_shard import RANGE_BLOCKS
from tests.fakes.bodies import noise
from tests.integration.serving import SECONDS, Served, serving, shard_path
from tests.integration.test_remote_ranges import evict

FIRST = RANGE_BLOCKS * BLOCK_BYTES
DATA = noise(FIRST + BLOCK_BYTES + 12345)


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        served.put("x", DATA)
        served.drained("x", DATA)
        evict(served)
        yield served


@pytest.fixture
def gate(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold back what comes after the first range, until it is set."""
    gate, read_into = threading.Event(), served.objects.read_into

    def wait_and_read(key: str, start: int, into: Into, etag: str | None = None) -> None:
        assert start == 0 or gate.wait(SECONDS)
        read_into(key, start, into, etag)

    monkeypatch.setattr(served.objects, "read_into", wait_and_read)
    yield gate
    gate.set()


@pytest.fixture
def connection(served: Served) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection("127.0.0.1", served.call.port, timeout=SECONDS)
    yield connection
    connection.close()


def test_the_first_blocks_are_sent_while_others_are_still_to_come(
    served: Served, connection: http.client.HTTPConnection, gate: threading.Event
) -> None:
    connection.request("GET", shard_path("x"), headers=served.call.bearer)
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("cachetier-source")) == (200, "remote")
    assert answer.read(FIRST) == DATA[:FIRST]

    gate.set()
    assert answer.read() == DATA[FIRST:]


def test_a_large_range_is_sent_as_it_comes_too(
    served: Served, connection: http.client.HTTPConnection, gate: threading.Event
) -> None:
    wanted = {"Range": f"bytes=10-{FIRST + BLOCK_BYTES}"}
    connection.request("GET", shard_path("x"), headers={**served.call.bearer, **wanted})
    answer = connection.getresponse()
    assert answer.read(FIRST - 10) == DATA[10:FIRST]

    gate.set()
    assert answer.read() == DATA[FIRST : FIRST + BLOCK_BYTES + 1]


def test_a_later_block_that_comes_damaged_breaks_the_answer_off_before_it(
    served: Served, connection: http.client.HTTPConnection, gate: threading.Event
) -> None:
    (key,) = (key for key in served.objects.list("").keys if key.endswith("/x"))
    damaged = bytearray(DATA)
    damaged[FIRST + 10] ^= 1
    served.objects.put(key, bytes(damaged), digest=digest_of(damaged))
    connection.request("GET", shard_path("x"), headers=served.call.bearer)
    answer = connection.getresponse()
    assert answer.read(FIRST) == DATA[:FIRST]

    gate.set()
    with pytest.raises(http.client.IncompleteRead) as broken_off:
        answer.read()
    assert broken_off.value.partial == b""
