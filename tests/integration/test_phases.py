"""Hints of training through both doors of a whole service, up to status and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cachetier_client import Client

from cachetier.training_hints import Hints
from tests.integration.serving import Served, serving
from tests.integration.test_unix_door import Rank


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as served:
        yield served


def hints(served: Served) -> Hints:
    return served.service.operations.phases.hints()


def socket_of(served: Served) -> Path:
    return Path(served.service.socket)


def until(served: Served, expected: Hints) -> None:
    """Wait for what rings no bell: a hint, or the end of a connection."""
    assert served.service._changes.wait_for(lambda: hints(served) == expected, 20.0, 0.01), hints(
        served
    )


def test_ranks_tell_their_phase_over_the_socket(served: Served) -> None:
    first, second = Rank(socket_of(served)), Rank(socket_of(served))
    assert first.ask("phase", busy=True)["ok"]
    assert second.ask("phase", busy=True)["ok"]
    assert hints(served) == Hints(hinting_ranks=2, busy_ranks=2)
    assert first.ask("phase", busy=False)["ok"]
    assert hints(served) == Hints(hinting_ranks=2, busy_ranks=1)

    second.close()
    until(served, Hints(hinting_ranks=1, busy_ranks=0))
    first.close()
    until(served, Hints())


@pytest.mark.parametrize("busy", [None, 1, "true", [], {}])
def test_a_phase_that_is_none_is_refused(served: Served, busy: object) -> None:
    rank = Rank(socket_of(served))
    assert rank.refusal("phase", busy=busy) == "invalid_request"
    assert rank.refusal("phase") == "invalid_request"
    rank.close()

    assert hints(served) == Hints()


def test_over_http_a_client_id_tells_ranks_apart(served: Served) -> None:
    for client_id in ("a", "b", "b"):
        answer = served.call.post("/v1/phase", {"client_id": client_id, "busy": True})
        assert (answer.status, answer.json) == (200, {})
    assert hints(served) == Hints(hinting_ranks=2, busy_ranks=2)
    served.call.post("/v1/phase", {"client_id": "a", "busy": False})

    assert hints(served) == Hints(hinting_ranks=2, busy_ranks=1)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"client_id": "a"},
        {"busy": True},
        {"client_id": "", "busy": True},
        {"client_id": "x" * 65, "busy": True},
        {"client_id": "a", "busy": "yes"},
        {"client_id": "a", "busy": 1},
        {"client_id": "a", "busy": True, "rank": 1},
    ],
)
def test_over_http_too(served: Served, body: dict[str, object]) -> None:
    answer = served.call.post("/v1/phase", body)

    assert (answer.status, answer.code) == (422, "invalid_request")
    assert hints(served) == Hints()


@pytest.mark.parametrize("door", ["socket", "http"])
def test_a_clients_step_shows_in_the_metrics(served: Served, door: str) -> None:
    url = served.service.url if door == "http" else f"unix://{served.service.socket}"
    with Client(url) as client:
        with client.training_step():
            until(served, Hints(hinting_ranks=1, busy_ranks=1))
            assert b"\ncachetier_training_busy 1.0\n" in served.call("GET", "/metrics").body
        until(served, Hints(hinting_ranks=1, busy_ranks=0))
        assert b"\ncachetier_training_busy 0.0\n" in served.call("GET", "/metrics").body
        assert client.lost_hints == 0


def test_a_rank_that_is_killed_in_a_step_is_not_busy_any_more(served: Served) -> None:
    client = Client(f"unix://{served.service.socket}")
    client.training_step().__enter__()
    until(served, Hints(hinting_ranks=1, busy_ranks=1))
    client.close()

    until(served, Hints())
