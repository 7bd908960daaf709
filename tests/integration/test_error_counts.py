"""Every request that a door answers with an error is counted, by door and code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client.transport.wire import receive_frame

from tests.integration.serving import Served, serving, shard_path
from tests.integration.test_unix_door import Rank


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


def count(served: Served, door: str, code: str) -> float | None:
    labels = {"door": door, "code": code}
    return served.service.metrics.registry.get_sample_value("cachetier_errors_total", labels)


def test_errors_over_the_socket_are_counted(served: Served) -> None:
    rank = Rank(Path(served.service.socket))
    assert rank.refusal("nothing-we-know") == "invalid_request"
    assert rank.refusal("open", run="r", step=1, name="x", timeout_seconds=1) == "not_found"
    rank.close()

    assert count(served, "unix", "invalid_request") == 1
    assert count(served, "unix", "not_found") == 1
    assert count(served, "http", "not_found") is None


def test_who_is_turned_away_at_the_socket_is_counted(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachetier.doors.unix.door.peer_of", lambda _connection: (4711, {1}, 1))
    stranger = Rank(Path(served.service.socket), hello=False)
    assert not receive_frame(stranger.socket).header["ok"]  # the door says so unasked, and hangs up
    stranger.close()

    assert count(served, "unix", "forbidden") == 1


def test_errors_over_http_are_counted_once_and_named_in_a_header(served: Served) -> None:
    answers = [
        served.call("GET", "/nothing"),
        served.call("HEAD", shard_path("x")),
        served.call("GET", "/v1/runs/r/latest?level=best"),
        served.call("POST", "/v1/flush", b"{}", {"Content-Type": "text/plain"}),
    ]

    named = [answer.headers["cachetier-error"] for answer in answers]
    assert named == ["not_found", "not_found", "invalid_request", "invalid_request"]
    assert answers[1].body == b""
    assert count(served, "http", "not_found") == 2
    assert count(served, "http", "invalid_request") == 2


def test_a_head_that_is_no_http_is_counted_too(served: Served) -> None:
    assert served.call.send_raw(b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400")

    assert count(served, "http", "invalid_request") == 1


def test_answers_without_an_error_are_not_counted(served: Served) -> None:
    assert served.put("x", b"x").status == 201
    assert served.call("GET", "/v1/status").status == 200

    assert "cachetier_errors_total{" not in served.service.metrics.exposition().decode()
