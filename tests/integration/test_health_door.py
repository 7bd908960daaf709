"""The port for probes: it answers whatever the HTTP door is busy with, and says little."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from cachetier.errors import ConfigError
from tests.integration.serving import Caller, Served, serving


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(health="127.0.0.1:0") as opened:
        yield opened


def probed(served: Served) -> Caller:
    assert served.service.health_url is not None
    return Caller(int(served.service.health_url.rsplit(":", 1)[1]))


def test_it_says_that_the_service_lives_and_is_ready(served: Served) -> None:
    assert probed(served)("GET", "/livez").json == {"state": "live"}
    assert probed(served)("GET", "/readyz").json == {"state": "ready"}
    assert probed(served)("HEAD", "/readyz").status == 200


def test_it_says_why_no_work_is_taken(served: Served) -> None:
    served.service._course.leaving = True
    answer = probed(served)("GET", "/readyz")
    assert (answer.status, answer.json["reason"]) == (503, "the node is being left")
    assert probed(served)("GET", "/livez").status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/status", 404),
        ("GET", "/metrics", 404),
        ("PUT", "/v1/runs/r/steps/1/shards/x", 404),
        ("POST", "/livez", 405),
    ],
)
def test_it_serves_nothing_else(served: Served, method: str, path: str, status: int) -> None:
    assert probed(served)(method, path).status == status


def test_it_answers_while_the_http_door_is_stuck(served: Served) -> None:
    with served.call.raw() as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n")
        connection.recv(4096)
        assert served.service._http is not None
        assert served.service._http._server is not None
        (busy,) = served.service._http._server.server_state.connections
        stuck, go_on = threading.Event(), threading.Event()
        busy.loop.call_soon_threadsafe(stuck.set)
        busy.loop.call_soon_threadsafe(go_on.wait, 60)
        try:
            assert stuck.wait(60)
            assert probed(served)("GET", "/livez").status == 200
        finally:
            go_on.set()


def test_many_who_hold_the_port_keep_no_probe_out(served: Served) -> None:
    held = [probed(served).raw() for _ in range(200)]
    for each in held:
        each.__enter__().sendall(b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n")
    assert probed(served)("GET", "/livez").status == 200
    for each in held:
        each.__exit__(None, None, None)


def test_an_address_in_use_is_a_clear_error_that_names_the_setting(served: Served) -> None:
    with (
        pytest.raises(ConfigError, match="cannot listen on health"),
        serving(health=f"127.0.0.1:{served.call.port}"),
    ):
        pass


def test_without_the_setting_there_is_none() -> None:
    with serving() as served:
        assert served.service.health_url is None
